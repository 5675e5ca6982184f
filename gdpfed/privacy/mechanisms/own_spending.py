"""Clients that spend what each has chosen, under noise of their own.

A client adds its noise itself, and none is there where it is not: sampling does not amplify. What it costs is
`ClientBudgets`, by the rounds that each client took part in. Whoever sees a contribution learns nothing more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf
from typing import Any, ClassVar

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.charges import Charge, event_of_round
from gdpfed.privacy.client_budgets import ClientBudgets
from gdpfed.privacy.events import Gaussian
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.mechanism import History, Mechanism, PromisedRun
from gdpfed.privacy.mechanisms.record_terms import RecordTerms, TermsOfRecords
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import ROUNDING, Release
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.privacy.validation import require_count
from gdpfed.record_steps import RecordSteps


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnSpending(Mechanism):
    """One group of clients, of which each spends its own zCDP in every round that it takes part in.

    Attributes:
        spending: what each spends, and how samples are drawn.
        clipping_norm: C, the bound on what a client noises.
    """

    kind: ClassVar[str] = "own_spending"
    keeps_turns: ClassVar[bool] = True
    adds_own_noise: ClassVar[bool] = True
    no_canaries: ClassVar[str] = "its clients add noise of their own, each as it chose"

    spending: ClientBudgets
    clipping_norm: float

    @property
    def absent_clients_count(self) -> bool:
        return self.unit == "client" and self.law.absent_clients_count

    @property
    def rule(self) -> str | None:
        return self.spending.rule

    @property
    def counts_rho(self) -> float:
        return self.spending.counts_rho

    def draw(self, m: int, group: GroupPlan, round_index: int, generator: np.random.Generator) -> ClientIds:
        spending = self.spending
        if spending.rule is not None:
            raise PrivacyError(
                f"samples of {spending.rule} follow from what clients have released; the method draws them"
            )
        size = int(spending.cohort_sizes[round_index])
        drawn = spending.law.draw(spending.draw_probabilities[round_index], size, generator)
        return np.asarray(group.clients, dtype=np.int64)[drawn]

    def most_rounds(self, m: int) -> int | None:
        return self.spending.most_rounds

    def hides_by_sampling(self, group: GroupPlan) -> bool:
        return False

    def charges(
        self, m: int, group: GroupPlan, history: History, record_group: int = 0
    ) -> tuple[Charge, ...]:
        """Return none: every client has totals of its own, in `spending`."""
        return ()

    def totals_as_charges(self, rounds: int | None) -> tuple[Charge, ...]:
        return self.spending.most_charges(self.spending.num_rounds if rounds is None else rounds, self.unit)

    def charges_of_turns(self, m: int, group: GroupPlan, turns: int) -> tuple[Charge, ...]:
        return ()

    def epsilon(
        self,
        m: int,
        group: GroupPlan,
        history: History,
        *,
        delta: float,
        accountant: Accountant,
        record_group: int = 0,
    ) -> float:
        if not history.rounds:
            return self.spending.first_epsilon(delta)
        return self.spending.most_epsilon(history.rounds, delta)

    def epsilon_of_turns(
        self, m: int, group: GroupPlan, turns: int, *, delta: float, accountant: Accountant
    ) -> float:
        return self.spending.most_expensive_epsilon(turns, delta)

    def epsilon_of_most(
        self,
        m: int,
        group: GroupPlan,
        turns: Mapping[int, Sequence[int]],
        rounds: int,
        *,
        delta: float,
        paid: Sequence[Charge] = (),
    ) -> float:
        return self.spending.largest_epsilon(turns, delta)

    def broken_rule(
        self, groups: Sequence[GroupPlan], group_of: Mapping[int, int], round_index: int, request: Release
    ) -> str:
        if len(request.records) < len(request.clients):
            return "it does not say what noise its clients add, and the plan charges each its own"
        spending = self.spending
        planned = spending.noise_multipliers(round_index, self.distance)
        for client, asked in zip(request.clients.tolist(), request.records, strict=True):
            if asked.num_steps != spending.local_steps:
                return (
                    f"client {client} is asked for {asked.num_steps} steps, and the plan charges "
                    f"{spending.local_steps}"
                )
            if max(asked.batch_rates) > spending.batch_rate * (1 + ROUNDING):
                return (
                    f"client {client} is asked for batch rates {asked.batch_rates}, and the plan's is "
                    f"{spending.batch_rate:g}"
                )
            if not asked.noise_multiplier >= planned[client] * (1 - ROUNDING):
                return (
                    f"noise multiplier {asked.noise_multiplier:.6g} of client {client} is below the plan's "
                    f"{planned[client]:.6g}"
                )
        return ""

    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> "PathTerms":
        if (self.unit, self.adjacency) != ("record", "replace_one"):
            raise PrivacyError(
                "a node with a budget of its own checks a path of full gradients, and no other local work: "
                "use method.local=full_gradient, or start nodes without budgets of their own"
            )
        if self.rule is not None:
            raise PrivacyError(
                f"a node with a budget of its own checks a path, and samples of {self.rule} follow "
                "from what clients release beside it: use another method.client_sampling, or gdpfed simulate"
            )
        return PathTerms(
            **promised.common,
            epsilon=group.epsilon,
            charges=self._path(group.clients.index(promised.client)),
            records=RecordTerms(
                num_rounds=promised.num_rounds,
                work=self.works[0],
                clipping_norm=self.clipping_norm,
                batch_rates=(1.0,),
                shares=(1.0,),
                seed=promised.seed,
            ),
            most_rounds=self.spending.most_rounds,
        )

    def _path(self, position: int) -> tuple[Charge, ...]:
        """What every round costs one client that takes part in it, under noise of its own."""
        rounds = range(self.spending.num_rounds)
        noise = [float(self.spending.noise_multipliers(t, self.distance)[position]) for t in rounds]
        return tuple(
            Charge(
                event=Gaussian(
                    noise_stddev=each * self.clipping_norm,
                    clipping_norm=self.clipping_norm,
                    adjacency="replace_one",
                ),
                count=1,
                unit="record",
            )
            for each in noise
        )

    def group_dict(self, m: int, group: GroupPlan) -> dict[str, Any]:
        return {"spending": self.spending.to_dict()}


@dataclass(frozen=True, kw_only=True)
class PathTerms(TermsOfRecords):
    """Terms of a client with a path, what it spends in each round: it pays for those it takes part in.

    `charges` are the Gaussian mechanism of each round, in their order.

    Attributes:
        most_rounds: a client takes part in no more rounds than these.
    """

    kind: ClassVar[str] = "own_spending"
    pays_by_turn: ClassVar[bool] = True

    most_rounds: int

    def _check(self) -> None:
        super()._check()
        require_count("the terms' most_rounds", self.most_rounds)
        records = self.records
        if not all(
            isinstance(each.event, Gaussian)
            and (each.event.adjacency, each.event.noise) == ("replace_one", "gaussian")
            and each.event.clipping_norm == records.clipping_norm
            and each.event.is_noisy
            for each in self.charges
        ):
            raise PrivacyError(
                "the terms' path charges something else than Gaussian noise under replace_one at their "
                "clipping norm, round by round"
            )
        if sum(each.count for each in self.charges) != records.num_rounds:
            raise PrivacyError(
                f"the terms' path is not one budget for each of their {records.num_rounds} rounds"
            )
        if (records.work, records.batch_rates, records.sums_per_round) != ("dp_sgd", (1.0,), 1):
            raise PrivacyError(
                "the terms' path is for one step of dp_sgd a round on all records, at batch rate 1"
            )

    @property
    def path(self) -> tuple[float, ...]:
        """rho_i^t of every round: 1 / (2 z^2), z noise over distance."""
        return tuple(
            1 / (2 * each.event.noise_multiplier**2)
            for each in self.charges
            for _ in range(each.count)
            if isinstance(each.event, Gaussian)
        )

    def most_expensive_rounds(self, taken: Collection[int] = (), at_most: float = inf) -> tuple[int, ...]:
        """The rounds that the client may take part in at its worst, those taken among them.

        It takes part in as many of the most expensive that are left for it as it may, or `at_most`.
        """
        path, most = self.path, min(at_most, self.most_rounds)
        left = [index for index in range(self.first_round, self.num_rounds) if index not in taken]
        left.sort(key=lambda index: -path[index])
        return (*taken, *left[: int(max(0, min(len(left), most - len(taken))))])

    def owed_noise(self, round_index: int) -> float:
        return 0.0

    def noise_of_step(self, round_index: int) -> float:
        event = event_of_round(self.charges, round_index)
        return event.noise_stddev / event.clipping_norm if isinstance(event, Gaussian) else inf

    def planned_charges(self, turns: Collection[int] = (), at_most: float = inf) -> tuple[Charge, ...]:
        return self._charges(self.most_expensive_rounds(turns, at_most))

    def spent_charges(
        self, turns: Sequence[int], other: Terms | None = None, record_group: int | None = None
    ) -> tuple[Charge, ...]:
        return self._charges(turns)

    def seen_charges(self, turns: Sequence[int], steps: int) -> tuple[Charge, ...]:
        return self._charges(turns)

    def _charges(self, rounds: Collection[int]) -> tuple[Charge, ...]:
        return tuple(
            Charge(event=event_of_round(self.charges, index), count=1, unit="record") for index in rounds
        )

    @property
    def num_steps(self) -> int:
        """The most steps that this client's records may pay for."""
        return len(self.most_expensive_rounds())

    def steps_left(self, steps: int) -> float:
        return self.num_steps - steps

    def check_steps(self, round_index: int, taken: int, num_steps: int) -> None:
        require_count(f"the steps of round {round_index} of run {self.run}", num_steps)
        if num_steps > 1:
            raise PrivacyError(
                f"round {round_index} of run {self.run} would take {num_steps} steps; a path has one a round"
            )

    def broken_own_noise(self, round_index: int, steps: RecordSteps) -> str:
        if broken := super().broken_own_noise(round_index, steps):
            return broken
        if steps.num_steps != 1:
            return f"{steps.num_steps} steps were ordered where the terms' path has one a round"
        return ""

    def in_words(self, at_most: float = inf) -> str:
        rounds, path = self.most_expensive_rounds(at_most=at_most), self.path
        return f"a path of {fsum(path[index] for index in rounds):.4g} zCDP in {len(rounds)} rounds"


def planned_spending(plan: PrivacyPlan) -> ClientBudgets:
    """Return what each client of a plan spends; TypeError for a plan in which clients choose nothing."""
    return plan.made_by(OwnSpending).spending
