"""An update that a session masks without holding it, since it lies elsewhere, such as in a GPU's memory."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class NoisePart(NamedTuple):
    """A part of a client's noise: `factor` times `discrete_gaussian.sample(d, integer_stddev, key)`."""

    integer_stddev: float
    factor: int
    key: bytes


class HeldVector(Protocol):
    """A client's update in integer steps, and noise of the caller's own if any, in memory elsewhere.

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
        """Add noise and masks, and return the residues as packed bytes, as `arithmetic.packing.pack` would.

        All of it or nothing: a vector that lacks a mask is never returned, whatever fails. Copies of the keys
        are erased before this returns or raises.

        Args:
            parts: noise that the session draws, to be added.
            masks: as of `crypto.prg.add_masks`, all to be added modulo 2**32.
            suite: the stream cipher of the masks.
            bits: of a packed residue.
        """
        ...
