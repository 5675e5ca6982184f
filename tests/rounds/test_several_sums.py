"""Tests that a method gets every sum that its plan charges, such as two sums a round or weighted sums."""

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from flwr.serverapp import Grid

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.works.update import batch_generator
from gdpfed.learning.task import choose_device
from gdpfed.learning.training.local_update import clip, local_update
from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.methods.fedavg import DPFedAvg, FedAvg
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.sum_parameters import sum_parameters
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import merge_groups
from gdpfed.privacy.planning.plan_options import RelativeRounds
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from server_app.train import train
from testing.local_grid import refusals
from testing.small_runs import SMALL, grid_for, grid_of_owners, ledger_of, only_a_card

NUM_CLIENTS = 8
SMALLER = [f"dataset.num_clients={NUM_CLIENTS}", "privacy.sampling_rate=1", "simulation.workers=1"]
FLEETS = ["process", "process, secagg=off", "flower", "flower, secagg=off"]


@cache
def configured(*overrides):
    return load([*SMALL, *SMALLER, *overrides])


@pytest.fixture
def compared_to_the_last_bit(monkeypatch):
    """Turn off clients' check of norms and weights, so that these may differ in sums without noise."""
    monkeypatch.setattr(TrainingOrder, "check_part", lambda order, parameters: None)


@pytest.fixture(params=FLEETS)
def trained(request, tmp_path, monkeypatch):
    """Return a function that runs a method in a simulation or at nodes, and returns the rounds' records."""
    kind, _, secagg = request.param.partition(", ")
    monkeypatch.setattr("gdpfed.report.run_observers.default_observers", only_a_card)

    def run(method, *overrides, grid=None):
        monkeypatch.setattr("gdpfed.rounds.run.make_method", method.from_config)
        config = configured(*overrides, *([secagg] if secagg else []))
        config = replace(config, run=replace(config.run, directory=str(tmp_path / "run")))
        if kind == "flower":
            train(cast("Grid", grid or grid_for(config)), config, "test run")
        else:
            simulate(config, make_observers=only_a_card)
        return read_rounds(tmp_path / "run")

    return run


class OpenFedAvg(FedAvg):
    """FedAvg method that keeps the requests and the sums of its last round."""

    asked: ClassVar[list[SumRequest]]
    given: ClassVar[list[ClientSum]]

    def round(self, theta, round_index, cohorts, sum_updates):
        requests = self.requests(theta, round_index, cohorts)
        sums = sum_updates(requests)
        type(self).asked, type(self).given = requests, sums
        return self.step(theta, sums[:1]), sums


class Weighted(OpenFedAvg):
    """FedAvg method that asks for client weights and for one clipping norm, which some updates exceed."""

    def requests(self, theta, round_index, cohorts):
        (whole,) = super().requests(theta, round_index, cohorts)
        weights = np.linspace(0.2, 1.0, len(whole.clients))
        return [replace(whole, clipping_norm=0.5, client_weights=weights)]


class WeightedWithNorms(Weighted):
    """FedAvg method that asks for client weights and norms, whose product is the clipping norm of the sum."""

    def requests(self, theta, round_index, cohorts):
        (weighted,) = super().requests(theta, round_index, cohorts)
        weights = weighted.client_weights
        return [replace(weighted, clipping_norm=0.3, client_clipping_norms=0.3 / weights)]


class FromTwoModels(OpenFedAvg):
    """FedAvg method that asks for two sums: half of the cohort trains longer, and from another model."""

    def requests(self, theta, round_index, cohorts):
        (whole,) = super().requests(theta, round_index, cohorts)
        first, second = np.array_split(whole.clients, 2)
        order = order_of(configured(*ONE_ROUND), task_of(configured(*ONE_ROUND)))
        longer = replace(order.training, local_steps=3, learning_rate=0.1)
        other = np.full_like(theta, 0.01) + theta
        return [
            replace(whole, name="first", clients=first),
            replace(whole, name="second", clients=second, start=other, training=longer),
        ]


ONE_ROUND = ("method=fedavg", "run.num_rounds=1")


def by_hand(config, request):
    """Return the sum that a request asks for, from updates that this function weights and clips itself."""
    task = task_of(config)
    order = order_of(config, task)
    norm, size = request.clipping_norm, len(request.clients)
    parameters = sum_parameters(
        config.secagg,
        label="by hand",
        num_clients=size,
        dimension=len(request.start),
        clipping_norm=norm,
        noise_multiplier=0.0,
    )
    encoding = parameters.encoding(size)
    weights = np.ones(size) if request.client_weights is None else request.client_weights
    norms = np.full(size, norm) if request.client_clipping_norms is None else request.client_clipping_norms
    total = np.zeros(len(request.start), np.int64)
    for client, weight, own in zip(request.clients.tolist(), weights, norms, strict=True):
        update = local_update(
            task.build_model(),
            request.start,
            task.client_data(client),
            request.training or order.training,
            rng=batch_generator(order, client),
            device=choose_device("cpu"),
        )
        bound = encoding.clipped_to(min(weight * own, norm)) if own < np.inf else encoding
        total += bound.encode(clip(weight * update, bound.clip_bound).numpy())
    return encoding.decode(encoding.to_residues(total))


