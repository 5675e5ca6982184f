"""The DP mechanism in which each client spends the budget that it chose, by noise that it adds itself.

A client adds its noise itself, and none is there where it is not: sampling does not amplify. What it costs is
`ClientBudgets`, by the rounds that each client took part in. Whoever sees a contribution learns nothing more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets
from gdpfed.extras.fedpcs.path_terms import PathTerms
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.mechanism import History, Mechanism, PromisedRun
from gdpfed.privacy.mechanism_options import OwnTotals
from gdpfed.privacy.mechanisms.records.terms import RecordTerms
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import ROUNDING, Release
from gdpfed.privacy.sampling.laws import ClientIds


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnSpending(Mechanism, OwnTotals):
    """One group of clients, each of which spends its chosen zCDP in every round it takes part in.

    Attributes:
        spending: what each spends, and how samples are drawn.
        clipping_norm: C, the bound on what a client noises.
    """

    kind: ClassVar[str] = "own_spending"
    adds_own_noise: ClassVar[bool] = True
    no_canaries: ClassVar[str] = "its clients add noise of their own, each as it chose"

    spending: ClientBudgets
    clipping_norm: float

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
                f"cohorts of {spending.rule} follow from what clients have released: let the method draw them"
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
        """Return no privacy costs for the group, since `spending` has the total cost of each client."""
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
            if not max(asked.batch_rates) <= spending.batch_rate * (1 + ROUNDING):
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

    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> PathTerms:
        if (self.unit, self.adjacency) != ("record", "replace_one"):
            raise PrivacyError(
                "a node with a budget of its own can check budgets by round for full gradients alone: use "
                "method.local=full_gradient, or start nodes without budgets of their own"
            )
        if self.rule is not None:
            raise PrivacyError(
                f"a node with a budget of its own cannot check samples of {self.rule}, which follow from "
                "what clients have released: use another method.client_sampling, or gdpfed simulate"
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
        """Return one client's privacy cost in each round, from the noise that the client adds."""
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


def planned_spending(plan: PrivacyPlan) -> ClientBudgets:
    """Return what each client of a plan spends; raise TypeError if clients do not choose their budgets."""
    return plan.made_by(OwnSpending).spending
