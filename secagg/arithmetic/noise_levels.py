"""Noise that clients add in parts, of which the server can remove surplus ones; how many bits sums need.

XNoise (Jiang et al., Dordis, EuroSys 2024): each client adds one part of noise that always stays, and L
further parts. Each further part is meant for a larger number of dropouts; if fewer clients dropped out, the
server removes that part again.
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
"""The exact variance, in steps**2, of each distribution of the sampler, by the distribution's name."""
_EXCESS_DENOMINATOR = 4096


@dataclass(frozen=True)
class NoiseLevels:
    """One client's noise in a sum, split into parts that the server can remove, in integer steps.

    Part 0 is one draw of variance `NAMED_VARIANCES[base_stddev]`. Part l >= 1 is `multipliers[l-1]` times a
    draw from `FINE_STDDEV`. The variance of parts 0 to l together is at least
    variance_0 (n2 - c) / (n2 - r_l - c). So n2 - r_l survivors carry the planned noise, even without the
    noise of c corrupt ones.

    Attributes:
        base_stddev: the name of part 0's distribution.
        bounds: r_0 = 0 < r_1 < ... < r_L = D; level l suffices for up to r_l dropouts.
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
        """Return the exact total variance of a client's noise parts 0 to `level`, in squared grid steps."""
        fine = NAMED_VARIANCES[FINE_STDDEV]
        return NAMED_VARIANCES[self.base_stddev] + sum(fine * m**2 for m in self.multipliers[:level])

    @property
    def stddev(self) -> float:
        """The standard deviation of one client's noise with all its removable parts, in steps."""
        return sqrt(self.variance(len(self.multipliers)))

    def largest_excess(self, num_noisy: int) -> Fraction:
        """Return how much a sum's noise variance may exceed the planned one, as an exact fraction.

        It is the largest excess for any number of dropouts up to D, counting only the noise of `num_noisy`:
        n' = n2 - c, the members whose noise counts.
        """
        planned = self.variance(0) * num_noisy
        summed = (
            self.variance(self.level_of(dropped)) * (num_noisy - dropped)
            for dropped in range(self.bounds[-1] + 1)
        )
        return Fraction(max(summed), planned) - 1

    def law(self, part: int) -> tuple[float, int]:
        """Return a noise part's standard deviation before scaling, and the integer that scales its draws."""
        return (FINE_STDDEV, self.multipliers[part - 1]) if part else (self.base_stddev, 1)

    def draw(self, part: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """Draw noise part number `part`, 0..L, of a client from a 32-byte key alone: int64[dimension]."""
        stddev, factor = self.law(part)
        drawn = sample(dimension, stddev, key)
        if factor != 1:
            drawn *= factor
        return drawn

    def parts_above(self, level: int) -> Iterator[int]:
        """Yield the numbers of the noise parts above `level`, which the server removes after the sum."""
        return iter(range(level + 1, len(self.multipliers) + 1))


@lru_cache(maxsize=64)
def noise_levels(base_stddev: float, num_noisy: int, dropout_tolerance: int, most_levels: int) -> NoiseLevels:
    """Divide removable noise into levels that keep the surplus noise in a sum as small as possible.

    With r_{l-1} < dropouts <= r_l the noise variance of the sum is, but for rounding, at most
    (n' - r_{l-1} - 1) / (n' - r_l) times the planned one. `base_stddev`: a name in `NAMED_VARIANCES`; with
    levels any but `FINE_STDDEV`. `num_noisy`: n' = n2 - c, the number of members whose noise counts.
    `dropout_tolerance`: D, below n'. `most_levels`: L, the largest number of levels. Raises EncodingError for
    levels with `FINE_STDDEV`, since there is no finer part.
    """
    if not most_levels:
        return NoiseLevels(base_stddev)
    if base_stddev == FINE_STDDEV:
        raise EncodingError(
            "noise in levels needs more bits: noise of 481.7 steps has no finer part: raise modulus_bits"
        )
    # For each level the most dropouts that it covers, so that surplus noise is smallest: 0 = r_0 < ... < r_L.
    low, high = 0, _EXCESS_DENOMINATOR * num_noisy
    while low < high:
        middle = (low + high) // 2
        if len(_greedy(num_noisy, dropout_tolerance, middle)) <= most_levels + 1:
            high = middle
        else:
            low = middle + 1
    bounds = _greedy(num_noisy, dropout_tolerance, low)
    base, fine = NAMED_VARIANCES[base_stddev], NAMED_VARIANCES[FINE_STDDEV]
    multipliers: list[int] = []
    reached = base
    for bound in bounds[1:]:
        missing = Fraction(base * num_noisy, num_noisy - bound) - reached
        squares = max(1, -(-missing // fine))
        multipliers.append(isqrt(squares - 1) + 1)
        reached += fine * multipliers[-1] ** 2
    return NoiseLevels(base_stddev, bounds, tuple(multipliers))


def _greedy(num_noisy: int, most: int, excess: int) -> tuple[int, ...]:
    """Return the largest number of dropouts that each noise level covers; `excess` limits the surplus noise.

    The surplus variance is at most excess / 4096 of the planned variance.
    """
    bounds = [0]
    while bounds[-1] < most:
        most_noisy = (num_noisy - bounds[-1] - 1) * _EXCESS_DENOMINATOR
        fewest_noisy = -(-most_noisy // (_EXCESS_DENOMINATOR + excess))
        bounds.append(min(most, num_noisy - fewest_noisy))
    return tuple(bounds)


INTEGER_NOISE_STDDEVS = tuple(NAMED_VARIANCES)
"""The choices of s, finest grid first: 512 sqrt(1 + 160**2), 512 sqrt(1 + 40**2), 40 sqrt(1 + 12**2).

Each is the standard deviation of z1 + k z2 for discrete Gaussians z1 and z2 of 512 (or 40) steps, which one
table holds; so an exact sampler can draw it (Micciancio and Walter, CRYPTO 2017). The names are rounded. The
grid follows from the exact values, so that the noise is never too small.
"""
NOISE_TAIL = 16.0
"""How many standard deviations of the summed noise fit into the integers without a wrap.

The summed noise has standard deviation s sqrt(n2) steps. It is beyond 16 of them with probability at most
2 exp(-16**2 / 2) < 2**-183 in one coordinate, so below 2**-152 in any of d < 2**31 coordinates.
"""


@dataclass(frozen=True)
class Corrections:
    """How many members may subtract noise that they added to earlier sums, and how much each at most.

    Attributes:
        members: how many members may subtract.
        multiplier: the largest standard deviation of what one member subtracts, in clipping norms C.
    """

    members: int
    multiplier: float


NO_CORRECTIONS = Corrections(0, 0.0)


@dataclass(frozen=True)
class Contributors:
    """The members that send an update to a sum and add its noise, and how many of them may drop out.

    Attributes:
        number: n2, the number of these members.
        dropout_tolerance: D, how many of them may drop out before the sum.
        corrupt_tolerance: c, how many may collude; their noise does not count.
        most_noise_levels: L, the largest number of levels of surplus noise.
        corrections: how much earlier noise members may subtract in the sum.

    Raises EncodingError if no member would be left whose noise counts.
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
        """The fewest members whose noise colluders do not know: n2 in all less D dropouts and c colluders."""
        return self.number - self.dropout_tolerance - self.corrupt_tolerance

    @property
    def staying(self) -> int:
        """n', the number of members whose base noise, which is never removed, adds up to the planned noise.

        It is n2 - c with noise levels, and n2 - D - c without.
        """
        return self.noisy + (self.dropout_tolerance if self.most_noise_levels else 0)

    def norm_in_noise(self, noise_multiplier: float) -> float:
        """Return sqrt(n') / sigma: clipping norm over the stddev of client noise that is never removed."""
        return math.sqrt(self.staying) / noise_multiplier

    def levels(self, base_stddev: float) -> NoiseLevels:
        """Return a client's noise levels; `base_stddev`: stddev of the part that is never removed."""
        return noise_levels(base_stddev, self.staying, self.dropout_tolerance, self.most_noise_levels)

    def fitting_levels(self, noise_multiplier: float, half: int) -> NoiseLevels:
        """Return the noise levels with the finest steps for which a sum stays below half of the modulus."""
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

        The probability of a wrap in any coordinate is below 2**-152 (see `NOISE_TAIL`). More contributors or
        less noise need more bits; the clipping norm has no influence, since the grid is a fraction of it.
        `noise_multiplier`: sigma, above 0. `noise_stddev`: a name in `INTEGER_NOISE_STDDEVS`; a coarser grid
        needs fewer bits. Raises EncodingError if the sum needs more than 32 bits, or for impossible numbers.
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
        """Return a limit, in steps, that a coordinate of the sum exceeds with probability below 2**-183."""
        norm = self.norm_in_noise(noise_multiplier) * math.sqrt(levels.variance(0))
        correcting = self.corrections.members
        signal = self.number * (norm + 0.5) + correcting * 0.5
        taken_back = math.sqrt(correcting) * self.corrections.multiplier * norm
        return signal + NOISE_TAIL * math.hypot(levels.stddev * math.sqrt(self.number), taken_back)
