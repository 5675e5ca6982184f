"""Noise in several parts, some of which the server removes after a sum; and the bits that a sum needs.

XNoise (Jiang et al., Dordis, EuroSys 2024): each client adds a part that always stays, and L parts
that the server takes out again when fewer clients dropped than the part stands ready for.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt, sqrt

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.discrete_gaussian import sample
from secagg.arithmetic.packing import FEWEST_BITS, FULL_BITS
from secagg.sum_errors import EncodingError

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
    """One client's noise in a sum, split into parts that the server can remove, in integer steps.

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
        """Return the lowest noise level for this many dropouts; raise ValueError if none suffices."""
        for level, bound in enumerate(self.bounds):
            if num_dropped <= bound:
                return level
        raise ValueError(f"{num_dropped} dropped, at most {self.bounds[-1]} are tolerated")

    def variance(self, level: int) -> int:
        """Return the exact variance of noise parts 0 to `level` of a client together, in steps**2."""
        fine = NAMED_VARIANCES[FINE_STDDEV]
        return NAMED_VARIANCES[self.base_stddev] + sum(fine * m**2 for m in self.multipliers[:level])

    @property
    def stddev(self) -> float:
        """The standard deviation of one client's noise with all its removable parts, in steps."""
        return sqrt(self.variance(len(self.multipliers)))

    def largest_excess(self, num_noisy: int) -> Fraction:
        """Return how much a sum's noise variance may exceed the planned one, as an exact fraction.

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

    def law(self, part: int) -> tuple[float, int]:
        """Return how part 0..L of a client's noise is drawn: the distribution's name, and a factor."""
        return (FINE_STDDEV, self.multipliers[part - 1]) if part else (self.base_stddev, 1)

    def draw(self, part: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """Draw part 0..L of a client's noise from a 32-byte key alone: int64[dimension]."""
        stddev, factor = self.law(part)
        drawn = sample(dimension, stddev, key)
        if factor != 1:
            drawn *= factor
        return drawn

    def parts_above(self, level: int) -> Iterator[int]:
        """Yield the numbers of the noise parts that the server removes if `level` suffices."""
        return iter(range(level + 1, len(self.multipliers) + 1))


@lru_cache(maxsize=64)
def noise_levels(base_stddev: float, num_noisy: int, dropout_tolerance: int, most_levels: int) -> NoiseLevels:
    """Divide noise that may be removed into levels, so that a sum exceeds the plan as little as possible.

    There are at most `most_levels`.

    With r_{l-1} < dropped <= r_l the sum carries at most (n' - r_{l-1} - 1) / (n' - r_l) of what it needs, n'
    = n2 - c. `base_stddev`: a name in `NAMED_VARIANCES`, coarser than the finest when there are levels.
    `num_noisy`: n' = n2 - c, how many add noise that counts. `dropout_tolerance`: D, below n'. `most_levels`:
    L. Raises EncodingError: levels on the finest distribution, for which no finer part exists.
    """
    if not most_levels:
        return NoiseLevels(base_stddev)
    if base_stddev == FINE_STDDEV:
        raise EncodingError(
            "noise in levels needs more bits: noise of 481.7 steps has no finer part: raise modulus_bits"
        )
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
    """Choose the number of dropouts that each noise level serves, with the least surplus noise.

    They are 0 = r_0 < ... < r_L = most.
    """
    low, high = 0, _EXCESS_DENOMINATOR * num_noisy
    while low < high:
        middle = (low + high) // 2
        if len(_greedy(num_noisy, most, middle)) <= levels + 1:
            high = middle
        else:
            low = middle + 1
    return _greedy(num_noisy, most, low)


