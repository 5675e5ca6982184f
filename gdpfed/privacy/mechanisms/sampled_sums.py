"""Sums over sampled clients under Gaussian noise: the mechanism of client-level methods.

Every client is drawn at the rate of its group, anew in every round; its clipped update goes into one sum with
noise for the whole sum. The proof is that of `gdpfed.privacy.accountants` for `SampledGaussian`.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import ClassVar

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.gaussian import server_epsilon
from gdpfed.privacy.charges import Charge, event_of_round, first_charges
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.ledgers.terms import Instructions, Terms
from gdpfed.privacy.mechanism import History, Mechanism, PromisedRun
from gdpfed.privacy.release import ROUNDING


@dataclass(frozen=True, kw_only=True)
class SampledSums(Mechanism):
    """Sample clients, sum clipped updates, add noise; one sum a group or one for all.

    Without privacy a round is a sum without noise, in units of the unknown bound.
    """

    kind: ClassVar[str] = "sampled_sums"
    small_cohorts_are_charged: ClassVar[bool] = True

    def hides_by_sampling(self, group: GroupPlan) -> bool:
        return any(round_range.sampling_rate < 1 for round_range in group.ranges)

    def event(self, group: GroupPlan, round_range: RoundRange) -> SampledGaussian:
        """Return what a round costs a client of a group, as a sum over its cohort."""
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

    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> "SumTerms":
        return SumTerms(
            **promised.common,
            epsilon=group.epsilon,
            charges=self.charges(m, group, History(promised.num_rounds)),
        )


@dataclass(frozen=True, kw_only=True)
class SumTerms(Terms):
    """Terms about a client: `charges` are what all rounds of the run cost, in order.

    A run is charged in full when it begins, from the round on in which the client came: sampling hides a
    client only if the rounds that it is not drawn in count as well.
    """

    kind: ClassVar[str] = "sampled_sums"

    @property
    def num_rounds(self) -> int:
        return sum(charge.count for charge in self.charges)

    def event(self, round_index: int) -> SampledGaussian:
        """Return what one round releases; PrivacyError for another kind of event or no such round."""
        event = event_of_round(self.charges, round_index)
        if not isinstance(event, SampledGaussian):
            raise PrivacyError(
                f"the terms' round {round_index} is {event.kind}, which is not a sum over a cohort"
            )
        return event

    def updates_in(self, round_index: int) -> int:
        return self.event(round_index).num_sums

    def draws(self) -> tuple[tuple[range, float, float], ...]:
        """A node sees how often it is asked, and compares that with the rates: nothing else shows them."""
        ends = [*accumulate(charge.count for charge in self.charges)]
        return tuple(
            (range(end - charge.count, end), charge.event.sampling_rate, charge.event.noise_multiplier)
            for end, charge in zip(ends, self.charges, strict=True)
            if isinstance(charge.event, SampledGaussian)
        )

    def owed_noise(self, round_index: int) -> float:
        return self.event(round_index).noise_stddev

    def planned_charges(self, turns: Collection[int] = (), at_most: float = inf) -> tuple[Charge, ...]:
        return first_charges(self.charges, self.num_rounds, skipped=self.first_round)

    def spent_charges(
        self, turns: Sequence[int], other: Terms | None = None, record_group: int | None = None
    ) -> tuple[Charge, ...]:
        return self.planned_charges()

    def seen_charges(self, turns: Sequence[int], steps: int) -> tuple[Charge, ...]:
        return tuple(
            Charge(event=replace(self.event(index), num_sums=1).for_members(), count=count, unit=self.unit)
            for index, count in Counter(turns).items()
        )

    def broken_by(self, round_index: int, told: Instructions, sum_norm: float) -> str:
        event = self.event(round_index)
        norm = min(told.clipping_norm, sum_norm)
        if norm > event.clipping_norm * (1 + ROUNDING):
            return f"clipping norm {norm:.6g} is above the {event.clipping_norm:.6g} of the terms"
        if told.noise != event.noise:
            return f"{told.noise} noise was ordered where the terms say {event.noise}"
        # Whatever a client sends of norm C costs the same: an update, or shares of its held-out records.
        if told.work not in ("update", "held_out_rates"):
            return f"{told.work} was ordered, which the terms do not charge"
        return ""

    def in_words(self, at_most: float = inf) -> str:
        event = self.event(self.first_round)
        return (
            f"{self.num_rounds - self.first_round} rounds at rate {event.sampling_rate:.4g} with noise "
            f"multiplier {event.noise_multiplier:.4g}"
        )
