"""Tests that a method gets only sums that its plan charges: others are refused before any message."""

import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import torch

import gdpfed.clients.works.update as client_update
from conf.load import load
from gdpfed.audit.accounting import epsilon_after
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.works.update import batch_generator
from gdpfed.errors import FailedError, PrivacyError
from gdpfed.methods.fedavg import DPFedAvg
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.report.run_observers import ModelCard
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.loop import INTERRUPTED
from gdpfed.rounds.state import new_ledger
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from server_app.train import train
from testing.local_grid import IN_CLEAR, LocalGrid, as_grid
from testing.small_runs import SMALL
from tests.rounds.rogue_methods import AHEAD, ROGUES, NotDrawn, TwiceInTurn

NUM_CLIENTS = 10
SMALLER = [
    "method=dp_fedavg",
    f"dataset.num_clients={NUM_CLIENTS}",
    "run.num_rounds=3",
    "privacy.renyi_orders=whole",
    "privacy.budgets=[3]",
    "privacy.delta=1e-2",
    "simulation.engine=sequential",
    "simulation.workers=1",
    # Cohorts of six have a sum, and nobody fills them: some stay whom nobody asks.
    "secagg.dropout_tolerance=0",
]
FLEETS = ["process", "process, secagg=off", "flower", "flower, secagg=off"]


@cache
def configured(*overrides):
    """Return a configuration; it is cached, because composing it takes longer than a run of this test."""
    return load([*SMALL, *SMALLER, *overrides])


PLANS: dict[str, PrivacyPlan] = {}
make_plan = DPFedAvg.make_plan


def cached_plan(config):
    """Return the plan of a configuration, made once for each mode of masking."""
    key = config.secagg.mode
    if key not in PLANS:
        PLANS[key] = make_plan(config)
    return PLANS[key]


FIGURES: dict[str, float] = {}


def cached_figure(*each, **more):
    """Return the epsilon that the audit computes by itself, cached for all runs of one plan."""
    key = repr((each, more))
    if key not in FIGURES:
        FIGURES[key] = epsilon_after(*each, **more)
    return FIGURES[key]


def standing_still(model, theta, data, training, *, rng, device, loss, added):
    """Return a zero update in place of training, because these tests do not look at the model."""
    return torch.zeros(len(theta), dtype=torch.float64)


class Workplace:
    """The clients of one test case, with a record of the training and messages that a method causes."""

    def __init__(self, fleet, monkeypatch):
        self.kind, _, self.secagg = fleet.partition(", ")
        self.trained: list[tuple[int, int]] = []
        in_clear = IN_CLEAR if self.secagg else None
        self.grid, self.patch = LocalGrid(NUM_CLIENTS, node_config=in_clear), monkeypatch

        def noted(order, client_id):
            self.trained.append((order.round_index, client_id))
            return batch_generator(order, client_id)

        monkeypatch.setattr("gdpfed.clients.works.update.batch_generator", noted)
        monkeypatch.setattr(client_update, "local_update", standing_still)
        monkeypatch.setattr(DPFedAvg, "make_plan", cached_plan)
        monkeypatch.setattr("gdpfed.audit.mechanisms.charged_groups.epsilon_after", cached_figure)
        monkeypatch.setattr(
            "gdpfed.report.run_observers.default_observers", lambda run, announce: [ModelCard(run)]
        )
        # Of ten clients six are drawn in the first two rounds, others in the second than in the first.
        monkeypatch.setattr("gdpfed.rounds.state.secret_sampling_key", lambda: bytes([KEY]) * 32)

    @property
    def agrees_ahead(self):
        return (self.kind, self.secagg) == ("flower", "")

    @property
    def left(self):
        return list(self.trained), list(self.grid.sent), len(self.grid.exchanges)

    def run(self, method, directory, *overrides, resume=False):
        self.patch.setattr("gdpfed.rounds.run.make_method", method.from_config)
        config = configured(*overrides, *([self.secagg] if self.secagg else []))
        where = {"resume": str(directory)} if resume else {"directory": str(directory)}
        config = replace(config, run=replace(config.run, **where))
        if self.kind == "flower":
            train(as_grid(self.grid), config, "test run")
        else:
            simulate(config, make_observers=lambda run, announce: [ModelCard(run)])
        return read_rounds(directory)

    def refused(self, method, directory, *overrides):
        """Run a method, check that it is refused and that nothing is sent then, and return the error."""
        at_refusal = []
        for name in ("charge", "expect"):
            asked = getattr(Ledger, name)

            def noted(*each, asked=asked):
                try:
                    return asked(*each)
                except PrivacyError as error:
                    at_refusal.append((str(error), self.left))
                    raise

            self.patch.setattr(Ledger, name, noted)
        with pytest.raises(PrivacyError) as raised:
            self.run(method, directory, *overrides)
        ((text, left),) = at_refusal
        assert str(raised.value) == text
        assert left == self.left
        return text


KEY = 16


@pytest.fixture(params=FLEETS)
def workplace(request, monkeypatch):
    return Workplace(request.param, monkeypatch)


def ledger_in(directory):
    return json.loads((directory / "ledger.json").read_text())


