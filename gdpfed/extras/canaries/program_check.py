"""The result of checking simulated runs against their privacy plan, or why a check was not possible."""

from collections.abc import Sequence
from dataclasses import dataclass

# What a check would find, it finds in so many of a hundred runs of the measurement.
POWER = 0.95


@dataclass(frozen=True, kw_only=True)
class ProgramCheck:
    """The result of one check that compares simulated runs with their privacy plan.

    Attributes:
        looked_at: which thing, one of `CHECKS`.
        of: the group or the sums that it is about.
        measured: what was measured, in words.
        would_find: the smallest fault of this kind that so much data finds, nearly always.
        num_values: how many values were compared.
        wrong: what is not as planned; empty where all is.
    """

    looked_at: str
    of: str
    measured: str
    would_find: str
    num_values: int
    wrong: str = ""

    @property
    def held(self) -> bool:
        """Whether the check found no difference between the simulated runs and their privacy plan."""
        return not self.wrong


@dataclass(frozen=True, kw_only=True)
class NotComputed:
    """A measurement or check that could not be made, with reason and remedy.

    `view`: which one. `of`: the group or the sums that it is about. `why`: in words. `remedy`: what would
    compute it.
    """

    view: str
    of: str
    why: str
    remedy: str


Looked = Sequence[ProgramCheck | NotComputed]

NOISE, CORRELATION, KEYS = "noise", "noise over rounds", "noise twice"
CONTRIBUTIONS, TURNS, SAMPLES = "contributions", "turns", "samples"
ACCOUNTING, LONGEST = "accounting", "longest contribution"
CHECKS = (NOISE, CORRELATION, KEYS, CONTRIBUTIONS, TURNS, SAMPLES, ACCOUNTING, LONGEST)
"""Of a stream: how much noise, and what its rounds have in common; of any two sums: whether they have noise
in common; of a group: how long contributions are, whose turn it was, and who was drawn; of a loop of somebody
else: whether it states as much as its numbers cost, and whether any one unit contributes too much."""