def _greedy(num_noisy: int, most: int, excess: int) -> tuple[int, ...]:
    """Choose each noise level's number of dropouts in turn, as large as a bound on surplus noise allows.

    The bound is excess / 4096 more variance than is planned.
    """
    bounds = [0]
    while bounds[-1] < most:
        most_noisy = (num_noisy - bounds[-1] - 1) * _EXCESS_DENOMINATOR
        fewest_noisy = -(-most_noisy // (_EXCESS_DENOMINATOR + excess))
        bounds.append(min(most, num_noisy - fewest_noisy))
    return tuple(bounds)


INTEGER_NOISE_STDDEVS = tuple(NAMED_VARIANCES)
"""Names of the choices of s, finest first: 512 sqrt(1 + 160**2), 512 sqrt(1 + 40**2), 40 sqrt(1 + 12**2).

Each is what z1 + k z2 has when both come from one table of discrete Gaussians of 512 (or 40)
steps, so that an exact sampler can draw it (Micciancio and Walter, CRYPTO 2017). The names round
these numbers; the grid is made from the exact ones, so that the noise never falls short.
"""
NOISE_TAIL = 16.0
"""How many standard deviations of the summed noise fit below the wrap.

The summed noise has standard deviation s sqrt(n2) steps. It leaves +-16 of them with probability
at most 2 exp(-16**2 / 2) < 2**-183 a coordinate, so over d < 2**31 coordinates below 2**-152.
"""


@dataclass(frozen=True)
class Corrections:
    """How many members may subtract earlier noise in a sum, and how much of it at most.

    Attributes:
        members: how many may.
        multiplier: the largest standard deviation of what one takes back, in clipping norms C.
    """

    members: int
    multiplier: float


NO_CORRECTIONS = Corrections(0, 0.0)


@dataclass(frozen=True)
class Contributors:
    """The members that send an update to a sum and add its noise, and how many of them may drop out.

    Attributes:
        number: n2, how many they are.
        dropout_tolerance: D, how many of them may vanish before the sum.
        corrupt_tolerance: c, how many may collude; their noise counts for nothing.
        most_noise_levels: L, in how many levels noise beyond the plan's is taken out again.
        corrections: what members take back of earlier sums' noise beside.

    Raises EncodingError: nobody would be left to add noise.
    """

    number: int
    dropout_tolerance: int = 0
    corrupt_tolerance: int = 0
    most_noise_levels: int = 0
    corrections: Corrections = NO_CORRECTIONS

    def __post_init__(self) -> None:
        if self.noisy < 1:
            raise EncodingError(
                f"{self.number} contributors less {self.dropout_tolerance} dropouts less "
                f"{self.corrupt_tolerance} corrupt leave {self.noisy}: at least 1 must add noise"
            )

    @property
    def noisy(self) -> int:
        """The smallest number of members whose noise is in the sum and unknown to colluders.

        It is n2 - D - c.
        """
        return self.number - self.dropout_tolerance - self.corrupt_tolerance

    @property
    def staying(self) -> int:
        """The number of members among whom the permanent noise is divided.

        It is n' = n2 - c with noise levels, and n2 - D - c without.

        It is n' of the other formulas.
        """
        return self.noisy + (self.dropout_tolerance if self.most_noise_levels else 0)

    def norm_in_noise(self, noise_multiplier: float) -> float:
        """Return the clipping norm in standard deviations of one client's permanent noise.

        It is sqrt(n') / sigma.
        """
        return math.sqrt(self.staying) / noise_multiplier

    def levels(self, base_stddev: float) -> NoiseLevels:
        """Return a client's noise levels, given the standard deviation of the permanent part 0."""
        return noise_levels(base_stddev, self.staying, self.dropout_tolerance, self.most_noise_levels)

    def fitting_levels(self, noise_multiplier: float, half: int) -> NoiseLevels:
        """Return the noise with the finest integer steps that keep a sum below `half`, half the modulus."""
        for name in INTEGER_NOISE_STDDEVS:
            try:
                levels = self.levels(name)
            except EncodingError:
                continue
            if self._reach(noise_multiplier, levels) < half:
                return levels
        raise EncodingError(
            f"{self.number} contributors with C / noise = {self.norm_in_noise(noise_multiplier):.3g} each do "
            f"not fit {half.bit_length()} bits: raise the noise_multiplier or modulus_bits, or sum fewer "
            "clients"
        )

    def modulus_bits(self, noise_multiplier: float, noise_stddev: float = INTEGER_NOISE_STDDEVS[0]) -> int:
        """Return the smallest number of bits b with which a sum modulo 2**b does not wrap around.

        The probability of a wrap anywhere is below 2**-152 (see `NOISE_TAIL`). More contributors or less
        noise take more bits; the clipping norm cancels, for the grid is a fraction of it. `noise_multiplier`:
        sigma, above 0; without noise 32 bits are the finest grid. `noise_stddev`: a name in
        `INTEGER_NOISE_STDDEVS`; a coarser one takes fewer bits. Raises EncodingError: more than 32 bits would
        be needed, or the numbers are impossible.
        """
        if not noise_multiplier > 0 or noise_stddev not in NAMED_VARIANCES:
            raise EncodingError(
                f"noise of {noise_multiplier} in {noise_stddev} steps: use positive noise, and steps of "
                f"{INTEGER_NOISE_STDDEVS}"
            )
        reach = self._reach(noise_multiplier, self.levels(noise_stddev))
        bits = max(FEWEST_BITS, math.floor(reach).bit_length() + 1)
        if bits > FULL_BITS:
            raise EncodingError(
                f"{self.number} clients need {bits} bits: use coarser noise than {noise_stddev}"
            )
        return bits

    def _reach(self, noise_multiplier: float, levels: NoiseLevels) -> float:
        """Return a bound on the sum's coordinates, in steps, that noise exceeds with probability 2**-183."""
        norm = self.norm_in_noise(noise_multiplier) * math.sqrt(levels.variance(0))
        correcting = self.corrections.members
        signal = self.number * (norm + 0.5) + correcting * 0.5
        taken_back = math.sqrt(correcting) * self.corrections.multiplier * norm
        return signal + NOISE_TAIL * math.hypot(levels.stddev * math.sqrt(self.number), taken_back)
