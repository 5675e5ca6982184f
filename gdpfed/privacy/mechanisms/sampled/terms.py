"""The conditions of a run with sampled clients: a client pays for every round, whether drawn or not."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import ClassVar

from gdpfed.errors import PrivacyError
from gdpfed.privacy.charges import Charge, event_of_round, first_charges
from gdpfed.privacy.events import Event, SampledGaussian
from gdpfed.privacy.ledgers.terms import Instructions, Terms
from gdpfed.privacy.ledgers.terms_options import SampledTerms
from gdpfed.privacy.release import ROUNDING
from gdpfed.record_steps import kind_of


@dataclass(frozen=True, kw_only=True)
class SumTerms(Terms, SampledTerms):
    """The conditions of a run for a sampled client; `charges` are the costs of all rounds, in order.

    A run is charged in full when it begins, from the round on in which the client came: sampling hides a
    client only if the rounds that it is not drawn in count as well.
    """

    kind: ClassVar[str] = "sampled_sums"
    event_class: ClassVar[type[Event]] = SampledGaussian
    """Of what all charges are: another event would be paid for, and never asked for."""

    def _check(self) -> None:
        super()._check()
        if not all(isinstance(charge.event, self.event_class) for charge in self.charges):
            raise PrivacyError(f"the terms of {self.kind} charge something else than {self.event_class.kind}")

    @property
    def num_rounds(self) -> int:
        return sum(charge.count for charge in self.charges)

    def event(self, round_index: int) -> SampledGaussian:
        """Return the privacy event of a round; raise PrivacyError for a round that the run does not have."""
        event = event_of_round(self.charges, round_index)
        if not isinstance(event, SampledGaussian):
            raise PrivacyError(
                f"the terms' round {round_index} is {event.kind}, which is not a sum over a cohort"
            )
        return event

    def updates_in(self, round_index: int) -> int:
        return self.event(round_index).num_sums

    def draws(self) -> tuple[tuple[range, float, float], ...]:
        """Return each range of rounds with the sampling rate that is charged and the noise multiplier."""
        ends = [*accumulate(charge.count for charge in self.charges)]
        drawn = []
        for end, charge in zip(ends, self.charges, strict=True):
            event = charge.event
            if isinstance(event, SampledGaussian):
                # A cohort of fixed size is a whole number of clients.
                fixed = event.sampling == "fixed_size"
                rate = event.cohort_size / event.group_size if fixed else event.sampling_rate
                drawn.append((range(end - charge.count, end), rate, event.noise_multiplier))
        return tuple(drawn)

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
        if not norm <= event.clipping_norm * (1 + ROUNDING):
            return f"clipping norm {norm:.6g} is above the {event.clipping_norm:.6g} of the terms"
        if told.noise != event.noise:
            return f"the server asks for {told.noise} noise where the terms say {event.noise}"
        # Whatever a client sends of norm C costs the same: an update, or shares of its held-out records.
        kind = kind_of(told.work)
        if kind.on_records or kind.own_noise or kind.once:
            return f"the server asks for {told.work}, which the terms do not charge"
        return ""

    def in_words(self, at_most: float = inf) -> str:
        event = self.event(self.first_round)
        return (
            f"{self.num_rounds - self.first_round} rounds at rate {event.sampling_rate:.4g} with noise "
            f"multiplier {event.noise_multiplier:.4g}"
        )
