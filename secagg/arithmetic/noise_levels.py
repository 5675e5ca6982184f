"""Noise in removable parts, so that dropouts leave neither too little noise nor too much.

XNoise (Jiang et al., Dordis, EuroSys 2024): each client adds a part that always stays, and L parts
that the server takes out again when fewer clients dropped than the part stands ready for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt, sqrt

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.discrete_gaussian import sample

MAX_LEVELS = 16
FINE_STDDEV = 481.7
NAMED_VARIANCES = {
    81921.6: 512**2 * (1 + 160**2),
    20486.0: 512**2 * (1 + 40**2),
    FINE_STDDEV: 40**2 * (1 + 12**2),
}
"""The sampler's distributions by name, and their exact variance in steps**2."""
_EXCESS_DENOMINATOR = 4096


@dataclass(frozen=True)
class NoiseLevels:
    """A client's noise in one sum, in integer steps.

    Part 0 is one draw of variance `NAMED_VARIANCES[base_stddev]`. Part l >= 1 is `multipliers[l-1]`
    times a draw of the finest distribution. Up to level l they have together at least
    variance_0 (n2 - c) / (n2 - r_l - c), so n2 - r_l survivors, c of them corrupt, carry the plan's.

    Attributes:
        base_stddev: the name of part 0's distribution.
        bounds: r_0 = 0 < r_1 < ... < r_L = D; level l serves up to r_l dropped.
        multipliers: m_1 .. m_L.
    """

    base_stddev: float
    bounds: tuple[int, ...] = (0,)
    multipliers: tuple[int, ...] = ()

    def level_of(self, num_dropped: int) -> int:
        """The least level that serves so many dropped; ValueError above D."""
        for level, bound in enumerate(self.bounds):
            if num_dropped <= bound:
                return level
        raise ValueError(f"{num_dropped} dropped, at most {self.bounds[-1]} are tolerated")

    def variance(self, level: int) -> int:
        """Return the variance of a client's parts 0..level together, in steps**2; exact."""
        fine = NAMED_VARIANCES[FINE_STDDEV]
        return NAMED_VARIANCES[self.base_stddev] + sum(fine * m**2 for m in self.multipliers[:level])

    @property
    def stddev(self) -> float:
        """The standard deviation of all parts together, in steps."""
        return sqrt(self.variance(len(self.multipliers)))

    def largest_excess(self, num_noisy: int) -> Fraction:
        """How much more variance than the plan's a sum carries at most, as a part of the plan's; exact.

        It is that of the honest noise, over all numbers of dropouts up to D.

        Args:
            num_noisy: n' = n2 - c, how many add noise that counts.
        """
        planned = self.variance(0) * num_noisy
        summed = (
            self.variance(self.level_of(dropped)) * (num_noisy - dropped)
            for dropped in range(self.bounds[-1] + 1)
        )
        return Fraction(max(summed), planned) - 1

    def draw(self, part: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """Part 0..L of a client's noise, a function of the 32-byte key alone: int64[dimension]."""
        if part == 0:
            return sample(dimension, self.base_stddev, key)
        drawn = sample(dimension, FINE_STDDEV, key)
        drawn *= self.multipliers[part - 1]
        return drawn

    def parts_above(self, level: int) -> Iterator[int]:
        """Return the numbers of the parts that are taken out of the sum when `level` is enough."""
        return iter(range(level + 1, len(self.multipliers) + 1))


@lru_cache(maxsize=64)
def noise_levels(base_stddev: float, num_noisy: int, dropout_tolerance: int, most_levels: int) -> NoiseLevels:
    """At most `most_levels` levels, laid so that the largest excess is the smallest possible.

    With r_{l-1} < dropped <= r_l the sum carries at most (n' - r_{l-1} - 1) / (n' - r_l) of what
    it needs, n' = n2 - c.

    Args:
        base_stddev: a name in `NAMED_VARIANCES`, coarser than the finest when there are levels.
        num_noisy: n' = n2 - c, how many add noise that counts.
        dropout_tolerance: D, below n'.
        most_levels: L.

    Raises:
        ValueError: levels on the finest distribution, for which no finer part exists.
    """
    if not most_levels:
        return NoiseLevels(base_stddev)
    if base_stddev == FINE_STDDEV:
        raise ValueError("noise in levels needs more bits: noise of 481.7 steps has no finer part")
    bounds = _bounds(num_noisy, dropout_tolerance, most_levels)
    base, fine = NAMED_VARIANCES[base_stddev], NAMED_VARIANCES[FINE_STDDEV]
    multipliers: list[int] = []
    reached = base
    for bound in bounds[1:]:
        missing = Fraction(base * num_noisy, num_noisy - bound) - reached
        squares = max(1, -(-missing // fine))
        multipliers.append(isqrt(squares - 1) + 1)
        reached += fine * multipliers[-1] ** 2
    return NoiseLevels(base_stddev, bounds, tuple(multipliers))


def _bounds(num_noisy: int, most: int, levels: int) -> tuple[int, ...]:
    """0 = r_0 < ... < r_L = most with the least excess, by bisection in exact integers."""
    low, high = 0, _EXCESS_DENOMINATOR * num_noisy
    while low < high:
        middle = (low + high) // 2
        if len(_greedy(num_noisy, most, middle)) <= levels + 1:
            high = middle
        else:
            low = middle + 1
    return _greedy(num_noisy, most, low)


def _greedy(num_noisy: int, most: int, excess: int) -> tuple[int, ...]:
    """Each bound as far as an excess of excess / 4096 allows."""
    bounds = [0]
    while bounds[-1] < most:
        most_noisy = (num_noisy - bounds[-1] - 1) * _EXCESS_DENOMINATOR
        fewest_noisy = -(-most_noisy // (_EXCESS_DENOMINATOR + excess))
        bounds.append(min(most, num_noisy - fewest_noisy))
    return tuple(bounds)
