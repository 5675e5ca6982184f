"""Tests that no random sequence of runs, rounds, refusals and crashes exceeds a node's budget."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gdpfed.clients.messages import RoundOfRun
from gdpfed.errors import PrivacyError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets, epsilon_of_total
from gdpfed.extras.fedpcs.spending_plan import spending_plan
from gdpfed.federation.node import budget
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_file import NodeFile
from gdpfed.federation.node.own_budget import Budget, Budgets
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.mechanisms.scheduled.planner import make_scheduled_plan
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_stream
from gdpfed.privacy.planning.groups import Group, groups_from_shares
from gdpfed.record_steps import RecordSteps
from secagg import SumParameters
from testing.local_grid import Crash

DELTA = 1e-5
ROUNDS = 3
RUNS = st.sampled_from(("a", "b", "c"))
INDICES = st.integers(0, ROUNDS)
NOISES = st.sampled_from((1.0, 1.0, 0.9))
STEPS = st.integers(1, 3)
NO_TOLERANCE: Any = {"dropout_tolerance": 0.0, "corrupt_tolerance": 0.0}
GROUPS = groups_from_shares(4, (1.0,))
OF_CLIENTS = make_plan(groups=GROUPS, num_rounds=ROUNDS, sampling_rate=1.0, clipping_norm=1.0, delta=DELTA)
OF_RECORDS = record_plan(
    groups=GROUPS,
    num_rounds=ROUNDS,
    training=RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(2, 1, 2), noise_multiplier=1.0),
    delta=DELTA,
)
BUDGETS = np.tile([[0.01], [0.03], [0.02]], (1, 3))
OF_PATHS = spending_plan(
    ClientBudgets(
        budgets=BUDGETS,
        draw_probabilities=np.full_like(BUDGETS, 1 / 3),
        cohort_sizes=np.full(ROUNDS, 2),
        draws="poisson",
        most_rounds=2,
    ),
    unit="record",
    adjacency="replace_one",
    work="dp_sgd",
    clipping_norm=1.0,
    delta=DELTA,
    accountant="pld",
    sums_hidden=True,
)


CLIENT = terms_of(OF_CLIENTS, 0, "run", **NO_TOLERANCE)
RECORD = terms_of(OF_RECORDS, 0, "run", **NO_TOLERANCE)
PATH = terms_of(OF_PATHS, 0, "run", client=1, **NO_TOLERANCE)
# Runs by name, and a budget that is enough for one or two of them and not for all.
NODES = {
    "clients": ({"a": CLIENT, "b": CLIENT, "c": CLIENT}, 1.5),
    "records": ({"a": RECORD, "b": RECORD, "c": RECORD}, 1.5),
    "paths": ({"a": PATH, "b": PATH, "c": PATH}, epsilon_of_total(0.065, DELTA)),
    "records and paths": ({"a": RECORD, "b": PATH, "c": RECORD}, 1.5),
}


def asked(terms: Any, index: int, noise: float, steps: int) -> tuple[SumParameters, Any]:
    """Return the sum parameters and training instruction that the terms demand, with noise times `noise`."""
    norm, multiplier, records = inf, 0.0, None
    if terms.unit == "client":
        event = terms.event(index)
        norm, multiplier = event.clipping_norm, noise * event.noise_multiplier
    else:
        records = RecordSteps(
            num_steps=steps,
            batch_rates=terms.records.batch_rates,
            clipping_norm=terms.records.clipping_norm,
            noise_multiplier=noise * terms.noise_of_step(index),
        )
    parameters = SumParameters(
        label="test",
        num_clients=6,
        threshold=3,
        dropout_tolerance=0,
        dimension=10,
        clipping_norm=norm,
        noise_multiplier=multiplier,
    )
    work = "update" if records is None else "dp_sgd"
    order = SimpleNamespace(
        fills=False,
        may_fill=False,
        **{"work": work, "noise": "gaussian", "weight": 1.0, "clipping_norm": norm},
        **{"records": records, "announced": "", "taps": ()},
    )
    return parameters, order


class Node(RuleBasedStateMachine):
    """A state machine of a node's budget, which counts in `sent` the updates that were charged."""

    runs: ClassVar[dict[str, Terms]]
    epsilon: ClassVar[float]
    folder: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.unit = self.runs["a"].unit
        ledger = Path(mkdtemp(dir=self.folder)) / "ledger.json"
        self.budgets = {self.unit: Budget(epsilons=(self.epsilon,), delta=DELTA, ledger=ledger)}
        self.begun = set[str]()
        self.sent = Counter[tuple[str, int]]()
        self.spent, self.seen = 0.0, 0.0

    def _terms(self, run: str, first_round: int = 0) -> Terms:
        return replace(self.runs[run], run=run, first_round=first_round)

    def _charge(self, run: str, index: int, noise: float, steps: int) -> bool:
        parameters, order = asked(self.runs[run], min(index, ROUNDS - 1), noise, steps)
        try:
            budget.charge(self.budgets, RoundOfRun(run, index), parameters, order)
        except (PrivacyError, Crash):
            return False
        return True

    @rule(run=RUNS, first_round=st.sampled_from((0, 0, 1, 2)))
    def begin_a_run(self, run: str, first_round: int) -> None:
        terms = self._terms(run, first_round)
        with suppress(PrivacyError):
            budget.consider(self.budgets, terms)
            budget.begin(self.budgets, terms)
            self.begun.add(run)

    @rule(rounds=st.lists(st.tuples(RUNS, INDICES), min_size=1, max_size=6), noise=NOISES, steps=STEPS)
    def be_asked_for_updates(self, rounds: list[tuple[str, int]], noise: float, steps: int) -> None:
        for run, index in rounds:
            if self._charge(run, index, noise, steps):
                assert run in self.begun
                assert index < ROUNDS
                assert noise >= 1.0
                self.sent[run, index] += 1

    @rule(run=RUNS, index=INDICES, steps=STEPS)
    def crash_after_a_round_is_written(self, run: str, index: int, steps: int) -> None:
        """Charge a round and send nothing, as in a crash: the charge stays."""
        if self._charge(run, index, 1.0, steps):
            self.sent[run, index] += 1

    @rule(run=RUNS, index=INDICES, steps=STEPS)
    def crash_before_a_round_is_written(self, run: str, index: int, steps: int) -> None:
        with patch.object(NodeFile, "write", side_effect=Crash):
            assert not self._charge(run, index, 1.0, steps)

    @rule(run=RUNS)
    def crash_before_a_run_is_written(self, run: str) -> None:
        with patch.object(NodeFile, "write", side_effect=Crash), suppress(PrivacyError, Crash):
            budget.begin(self.budgets, self._terms(run))

    @invariant()
    def no_round_is_charged_twice(self) -> None:
        assert not self.sent or max(self.sent.values()) == 1
        with locked_ledger(self.budgets[self.unit].ledger) as file:
            runs = file.ledger.runs
        assert {each.terms.run for each in runs} == self.begun
        assert {(each.terms.run, index) for each in runs for index in each.rounds} == set(self.sent)

    @invariant()
    def what_is_spent_never_falls_and_stays_within_the_budget(self) -> None:
        with locked_ledger(self.budgets[self.unit].ledger) as file:
            spent = file.ledger.epsilon(DELTA, unit=self.unit)
            seen = file.ledger.epsilon_against_server(DELTA, unit=self.unit)
        assert self.spent <= spent <= self.epsilon
        assert self.seen <= seen
        self.spent, self.seen = spent, seen