@pytest.mark.parametrize("method", ROGUES, ids=lambda method: method.__name__)
def test_it_is_refused_in_one_line_before_anything_leaves(tmp_path, workplace, method):
    directory = tmp_path / "run"
    text = workplace.refused(method, directory)
    assert "\n" not in text
    assert re.match(f"method dp_fedavg, {ROGUES[method]}", text), text
    assert [record.round for record in read_rounds(directory)] == [1]
    ledger = ledger_in(directory)
    assert (ledger["charged_rounds"], ledger["charges"][0][0]["count"]) == (2, 2)
    assert audit_run(directory).findings == ()


@pytest.mark.parametrize(("method", "rounds"), [(NotDrawn, [0, 2]), (TwiceInTurn, [0, 1, 2])])
def test_a_round_that_ended_so_is_not_repeated(tmp_path, workplace, method, rounds):
    workplace.refused(method, tmp_path / "run")
    records = workplace.run(DPFedAvg, tmp_path / "run", resume=True)
    assert [record.failures for record in records] == [{}, {"round": INTERRUPTED}, {}]
    assert ledger_in(tmp_path / "run")["charged_rounds"] == 3
    asked = Counter(workplace.trained)
    assert sorted({index for index, _ in asked}) == rounds
    assert set(asked.values()) == {1}
    assert audit_run(tmp_path / "run").findings == ()


@pytest.mark.parametrize("method", AHEAD, ids=lambda method: method.__name__)
def test_keys_are_agreed_ahead_for_what_the_plan_has_only(tmp_path, workplace, method):
    """Where keys are agreed ahead, a request with undrawn clients or too large a norm is refused."""
    if workplace.agrees_ahead:
        assert re.match(f"method dp_fedavg, {AHEAD[method]}", workplace.refused(method, tmp_path / "run"))
        assert workplace.trained == []
        assert ledger_in(tmp_path / "run")["charged_rounds"] == 1
    else:
        assert len(workplace.run(method, tmp_path / "run")) == 3


class LastMinute(DPFedAvg):
    """Method that names no requests before a round, so that clients cannot agree on keys ahead."""

    def requests_ahead(self, theta, round_index, draw):
        return []


@pytest.mark.parametrize("method", [DPFedAvg, LastMinute])
def test_cohorts_are_drawn_when_they_are_needed(tmp_path, monkeypatch, workplace, method):
    drawn = []

    def noted(plan, index, key):
        drawn.append(index)
        return draw_cohorts(plan, index, key)

    monkeypatch.setattr("gdpfed.rounds.loop.draw_cohorts", noted)
    workplace.run(method, tmp_path / "run")
    ahead = workplace.agrees_ahead and method is DPFedAvg
    assert drawn == ([0, 1, 1, 2, 2] if ahead else [0, 1, 2])


class ChangesTheDraw(DPFedAvg):
    def round(self, theta, round_index, cohorts, sum_updates):
        cohorts[0][:] = np.arange(len(cohorts[0]))
        return super().round(theta, round_index, cohorts, sum_updates)


def test_a_cohort_cannot_be_changed(tmp_path, workplace):
    with pytest.raises(ValueError, match="read-only"):
        workplace.run(ChangesTheDraw, tmp_path / "run")
    assert workplace.trained == []


class Unpaid(DPFedAvg):
    """Method whose plan allows two sums a round, although the plan's noise protects only one."""

    @classmethod
    def make_plan(cls, config):
        plan = super().make_plan(config)
        return replace(plan, mechanism=replace(plan.mechanism, sums_per_round=2))


def test_a_plan_with_too_little_noise_ends_at_its_budget(tmp_path, workplace):
    records = workplace.run(Unpaid, tmp_path / "run")
    assert len(records) < 3
    assert all(record.spent_epsilon[0] <= 3 for record in records)
    assert len({index for index, _ in workplace.trained}) == len(records)


class Sums(Fleet):
    """Fleet (the clients of a run) that notes the names of the sums that a method asks for."""

    def __init__(self, secagg):
        super().__init__(secagg, "test")
        self.summed = []

    def sum_plain(self, sums):
        self.summed += [each.name for each in sums]
        return {}

    def exchange(self, asked):
        raise FailedError(f"{asked} although nothing is masked")


def test_a_fleet_sums_what_is_charged_and_once():
    config = configured("secagg=off")
    method = DPFedAvg.from_config(config)
    ledger, fleet = new_ledger(method), Sums(config.secagg)
    order, theta = order_of(config, task_of(config)), np.zeros(4, np.float32)
    cohort = np.arange(5)
    ledger.open_round(0, [cohort])
    (request,) = method.requests(theta, 0, [cohort])
    with pytest.raises(PrivacyError, match="a fleet sums what a ledger has charged, not a SumRequest"):
        fleet.sum_updates(order, cast("Any", [request]))
    charged = ledger.charge(0, [request])
    fleet.sum_updates(order, charged)
    with pytest.raises(PrivacyError, match="round 0: group 0 has been summed already; it was charged once"):
        fleet.sum_updates(order, charged)
    with pytest.raises(PrivacyError, match="group 0 has been summed already"):
        fleet.sum_updates(order, [*charged, *charged])
    assert fleet.summed == ["group 0"]
