"""An update that stays in memory elsewhere, such as a GPU's, and is masked there."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class NoisePart(NamedTuple):
    """One part of a client's noise: `factor` times a discrete Gaussian drawn from a key."""

    integer_stddev: float
    factor: int
    key: bytes


class HeldVector(Protocol):
    """A quantised update (integers) in other memory, such as a GPU's; it may contain noise already.

    Attributes:
        dimension: d.
        noise_squared_norm: |z|**2 of the noise that is in it, in steps**2; None where there is none in it.
    """

    @property
    def dimension(self) -> int: ...

    @property
    def noise_squared_norm(self) -> float | None: ...

    def masked(
        self, parts: Sequence[NoisePart], masks: Sequence[tuple[bytes, int]], suite: str, bits: int
    ) -> memoryview:
        """Add noise and masks to the update, in the memory that holds it; return the sum as packed integers.

        All of it or nothing: a vector that lacks a mask is never returned, whatever fails. Copies of the keys
        are erased before this returns or raises.

        Args:
            parts: noise that the session draws, to be added.
            masks: as of `crypto.prg.add_masks`, all to be added modulo 2**32.
            suite: the stream cipher of the masks.
            bits: of a packed residue.
        """
        ...
