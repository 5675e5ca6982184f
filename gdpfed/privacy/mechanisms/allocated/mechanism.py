"""Random allocation: each client takes part once in every block of rounds, in a secret round.

A group's k blocks follow each other and fill the run; their lengths differ by one round at most, the longer
ones come first. In each, a client draws one round, uniformly and independently of all others. So it takes
part exactly k times. What a block costs is in `gdpfed.privacy.allocation`, with proofs in docs/privacy.md. A
block is charged in full when its first round begins: what its first rounds release follows from what all of
it releases.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanism import History, PromisedRun
from gdpfed.privacy.mechanism_options import DrawsAhead
from gdpfed.privacy.mechanisms.allocated.terms import AllocatedTerms, begun
from gdpfed.privacy.mechanisms.sampled.mechanism import SampledSums
from gdpfed.privacy.sampling.laws import ClientIds


@dataclass(frozen=True, kw_only=True)
class AllocatedSums(SampledSums, DrawsAhead):
    """Noised sums in which each client takes part in one round, drawn in secret, of every block of rounds."""

    kind: ClassVar[str] = "allocated_sums"

    def drawn_at(self, group: GroupPlan, round_index: int) -> int:
        position = 0
        for each in group.ranges:
            if round_index < position + each.num_rounds:
                return round_index - (round_index - position) % block_rounds(each)
            position += each.num_rounds
        group.at(round_index)  # refuses a round beyond the plan
        return round_index

    def draw(self, m: int, group: GroupPlan, round_index: int, generator: np.random.Generator) -> ClientIds:
        """Return the ids (int64, ascending) of a group's clients that take part in this round of a block."""
        length = block_rounds(group.at(round_index))
        rounds = generator.integers(length, size=len(group.clients))
        chosen = np.flatnonzero(rounds == round_index - self.drawn_at(group, round_index))
        return np.sort(np.asarray(group.clients, dtype=np.int64)[chosen])

    def charges(
        self, m: int, group: GroupPlan, history: History, record_group: int = 0
    ) -> tuple[Charge, ...]:
        return begun(charges_of_blocks(group.ranges), 0, history.rounds)

    def charges_of_turns(self, m: int, group: GroupPlan, turns: int) -> tuple[Charge, ...]:
        least = min(group.ranges, key=lambda each: each.noise_multiplier)
        (block,) = charges_of_blocks((least,))
        return (Charge(event=block.event.for_members(), count=turns, unit=self.unit),) if turns else ()

    def terms(self, m: int, group: GroupPlan, promised: PromisedRun) -> AllocatedTerms:
        charges = charges_of_blocks(group.ranges)
        return AllocatedTerms(**promised.common, epsilon=group.epsilon, charges=charges)


def block_rounds(round_range: RoundRange) -> int:
    """Return b, the number of rounds in a block; a client takes part in exactly one of them."""
    return round(1 / round_range.sampling_rate)


def charges_of_blocks(ranges: tuple[RoundRange, ...]) -> tuple[Charge, ...]:
    """Return the privacy cost of all blocks of rounds of a group: one charge for each length of block."""
    return tuple(
        Charge(
            event=AllocatedGaussian(
                block_rounds=block_rounds(each),
                noise_stddev=each.noise_stddev,
                clipping_norm=each.clipping_norm,
            ),
            count=each.num_rounds // block_rounds(each),
        )
        for each in ranges
    )
