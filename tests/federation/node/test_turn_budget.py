"""Tests of scheduled runs: a node charges its budget for each round in which it sends an update (a turn)."""

from dataclasses import replace
from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.clients.messages import RoundOfRun
from gdpfed.errors import PrivacyError
from gdpfed.federation.node import budget
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budget, Budgets
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.ledgers.client import MOST_FREE
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.mechanisms.scheduled.planner import make_scheduled_plan
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_stream
from gdpfed.privacy.planning.groups import Group
from secagg import SumParameters

ROUNDS, DELTA = 6, 1e-5
ASKED = TurnBudget(
    groups=(Group(2.0, range(6)),), num_rounds=ROUNDS, sampling_rate=0.5, delta=DELTA, clipping_norm=1.0
)
PLAN = make_scheduled_plan(ASKED, plan_stream(ASKED, turns=(3,)))
GROUP, TAPS = PLAN.groups[0], taps_of(PLAN.mechanism, 0)


def terms(run):
    return terms_of(PLAN, 0, run, dropout_tolerance=0.0, corrupt_tolerance=0.0)


def mu2(*turns):
    """Return the squared Gaussian-DP parameter mu for updates in these rounds, by a matrix inversion."""
    rows = np.linalg.inv(
        np.eye(ROUNDS) - sum(tap * np.eye(ROUNDS, k=-lag) for lag, tap in enumerate(TAPS, start=1))
    )[:, list(turns)]
    return float(np.sum(rows.sum(axis=1) ** 2)) * (GROUP.clipping_norm / GROUP.noise_stddev) ** 2


def epsilon(total):
    return gaussian_epsilon(1 / sqrt(total), DELTA)


def send(own: Budgets, run: str, index: int, noise: float = 1.0) -> None:
    parameters = SumParameters(
        label="test",
        num_clients=6,
        threshold=4,
        dropout_tolerance=0,
        dimension=10,
        clipping_norm=GROUP.clipping_norm,
        noise_multiplier=noise * GROUP.noise_stddev / GROUP.clipping_norm,
    )
    order: Any = SimpleNamespace(
        fills=False,
        may_fill=False,
        **{"work": "update", "noise": "gaussian", "weight": 1.0, "clipping_norm": GROUP.clipping_norm},
        **{"records": None, "announced": "", "taps": TAPS},
    )
    budget.charge(own, RoundOfRun(run, index), parameters, order)


def spent(own: Budgets) -> float:
    with locked_ledger(own["client"].ledger) as file:
        return file.ledger.epsilon(DELTA)


def test_turns_cost_their_marginals_and_a_run_that_ends_early_those_that_were(tmp_path):
    assert len(TAPS) == 1
    assert TAPS[0] > 0
    own: Budgets = {"client": Budget((epsilon(2 * mu2(0, 2, 4)) + 1e-6,), DELTA, tmp_path / "ledger.json")}
    budget.begin(own, terms("a"))
    assert spent(own) == 0.0
    paid = []
    for turns in [(1,), (1, 3)]:
        send(own, "a", turns[-1])
        paid.append(mu2(*turns))
        assert spent(own) == pytest.approx(epsilon(paid[-1]))
    # A later turn costs what it adds, which is more than by itself: old noise is known from its own turns.
    assert paid[1] - paid[0] > mu2(3)
    # Run a ends here. What it may still have cost leaves room for another, and mu^2 adds up.
    budget.begin(own, terms("b"))
    for index in (0, 2, 4):
        send(own, "b", index)
    assert spent(own) == pytest.approx(epsilon(mu2(1, 3) + mu2(0, 2, 4)))
    # Run a goes on after all, and its third turn is within the budget.
    send(own, "a", 5)
    assert spent(own) == pytest.approx(epsilon(mu2(1, 3, 5) + mu2(0, 2, 4)))


def test_a_turn_that_the_runs_beside_it_leave_no_budget_for_is_refused(tmp_path):
    own: Budgets = {
        "client": Budget((epsilon(mu2(0, 2, 4) + mu2(0, 2)) + 1e-6,), DELTA, tmp_path / "ledger.json")
    }
    for run in ("a", "b"):
        budget.begin(own, terms(run))
    for index in (0, 2):
        send(own, "a", index)
        send(own, "b", index)
    before = spent(own)
    send(own, "a", 4)
    with pytest.raises(PrivacyError, match="one more round does not fit this client's own budget"):
        send(own, "b", 4)
    with pytest.raises(PrivacyError, match="this run does not fit this client's own budget"):
        budget.consider(own, terms("c"))
    assert before < spent(own) <= own["client"].epsilon


@pytest.mark.parametrize("raised", [{"epsilons": (6.0,)}, {"delta": 1e-2}])
def test_turns_of_a_run_are_paid_from_the_budget_under_which_it_began(tmp_path, raised, caplog):
    """A raised budget pays only for runs that begin after the raise."""
    own = Budget((epsilon(mu2(0, 2, 4)) + 1e-6,), DELTA, tmp_path / "ledger.json")
    for name in "ab":
        budget.begin({"client": own}, terms(name))
    for index in (0, 2, 4):
        send({"client": own}, "a", index)
    for later in (own, replace(own, **raised)):
        with pytest.raises(PrivacyError, match="one more round does not fit this client's own budget"):
            send({"client": later}, "b", 0)
    assert "when this run began" in caplog.text
    assert audit_node_ledger(own.ledger).passed


def test_a_node_refuses_by_itself_what_its_turns_do_not_pay_for(tmp_path):
    own: Budgets = {"client": Budget((2.0,), DELTA, tmp_path / "ledger.json")}
    budget.begin(own, terms("a"))
    with pytest.raises(PrivacyError, match="noise of standard deviation .* is below .* against the terms"):
        send(own, "a", 0, noise=0.99)
    send(own, "a", 0)
    for index, match in [(0, "had its update already"), (1, "turn 1 rounds away"), (6, "beyond the 6")]:
        with pytest.raises(PrivacyError, match=match):
            send(own, "a", index)
    more: Budgets = {"client": replace(own["client"], min_separation=4)}
    with pytest.raises(PrivacyError, match="4 apart at least .min-separation., and it took part in one 2"):
        send(more, "a", 2)
    assert spent(own) == pytest.approx(epsilon(mu2(0)))


def test_runs_that_cost_nothing_do_not_fill_the_disk(tmp_path):
    """A ledger keeps a limited number of runs without a charge, and forgets the oldest of them first."""
    ledger = tmp_path / "ledger.json"
    own: Budgets = {"client": Budget((9.0,), DELTA, ledger)}
    budget.begin(own, terms("paid"))
    send(own, "paid", 0)
    with locked_ledger(ledger) as file:
        for number in range(MOST_FREE):
            file.ledger.begin(terms(f"free {number}"), epsilons=(9.0,), delta=DELTA)
        file.save()
    budget.begin(own, terms("one more"))
    with locked_ledger(ledger) as file:
        names = [run.terms.run for run in file.ledger.runs]
        spent = file.ledger.epsilon(DELTA)
    assert names == ["paid", *(f"free {number}" for number in range(1, MOST_FREE)), "one more"]
    assert spent == pytest.approx(epsilon(mu2(0)))
    with pytest.raises(PrivacyError, match="run free 0 was never begun with this client"):
        send(own, "free 0", 0)
    budget.begin(own, terms("free 0"))
    send(own, "free 0", 0)