@pytest.fixture(params=NODES)
def machine(request, tmp_path):
    runs, epsilon = NODES[request.param]
    return type("NodeOfTheseRuns", (Node,), {"runs": runs, "epsilon": epsilon, "folder": tmp_path})


def test_any_sequence_stays_within_the_budget(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=20))


def test_the_budgets_here_bind(machine):
    """The budgets of this module are so small that a node refuses some of its runs or rounds."""
    node = machine()
    for run in node.runs:
        node.begin_a_run(run, 0)
    node.be_asked_for_updates([(run, index) for run in node.runs for index in range(ROUNDS)], 1.0, 1)
    assert 0 < len(node.sent) < 2 * ROUNDS + 1
    node.what_is_spent_never_falls_and_stays_within_the_budget()
    assert node.spent > 0.6 * node.epsilon


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_a_client_clips_to_no_more_than_the_terms_say(factor, tmp_path):
    """A node accepts the clipping norm of its terms, and refuses a larger one."""
    budgets: Budgets = {"client": Budget(epsilons=(1.5,), delta=DELTA, ledger=tmp_path / "ledger.json")}
    budget.begin(budgets, CLIENT)
    parameters, order = asked(CLIENT, 0, 1.0, 1)
    longer, order.clipping_norm = replace(parameters, clipping_norm=factor), factor
    if factor > 1:
        with pytest.raises(PrivacyError, match="above the 1 of the terms"):
            budget.charge(budgets, RoundOfRun("run", 0), longer, order)
    else:
        budget.charge(budgets, RoundOfRun("run", 0), longer, order)
    with locked_ledger(tmp_path / "ledger.json") as file:
        assert file.ledger.run("run").rounds == [0] * (factor == 1)


