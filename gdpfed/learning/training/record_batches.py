"""Poisson batches: every record is drawn on its own, by secret bits.

The amplification of DP-SGD rests on batches that nobody knows, so they do not come from a run's seed.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

RandomBytes = Callable[[int], bytes]
"""Returns that many secret, uniform bytes; each of them once."""

_WORD_BYTES = 8
_RECORDS_AT_ONCE = 2**20


class PoissonBatches:
    """Draws batches of one client's records; record j is in a batch with probability q_j, independently.

    A record is drawn where a word of 64 random bits is below q_j 2^64, rounded down: for a rate q of at least
    2^-11 the probability is q exactly, below that it is at most 2^-64 smaller.

    Args:
        rates: q of every group of records.
        groups: the group of every record, shape (n,).
    """

    def __init__(self, rates: Sequence[float], groups: npt.NDArray[np.int64]) -> None:
        self.expected_size = float(sum(np.bincount(groups, minlength=len(rates)) * np.asarray(rates)))
        most = 2**64 - 1
        self._limits = np.array([min(int(rate * 2.0**64), most) for rate in rates], dtype=np.uint64)
        self._always = np.array([rate == 1.0 for rate in rates])
        self._groups = groups

    def __len__(self) -> int:
        return len(self._groups)

    def draw(self, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
        """The next batch: positions of its records, in rising order; possibly none."""
        drawn = []
        for start in range(0, len(self), _RECORDS_AT_ONCE):
            groups = self._groups[start : start + _RECORDS_AT_ONCE]
            words = np.frombuffer(random_bytes(_WORD_BYTES * len(groups)), dtype="<u8")
            single = len(self._limits) == 1
            limits, always = (each[0] if single else each[groups] for each in (self._limits, self._always))
            drawn.append(start + np.flatnonzero((words < limits) | always))
        return np.concatenate(drawn) if drawn else np.zeros(0, dtype=np.int64)
