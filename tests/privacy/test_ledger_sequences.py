"""Test of a run's ledger: no sequence of rounds, sums, refusals, crashes and resumes takes a charge back."""

import json
from collections import Counter
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gdpfed.errors import PrivacyError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets
from gdpfed.extras.fedpcs.spending_plan import spending_plan
from gdpfed.privacy.group_plan import BUDGET_TOLERANCE
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.privacy.release import NoiseAt, Release
from gdpfed.record_steps import RecordSteps

ROUNDS = 4
CLIENTS = 6
IDS = st.integers(0, CLIENTS - 1)
OF_CLIENTS = make_plan(
    groups=groups_from_shares(CLIENTS, (1.0, 3.0)),
    num_rounds=ROUNDS,
    sampling_rate=0.5,
    clipping_norm=1.0,
    accountant="rdp",
    delta=1e-2,
    sums_per_round=2,
)
OF_RECORDS = record_plan(
    groups=groups_from_shares(CLIENTS, (1.0, 2.0)),
    num_rounds=ROUNDS,
    training=RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(3, 3, 0, 2)),
    accountant="rdp",
)
# Each client has 0.01 or 0.02 zCDP a round, for two of the four rounds.
BUDGETS = np.tile([0.01, 0.02], (ROUNDS, CLIENTS // 2))
OF_PATHS = spending_plan(
    ClientBudgets(
        budgets=BUDGETS,
        draw_probabilities=np.full_like(BUDGETS, 1 / CLIENTS),
        cohort_sizes=np.full(ROUNDS, 3),
        draws="poisson",
        most_rounds=2,
    ),
    unit="record",
    adjacency="replace_one",
    work="dp_sgd",
    clipping_norm=1.0,
    delta=1e-5,
    accountant="pld",
    sums_hidden=True,
)


def request(plan: PrivacyPlan, index: int, name: str, clients: list[int], noise: float) -> Release:
    """Return a request for a sum over these clients, with `noise` times the plan's noise."""
    told: dict[str, Any] = {"clipping_norm": 1.0, "noise_multiplier": 0.0, "noise_at": NoiseAt.NOWHERE}
    groups = [next(m for m, group in enumerate(plan.groups) if client in group.clients) for client in clients]
    mechanism: Any = plan.mechanism
    if plan.unit == "client":
        told["noise_multiplier"] = noise * max(plan.groups[m].noise_multiplier for m in groups)
        told["noise_at"] = NoiseAt.CLIENT
    else:
        own = (
            mechanism.spending.noise_multipliers(index, mechanism.distance)[clients]
            if mechanism.adds_own_noise
            else [mechanism.records[m].noise_multiplier for m in groups]
        )
        told |= {"unit": "record", "work": "dp_sgd"}
        told["records"] = [
            RecordSteps(
                num_steps=1,
                batch_rates=(1.0,) if mechanism.adds_own_noise else mechanism.records[m].batch_rates,
                clipping_norm=1.0,
                noise_multiplier=noise * float(each),
            )
            for m, each in zip(groups, own, strict=True)
        ]
    return Release(name=name, clients=np.asarray(clients, dtype=np.int64), **told)


class Run(RuleBasedStateMachine):
    """State machine of a run: its ledger, the ledger's saved copy, and the rounds and sums expected in it."""

    plan: ClassVar[PrivacyPlan]

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.plan)
        self.disk = json.dumps(self.ledger.to_dict())
        self.cohorts: list[set[int]] = []
        self.is_open = False
        self.sums = Counter[tuple[int, int]]()
        self.names = 0
        self.highest = self.ledger.spent()

    def _may_open(self, index: int, cohort: set[int]) -> bool:
        """Return whether a round may open: it is the next one, and its clients may take part in it."""
        if index != len(self.cohorts) or index >= ROUNDS:
            return False
        for m, group in enumerate(self.plan.groups):
            members, most = cohort & set(group.clients), self.plan.mechanism.most_rounds(m)
            if most is not None:
                resting = self.plan is OF_RECORDS and not group.at(index).record_steps
                taken = Counter(client for each in self.cohorts for client in each)
                if members and (resting or max(taken[i] for i in members) >= most):
                    return False
        return True

    def _open(self, index: int, cohort: set[int]) -> bool:
        """Open a round in memory, and return whether the ledger allows it; check that `_may_open` agrees."""
        cohorts = [sorted(cohort & set(group.clients)) for group in self.plan.groups]
        allowed = self._may_open(index, cohort)
        try:
            self.ledger.open_round(index, cohorts)
        except PrivacyError:
            assert not allowed
        else:
            assert allowed
        return allowed

    @rule(late=st.sampled_from((0, 0, 0, -1, 1)), cohort=st.sets(IDS))
    def open_a_round(self, late: int, cohort: set[int]) -> None:
        if self._open(max(0, len(self.cohorts) + late), cohort):
            self.disk = json.dumps(self.ledger.to_dict())
            self.cohorts.append(cohort)
            self.is_open = True

    @rule(cohort=st.sets(IDS))
    def crash_before_a_round_is_written(self, cohort: set[int]) -> None:
        """Crash after a round is opened and before it is saved: no client is charged for that round."""
        self._open(len(self.cohorts), cohort)
        self.resume()

    @rule(clients=st.lists(IDS, min_size=1, max_size=3, unique=True), noise=st.sampled_from((1.0, 1.0, 0.5)))
    def ask_for_a_sum(self, clients: list[int], noise: float) -> None:
        index, self.names = max(0, len(self.cohorts) - 1), self.names + 1
        asked = request(self.plan, index, f"sum {self.names}", clients, noise)
        allowed = (
            self.is_open
            and noise >= 1.0
            and set(clients) <= self.cohorts[index]
            and all(self.sums[index, i] < self.plan.sums_per_round for i in clients)
        )
        try:
            (charged,) = self.ledger.charge(index, [asked])
        except PrivacyError:
            assert not allowed
        else:
            assert allowed
            assert charged.take().clients.tolist() == clients
            self.sums.update((index, i) for i in clients)
            with pytest.raises(PrivacyError):
                charged.take()

    @rule()
    def resume(self) -> None:
        self.ledger = Ledger.from_dict(self.plan, json.loads(self.disk))
        self.is_open = False
        assert json.dumps(self.ledger.to_dict()) == self.disk

    @invariant()
    def every_round_is_charged_once(self) -> None:
        taken = Counter(client for each in self.cohorts for client in each)
        assert self.ledger.charged_rounds == len(self.cohorts) <= ROUNDS
        assert [self.ledger.participations(i) for i in range(CLIENTS)] == [taken[i] for i in range(CLIENTS)]

    @invariant()
    def what_is_spent_never_falls_and_stays_within_the_budget(self) -> None:
        spent = self.ledger.spent()
        for now, before, group in zip(spent, self.highest, self.plan.groups, strict=True):
            assert before <= now <= group.epsilon * (1 + BUDGET_TOLERANCE)
        if self.plan.mechanism.adds_own_noise:
            assert self.ledger.against_server() <= spent
        self.highest = spent


@pytest.mark.parametrize("plan", [OF_CLIENTS, OF_RECORDS, OF_PATHS], ids=["clients", "records", "paths"])
def test_any_sequence_is_charged_once_and_within_the_budget(plan):
    machine = type("RunOfThePlan", (Run,), {"plan": plan})
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=25))


@pytest.mark.parametrize("rounds", [[1, 0], [0, 0], [0, 2], [0], [-1, 1], "01"])
def test_rounds_that_a_client_cannot_have_taken_are_not_resumed(rounds):
    ledger = Ledger(OF_PATHS)
    for index in range(2):
        ledger.open_round(index, [[3]])
    saved = ledger.to_dict()
    assert saved["taken"] == {"3": [0, 1]}
    with pytest.raises(PrivacyError):
        Ledger.from_dict(OF_PATHS, saved | {"taken": {"3": rounds}})