def test_a_client_takes_part_in_as_many_rounds_as_it_wants_and_no_more(tmp_path):
    ledger = tmp_path / "ledger.json"
    own: Budgets = {"client": Budget(epsilons=(1.5,), delta=DELTA, ledger=ledger, max_participations=2)}
    budget.begin(own, CLIENT)
    for index in (0, 2):
        budget.charge(own, RoundOfRun("run", index), *asked(CLIENT, index, 1.0, 1))
    with pytest.raises(PrivacyError, match="takes part in 2 rounds of a run at most"):
        budget.charge(own, RoundOfRun("run", 1), *asked(CLIENT, 1, 1.0, 1))
    apart: Budgets = {"client": replace(own["client"], max_participations=inf, min_separation=2)}
    with pytest.raises(PrivacyError, match="2 apart at least .min-separation., and it took part in one 1"):
        budget.charge(apart, RoundOfRun("run", 1), *asked(CLIENT, 1, 1.0, 1))


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        ({"max_participations": 2}, "2 rounds of a run at most .max-participations., and this run asks for"),
        ({"min_separation": 3}, "are 3 apart at least .min-separation., and in this run they are 2 apart"),
    ],
)
def test_a_run_whose_turns_break_the_clients_own_limits_is_refused_before_it_begins(limits, match, tmp_path):
    least = Budget(epsilons=(2.0,), delta=DELTA, ledger=tmp_path / "ledger.json", max_participations=3)
    own: Budgets = {"client": replace(least, **limits)}
    turn_budget = TurnBudget(
        groups=(Group(2.0, range(6)),), num_rounds=6, sampling_rate=0.5, delta=DELTA, clipping_norm=1.0
    )
    plan = make_scheduled_plan(turn_budget, plan_stream(turn_budget, turns=(3,)))
    terms = terms_of(plan, 0, "run", **NO_TOLERANCE)
    for step in (budget.consider, budget.begin):
        with pytest.raises(PrivacyError, match=match):
            step(own, terms)
    budget.begin({"client": replace(least, min_separation=2)}, terms)


@pytest.mark.parametrize("corrupt", [2, 3])
def test_a_sum_stands_as_many_corrupt_members_as_the_terms_say(corrupt, tmp_path):
    """If the terms tolerate one half of corrupt members, a sum of six members must tolerate three."""
    own: Budgets = {"client": Budget(epsilons=(1.5,), delta=DELTA, ledger=tmp_path / "ledger.json")}
    budget.begin(own, replace(CLIENT, corrupt_tolerance=0.5))
    parameters, order = asked(CLIENT, 0, 1.0, 1)
    parameters = replace(parameters, threshold=4, corrupt_tolerance=corrupt)
    if corrupt < 3:
        with pytest.raises(PrivacyError, match="a tolerance of 2 corrupt members is below 3"):
            budget.charge(own, RoundOfRun("run", 0), parameters, order)
    else:
        budget.charge(own, RoundOfRun("run", 0), parameters, order)
