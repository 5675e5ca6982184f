"""Conditions under random allocation: a client is in one round of each block of rounds; it pays per block."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from gdpfed.errors import PrivacyError
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Event
from gdpfed.privacy.ledgers.terms_options import LimitsRounds
from gdpfed.privacy.mechanisms.sampled.terms import SumTerms


@dataclass(frozen=True, kw_only=True)
class AllocatedTerms(SumTerms, LimitsRounds):
    """Conditions for a client under random allocation; `charges` are the costs of the run's blocks of rounds.

    Every block is paid for that has a round from `first_round` on.
    """

    kind: ClassVar[str] = "allocated_sums"
    event_class: ClassVar[type[Event]] = AllocatedGaussian

    @property
    def num_rounds(self) -> int:
        return sum(charge.count * _block(charge).block_rounds for charge in self.charges)

    def event(self, round_index: int) -> AllocatedGaussian:  # type: ignore[override]
        """Return the event of the block of rounds that contains this one; raise PrivacyError if none does."""
        return self._place(round_index)[1]

    def _place(self, round_index: int) -> tuple[int, AllocatedGaussian]:
        """Return, for the block of rounds that contains this round, its first round and its event."""
        position = 0
        for charge in self.charges:
            block = _block(charge)
            rounds = charge.count * block.block_rounds
            if round_index < position + rounds:
                return round_index - (round_index - position) % block.block_rounds, block
            position += rounds
        raise PrivacyError(
            f"round {round_index} lies beyond the {position} rounds that are charged for; ask for "
            f"one of rounds 0 to {position - 1}"
        )

    def check_turn(self, taken: Sequence[int], round_index: int) -> None:
        first, block = self._place(round_index)
        rounds = range(first, first + block.block_rounds)
        before = next((each for each in taken if each in rounds and each != round_index), None)
        if before is not None:
            raise PrivacyError(
                f"round {round_index} of run {self.run} is not a round of this client: it took part in round "
                f"{before}, and a client takes part once in the rounds {rounds.start} to {rounds.stop - 1}"
            )

    def updates_in(self, round_index: int) -> int:
        return 1

    def draws(self) -> tuple[tuple[range, float, float], ...]:
        """Return each range of rounds with the client's sampling rate and the noise multiplier."""
        found, position = [], 0
        for charge in self.charges:
            block = _block(charge)
            span = range(position, position + charge.count * block.block_rounds)
            found.append((span, block.sampling_rate, block.noise_multiplier))
            position = span.stop
        return tuple(found)

    def planned_charges(self, turns: Collection[int] = (), at_most: float = inf) -> tuple[Charge, ...]:
        return begun(self.charges, self.first_round, self.num_rounds)

    def seen_charges(self, turns: Sequence[int], steps: int) -> tuple[Charge, ...]:
        return tuple(
            Charge(event=self.event(index).for_members(), count=1, unit=self.unit) for index in turns
        )

    def in_words(self, at_most: float = inf) -> str:
        blocks = sum(charge.count for charge in self.planned_charges())
        event = self.event(self.first_round)
        return (
            f"{blocks} of {self.num_rounds - self.first_round} rounds, one in each block of "
            f"{event.block_rounds} or so, with noise multiplier {event.noise_multiplier:.4g}"
        )


def _block(charge: Charge) -> AllocatedGaussian:
    if not isinstance(charge.event, AllocatedGaussian):
        raise PrivacyError(f"the terms charge {charge.event.kind}, which is not a block of rounds")
    return charge.event


def begun(blocks: Sequence[Charge], start: int, end: int) -> tuple[Charge, ...]:
    """Return the costs of all blocks that contain at least one of the rounds `start` to `end` - 1."""
    kept, position = [], 0
    for charge in blocks:
        length = _block(charge).block_rounds
        first = max(0, start - position) // length
        last = min(charge.count, -(-max(0, end - position) // length))
        if first < last:
            kept.append(Charge(event=charge.event, count=last - first, unit=charge.unit))
        position += charge.count * length
    return tuple(kept)