@pytest.mark.usefixtures("compared_to_the_last_bit")
@pytest.mark.parametrize("method", [Weighted, WeightedWithNorms, FromTwoModels])
def test_a_sum_is_what_was_asked_for_to_the_last_bit(trained, method):
    (record,) = trained(method, *ONE_ROUND, "simulation.engine=sequential")
    assert record.failures == {}
    for request, given in zip(method.asked, method.given, strict=True):
        np.testing.assert_array_equal(given.total, by_hand(configured(*ONE_ROUND), request))
        assert np.abs(given.total).max() > 0.01


@pytest.mark.usefixtures("compared_to_the_last_bit")
@pytest.mark.parametrize("trained", FLEETS[:2], indirect=True)
@pytest.mark.parametrize("method", [Weighted, WeightedWithNorms, FromTwoModels])
def test_many_clients_at_once_weigh_and_clip_alike(trained, method):
    """Clients that train in one batch are weighted and clipped like single clients, except for rounding."""
    trained(method, *ONE_ROUND, "simulation.engine=batched")
    for request, given in zip(method.asked, method.given, strict=True):
        expected = by_hand(configured(*ONE_ROUND), request)
        np.testing.assert_allclose(given.total, expected, rtol=0, atol=NUM_CLIENTS * 1e-5)


PRIVATE = ("method=dp_fedavg", "privacy.budgets=[3]", "privacy.renyi_orders=whole", "training.local_steps=1")


class Planned(DPFedAvg):
    """Method whose plan is made with parameters ``more``, which the configuration cannot express."""

    more: ClassVar[dict[str, Any]] = {}

    @classmethod
    def make_plan(cls, config):
        return make_plan(
            groups=(merge_groups(configured_groups(config)),),
            num_rounds=config.run.num_rounds,
            sampling_rate=config.privacy.sampling_rate,
            clipping_norm=config.privacy.clipping_norm,
            delta=config.privacy.delta,
            accountant=config.privacy.accountant,
            renyi_orders="whole",
            sums_hidden=config.secagg.mode != "off",
            **cls.more,
        )


class Once(Planned):
    pass


class Twice(Planned):
    more: ClassVar = {"sums_per_round": 2}

    def round(self, theta, round_index, cohorts, sum_updates):
        (request,) = self.requests(theta, round_index, cohorts)
        sums = sum_updates([request])
        theta = self.step(theta, sums)
        sums += sum_updates([replace(request, name="from there", start=theta)])
        return self.step(theta, sums[1:]), sums


def test_two_sums_of_a_round_are_paid_for(trained, tmp_path):
    records = trained(Twice, *PRIVATE)
    assert [(each.survivors, each.failures) for each in records] == [([NUM_CLIENTS] * 2, {})] * 3
    two, one = (method.make_plan(configured(*PRIVATE)).groups[0] for method in (Twice, Once))
    assert records[-1].spent_epsilon == [two.epsilon_accounted]
    assert 2.9 < two.epsilon_accounted <= 3
    assert two.noise_multiplier == pytest.approx(np.sqrt(2) * one.noise_multiplier, rel=1e-2)
    assert records[0].noise_stddevs == [two.noise_stddev] * 2
    assert audit_run(tmp_path / "run").findings == ()


@pytest.mark.parametrize("trained", ["flower"], indirect=True)
def test_nodes_that_agreed_to_two_sums_a_round_send_both(trained, tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS)
    records = trained(Twice, *PRIVATE, grid=grid)
    assert [each.survivors for each in records] == [[NUM_CLIENTS] * 2] * 3
    assert refusals(grid) == []
    assert ledger_of(tmp_path / "ledgers", 0).runs[0].rounds == [0, 0, 1, 1, 2, 2]


class Scheduled(Planned):
    more: ClassVar = {
        "schedule": (
            RelativeRounds(num_rounds=1, noise_multiplier=2.0),
            RelativeRounds(num_rounds=2, clipping_norm=0.5, sampling_rate=0.9),
        )
    }


def test_a_schedule_is_kept_round_by_round(trained, tmp_path, monkeypatch):
    records = trained(Scheduled, *PRIVATE)
    (group,) = Scheduled.make_plan(configured(*PRIVATE)).groups
    stddevs = [group.at(index).noise_stddev for index in range(3)]
    assert stddevs[0] > 2 * stddevs[1] == 2 * stddevs[2]
    assert [record.noise_stddevs for record in records] == [[stddev] for stddev in stddevs]
    assert records[0].cohort_sizes == [NUM_CLIENTS]
    assert records[-1].spent_epsilon == [group.epsilon_accounted]
    (finding,) = audit_run(tmp_path / "run").findings
    assert finding == "group 0 is charged at clipping norms 1 to 2, and has one", "dp_fedavg has one norm"
    monkeypatch.setattr("gdpfed.audit.plan_checks.SAME_NORM_IN_ALL_ROUNDS", ())
    assert audit_run(tmp_path / "run").findings == ()
