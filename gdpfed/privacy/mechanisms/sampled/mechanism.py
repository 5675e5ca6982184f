"""Noised sums over sampled clients: the mechanism of methods that protect clients.

In every round clients are drawn anew, at the sampling rate of their group. The clipped updates of the drawn
clients are added, with noise for the whole sum. The accountants in `gdpfed.privacy.accountants` compute the
cost of such a round from the event `SampledGaussian`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.gaussian import server_epsilon
from gdpfed.privacy.charges import Charge, first_charges
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanism import History, Mechanism, PromisedRun
from gdpfed.privacy.mechanisms.sampled.terms import SumTerms


@dataclass(frozen=True, kw_only=True)
class SampledSums(Mechanism):
    """A mechanism that samples clients and sums their clipped updates with noise, for each group or all.

    Without privacy there is neither clipping nor noise; the event then has clipping norm 1.
    """

    kind: ClassVar[str] = "sampled_sums"
    small_cohorts_are_charged: ClassVar[bool] = True

    def hides_by_sampling(self, group: GroupPlan) -> bool:
        return any(round_range.sampling_rate < 1 for round_range in group.ranges)

    def event(self, group: GroupPlan, round_range: RoundRange) -> SampledGaussian:
        """Return the privacy event of one round for any client of the group, whether sampled or not."""
        return self.law.event(
            rate=round_range.sampling_rate,
            group_size=len(group.clients),
            noise_stddev=round_range.noise_stddev,
            clipping_norm=1.0 if math.isinf(round_range.clipping_norm) else round_range.clipping_norm,
            adjacency=self.adjacency,
            noise=self.noise,
            num_sums=self.sums_per_round,
        )

    def charges(
        self, m: int, group: GroupPlan, history: History, record_group: int = 0
    ) -> tuple[Charge, ...]:
        charges = tuple(
            Charge(event=self.event(group, round_range), count=round_range.num_rounds, unit=self.unit)
            for round_range in group.ranges
        )
        return first_charges(charges, history.rounds)

    def charges_of_turns(self, m: int, group: GroupPlan, turns: int) -> tuple[Charge, ...]:
        least = min(group.ranges, key=lambda each: each.noise_multiplier)
        if not turns:
            return ()
        return (Charge(event=self.event(group, least).for_members(), count=turns, unit=self.unit),)

    def epsilon_of_turns(
        self, m: int, group: GroupPlan, turns: int, *, delta: float, accountant: Accountant
    ) -> float:
        sigma = min(round_range.noise_multiplier for round_range in group.ranges)
        return server_epsilon(self.noise, sigma, turns * self.sums_per_round, delta, self.adjacency)

    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> SumTerms:
        return SumTerms(
            **promised.common,
            epsilon=group.epsilon,
            charges=self.charges(m, group, History(promised.num_rounds)),
        )
