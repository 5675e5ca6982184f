"""Tests of poisoned sums: such a sum fails, is charged and recorded, and does not change the model."""

from typing import cast

import numpy as np
import pytest
from flwr.serverapp import Grid

from conf.load import load
from gdpfed.clients.update import update_steps
from gdpfed.federation.node.contribution import Contributor
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from server_app.train import train
from testing.small_runs import SMALL, final_model, grid_for

steps_at_node = Contributor.steps
NUM_CLIENTS, POISONER, POISONED_ROUND = 8, 3, 1


def poisoned_steps(job):
    """Return a client's encoded update; in one round, the poisoning client adds 1e9 to each coordinate."""
    poisons = job.client_id == POISONER and job.order.round_index == POISONED_ROUND
    return update_steps(job) + 10**9 * poisons


def poisoned_at_node(who, order, theta, encoding):
    steps = steps_at_node(who, order, theta, encoding)
    return steps + 10**9 * (who.client_id == POISONER and order.round_index == POISONED_ROUND)


@pytest.mark.parametrize(
    ("fleet", "secagg"),
    [("process", "pairwise"), ("process", "off"), ("flower", "pairwise")],
)
def test_a_poisoned_sum_is_refused_and_the_run_goes_on(fleet, secagg, tmp_path, monkeypatch):
    monkeypatch.setattr("gdpfed.simulation.engine.update_steps", poisoned_steps)
    monkeypatch.setattr(Contributor, "steps", poisoned_at_node)
    monkeypatch.setattr("gdpfed.report.run_observers.default_observers", lambda *each: [])
    config = load(
        [
            *SMALL,
            f"dataset.num_clients={NUM_CLIENTS}",
            "privacy.sampling_rate=1",
            "method=dp_fedavg",
            "simulation.engine=sequential",
            "simulation.workers=1",
            f"secagg={secagg}",
            f"run.directory={tmp_path / 'run'}",
        ]
    )
    if fleet == "flower":
        train(cast("Grid", grid_for(config)), config, "test run")
    else:
        simulate(config, make_observers=lambda *each: [])
    records = read_rounds(tmp_path / "run")
    failed = records[POISONED_ROUND]
    assert [bool(each.failures) for each in records] == [False, True, False]
    (reason,) = failed.failures.values()
    assert reason.startswith("the sum's ")
    assert "no honest sum" in reason
    assert failed.survivors == [0]
    assert (failed.accuracy, failed.loss) == (records[0].accuracy, records[0].loss)
    assert np.array(failed.spent_epsilon, float).min() > np.array(records[0].spent_epsilon, float).max()
    assert np.isfinite(final_model(tmp_path / "run")).all()


def test_in_clear_only_the_poisoner_is_left_out(tmp_path, monkeypatch):
    """With updates in clear, the server leaves out only the client whose update exceeds the bound."""
    monkeypatch.setattr(Contributor, "steps", poisoned_at_node)
    monkeypatch.setattr("gdpfed.report.run_observers.default_observers", lambda *each: [])
    overrides = [f"dataset.num_clients={NUM_CLIENTS}", "privacy.sampling_rate=1", "method=dp_fedavg"]
    directory = f"run.directory={tmp_path / 'run'}"
    config = load([*SMALL, *overrides, "secagg=off", "secagg.dropout_tolerance=0.2", directory])
    train(cast("Grid", grid_for(config)), config, "test run")
    records = read_rounds(tmp_path / "run")
    assert not any(each.failures for each in records)
    assert [each.survivors for each in records] == [[NUM_CLIENTS], [NUM_CLIENTS - 1], [NUM_CLIENTS]]
