"""Tests of scheduled runs: a node charges its budget for each round in which it sends an update (a turn)."""

from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from math import sqrt
from random import Random
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
from gdpfed.privacy.ledgers.client import MOST_FREE, ClientLedger
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.mechanisms.scheduled.planner import make_scheduled_plan
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_stream
from gdpfed.privacy.planning.groups import Group
from secagg import SumParameters
from tests.federation.node import test_budget_sequences

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


def epsilon(total, delta=DELTA):
    return gaussian_epsilon(1 / sqrt(total), delta) if total else 0.0


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


ALL = mu2(0, 2, 4)
SLACK = 1e-6
"""Of budgets, for what two computations of one epsilon differ by."""


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
    assert "above the budget of 2 that it had when run b began, which a later raise does not" in caplog.text
    assert audit_node_ledger(own.ledger).passed


@pytest.mark.parametrize("confirmed", [False, True])
def test_an_older_run_does_not_spend_what_a_later_run_promised_less_of(tmp_path, confirmed, caplog):
    """Runs begin under much and then under less: raised again, the first does not exceed the second's."""
    high = Budget((epsilon(2 * ALL) + SLACK,), DELTA, tmp_path / "ledger.json")
    low = replace(high, epsilons=(epsilon(ALL) + SLACK,))
    budget.begin({"client": high}, terms("a"))
    budget.begin({"client": low}, terms("b"))
    for index in (0, 2, 4):
        send({"client": low}, "b", index)
    again = replace(high, raised_from=low.epsilon if confirmed else 0.0)
    if confirmed:
        budget.begin({"client": again}, terms("c"))
    with pytest.raises(PrivacyError, match="one more round does not fit this client's own budget"):
        send({"client": again}, "a", 0)
    assert f"at delta 1e-05, above the budget of {low.epsilon:g} that it had when run b began" in caplog.text
    for index in (0, 2, 4) if confirmed else ():
        send({"client": again}, "c", index)
    assert spent({"client": high}) == pytest.approx(epsilon((1 + confirmed) * ALL))
    assert audit_node_ledger(high.ledger).passed


@pytest.mark.parametrize("lowered", [{"epsilons": (1.2,)}, {"delta": 1e-9}])
def test_a_lowered_budget_holds_for_the_runs_that_are_open(tmp_path, lowered, caplog):
    own = Budget((epsilon(ALL) + SLACK,), DELTA, tmp_path / "ledger.json")
    budget.begin({"client": own}, terms("a"))
    send({"client": own}, "a", 0)
    with pytest.raises(PrivacyError, match="one more round does not fit this client's own budget"):
        send({"client": replace(own, **lowered)}, "a", 2)
    assert "which was lowered: raise it, or let this run end" in caplog.text
    send({"client": own}, "a", 2)


def test_a_run_that_no_turn_is_left_for_is_refused_when_it_is_resumed(tmp_path, caplog):
    low = Budget((epsilon(ALL) + SLACK,), DELTA, tmp_path / "ledger.json")
    for name in "ab":
        budget.begin({"client": low}, terms(name))
    for index in (0, 2, 4):
        send({"client": low}, "a", index)
    for own in (low, replace(low, epsilons=(6.0,), raised_from=low.epsilon)):
        for step in (budget.consider, budget.begin):
            with pytest.raises(PrivacyError, match="this run does not fit this client's own budget"):
                step({"client": own}, terms("b"))
    assert "above the budget of 2 that it had when run b began" in caplog.text


def test_epsilon_and_delta_of_a_budget_are_one_promise(tmp_path):
    """With more epsilon at less delta than before, a run takes the turns that fit both budgets."""
    before = Budget((epsilon(ALL) + SLACK,), DELTA, tmp_path / "ledger.json")
    now = replace(before, epsilons=(epsilon(ALL, 1e-7) + SLACK,), delta=1e-7)
    budget.begin({"client": before}, terms("a"))
    for index in (0, 2, 4):
        send({"client": now}, "a", index)
    assert audit_node_ledger(now.ledger).passed


def test_a_run_without_a_turn_leaves_another_its_own_proof(tmp_path):
    """Node and audit agree that a run which has cost nothing makes no sequence of another."""
    sums = replace(test_budget_sequences.CLIENT, run="sums")
    high = Budget((2.5,), DELTA, tmp_path / "ledger.json")
    budget.begin({"client": high}, terms("a"))
    cost = ClientLedger().epsilon(DELTA, also=sums)
    budget.begin({"client": replace(high, epsilons=(cost * 1.001,))}, sums)
    assert audit_node_ledger(high.ledger).passed


def keeps_all(
    begun: dict[str, tuple[Budget, tuple[int, ...]]], own: Budget, name: str, turns: tuple[int, ...]
) -> bool:
    """Whether budgets hold if run `name` had these turns: the present one, and of each run, up to it."""
    taken = begun | {name: (begun[name][0], turns)}
    totals = list(accumulate(mu2(*each) for _, each in taken.values()))
    promised = [*zip(totals, (each for each, _ in taken.values()), strict=True), (totals[-1], own)]
    return all(epsilon(total, each.delta) <= each.epsilon for total, each in promised)


# The last three find a node that counts a run's own budget and the present one alone.
@pytest.mark.parametrize("seed", [*range(8), 33, 49, 58])
def test_any_order_of_raises_and_lowers_keeps_every_budget(tmp_path, seed):
    """A node takes exactly the turns that keep all its promises, and resumes what has turns left."""
    random = Random(seed)
    own = Budget((epsilon(4 * ALL) + SLACK,), DELTA, tmp_path / "ledger.json")
    begun: dict[str, tuple[Budget, tuple[int, ...]]] = {"0": (own, ())}
    budget.begin({"client": own}, terms("0"))
    for step in range(1, 30):
        action = random.choice(("turn", "turn", "new", "resume", "change", "change"))
        name = str(step) if action == "new" else random.choice([*begun])
        taken = begun[name][1] if name in begun else ()
        left = range(taken[-1] + 2 if taken else 0, ROUNDS)
        if action == "change":
            last, delta = [*begun.values()][-1][0], random.choice((DELTA, 1e-7))
            number = epsilon(random.choice((1.4, 2.0, 4.0)) * ALL, delta) + SLACK
            raised = last.epsilon if number > last.epsilon else last.delta
            own = replace(own, epsilons=(number,), delta=delta, raised_from=random.choice((0.0, raised)))
        elif action != "turn":
            with suppress(PrivacyError):
                budget.begin({"client": own}, terms(name))
                begun.setdefault(name, (own, ()))
                assert keeps_all(begun, own, name, (*taken, *left[::2][: 3 - len(taken)]))
        elif left:
            turns = (*taken, random.choice(left))
            if keeps_all(begun, own, name, turns):
                send({"client": own}, name, turns[-1])
                begun[name] = begun[name][0], turns
            else:
                with pytest.raises(PrivacyError, match="one more round does not fit"):
                    send({"client": own}, name, turns[-1])
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
