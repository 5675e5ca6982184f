"""Tests of a run over Flower against one in a single process: the same cohorts, model and noise."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gdpfed.clients.order import TrainingOrder
from gdpfed.methods import METHODS
from gdpfed.privacy.ledgers.charged import ChargedSum
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.fleet import Fleet
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from testing.small_runs import TRAINING, final_model, nothing_drawn, run, small_config


def simulated(directory, overrides=(), *, resume=False, observe=None):
    """Simulate a small run in one process, and return the records of its rounds."""
    with nothing_drawn():
        assert simulate(small_config(directory, overrides, resume=resume), observe=observe) == directory
    return read_rounds(directory)


@pytest.fixture
def quiet(monkeypatch):
    """Draw cohorts from a fixed key and add no noise, so that runs can be compared; clipping stays."""
    parameters = Fleet.parameters

    def without_noise(self, round_index, request, *corrections):
        return parameters(self, round_index, replace(request, noise_multiplier=0.0), *corrections)

    monkeypatch.setattr("gdpfed.rounds.state.secret_sampling_key", lambda: bytes(range(32)))
    monkeypatch.setattr(Fleet, "parameters", without_noise)
    # All guard what is missing here: the noise that was charged, and that which hides norms, and one update
    # among zeros.
    monkeypatch.setattr(ChargedSum, "check", lambda charged, clients, norms, noise_stddev: None)
    monkeypatch.setattr(TrainingOrder, "check_part", lambda order, parameters: None)
    monkeypatch.setattr("gdpfed.rounds.extensions.fill.stands_out_of_zeros", lambda noise_multiplier: "")


# Steps on records, and clients of the game, draw batches or noise in secret: no two runs of them are alike.
@pytest.mark.parametrize(
    "method", [name for name in TRAINING if METHODS.get(name).unit != "record" and name != "fedpcs"]
)
@pytest.mark.parametrize("secagg", ["off", "pairwise"])
def test_both_fleets_train_the_same_model(tmp_path, quiet, method, secagg):
    if method == "sampled_fedavg" and secagg == "pairwise":
        pytest.skip("its weights are unequal, and nothing is clipped: refused")
    overrides = [f"method={method}", f"secagg={secagg}", "dataset.momentum=0.5", "run.num_rounds=2"]
    overrides.append("privacy.against=outsiders")  # There is no noise here that could be taken back.
    over_flower = run(tmp_path / "flower", overrides)
    in_process = simulated(tmp_path / "process", overrides)
    assert [(r.cohort_sizes, r.survivors) for r in over_flower] == [
        (r.cohort_sizes, r.survivors) for r in in_process
    ]
    flower, process = final_model(tmp_path / "flower"), final_model(tmp_path / "process")
    assert np.abs(flower).max() > 0.01
    np.testing.assert_allclose(process, flower, rtol=0, atol=1e-6)


def test_both_fleets_draw_the_same_cohorts(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpfed.rounds.state.secret_sampling_key", lambda: bytes(range(32)))
    drawn: dict[str, list[Any]] = {}
    for name, train in (("flower", run), ("process", simulated)):

        def noted(plan, index, key, name=name):
            drawn.setdefault(name, []).append(draw_cohorts(plan, index, key))
            return drawn[name][-1]

        monkeypatch.setattr("gdpfed.rounds.loop.draw_cohorts", noted)
        train(tmp_path / name, ["method=gdpfed", "run.num_rounds=2"])
    # Keys ahead need the next round's cohorts a round before; they are the same when it comes.
    assert [len(drawn[name]) for name in ("flower", "process")] == [3, 2]
    for flower, process in zip([drawn["flower"][0], drawn["flower"][-1]], drawn["process"], strict=True):
        assert [each.tolist() for each in flower] == [each.tolist() for each in process]


@pytest.mark.parametrize("first", ["flower", "process"])
def test_either_fleet_continues_what_the_other_began(tmp_path, first):
    overrides = ["method=fedavg", "secagg=off"]
    run(tmp_path / "whole", overrides)
    begin, go_on = (run, simulated) if first == "flower" else (simulated, run)
    begin(tmp_path / "parts", [*overrides, "run.stop_after_round=1"])
    records = go_on(tmp_path / "parts", overrides, resume=True)
    assert [record.round for record in records] == [1, 2, 3]
    np.testing.assert_allclose(
        final_model(tmp_path / "parts"), final_model(tmp_path / "whole"), rtol=0, atol=1e-6
    )


def test_the_files_are_those_of_a_run_over_flower(tmp_path):
    run(tmp_path / "flower", ["method=fedavg"])
    simulated(tmp_path / "process", ["method=fedavg"])
    names = [{path.name for path in (tmp_path / kind).iterdir()} for kind in ("flower", "process")]
    assert names[0] == names[1]
    assert (tmp_path / "flower" / "plan.json").read_bytes() == (
        tmp_path / "process" / "plan.json"
    ).read_bytes()
