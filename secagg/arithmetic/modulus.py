"""How fine the noise is and how many bits a residue has, chosen so that no sum can wrap."""

import math
from dataclasses import dataclass

from secagg.arithmetic.noise_levels import NAMED_VARIANCES, NoiseLevels, noise_levels
from secagg.arithmetic.packing import FEWEST_BITS, FULL_BITS
from secagg.sum_errors import EncodingError

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
    """What members take back, in a sum, of the noise of earlier ones.

    Attributes:
        members: how many may.
        multiplier: the largest standard deviation of what one takes back, in clipping norms C.
    """

    members: int
    multiplier: float


NO_CORRECTIONS = Corrections(0, 0.0)


def fitting_levels(
    num_contributors: int,
    steps_per_s: float,
    layout: tuple[int, int, int],
    half: int,
    corrections: Corrections = NO_CORRECTIONS,
) -> NoiseLevels:
    """The finest noise that fits `half` = 2**(b - 1); layout is n', D, L of `noise_levels`."""
    for name in INTEGER_NOISE_STDDEVS:
        try:
            levels = noise_levels(name, *layout)
        except ValueError:
            continue
        if _reach(num_contributors, steps_per_s, levels, corrections) < half:
            return levels
    raise EncodingError(
        f"{num_contributors} contributors with C / noise = {steps_per_s:.3g} each do not fit "
        f"{half.bit_length()} bits: raise the noise_multiplier or modulus_bits, or sum fewer clients"
    )


def _reach(num_contributors: int, steps_per_s: float, levels: NoiseLevels, corrections: Corrections) -> float:
    """Return a bound on the sum's magnitude in a coordinate, in steps; it fails with chance < 2**-183."""
    norm = steps_per_s * math.sqrt(levels.variance(0))
    signal = num_contributors * (norm + 0.5) + corrections.members * 0.5
    taken_back = math.sqrt(corrections.members) * corrections.multiplier * norm
    return signal + NOISE_TAIL * math.hypot(levels.stddev * math.sqrt(num_contributors), taken_back)


def modulus_bits_for(
    *,
    num_clients: int,
    noise_multiplier: float,
    dropout_tolerance: int = 0,
    corrupt_tolerance: int = 0,
    most_noise_levels: int = 0,
    noise_stddev: float = INTEGER_NOISE_STDDEVS[0],
    corrections: Corrections = NO_CORRECTIONS,
) -> int:
    """b: the fewest bits a residue needs so that noise of `noise_stddev` steps cannot wrap.

    The probability of a wrap anywhere is below 2**-152 (see `NOISE_TAIL`). More contributors or
    less noise take more bits; the clipping norm cancels, for the grid is a fraction of it.

    Args:
        num_clients: n, the most contributors.
        noise_multiplier: sigma, above 0; without noise 32 bits are the finest grid.
        noise_stddev: a name in `INTEGER_NOISE_STDDEVS`; a coarser one takes fewer bits.
        corrections: what is taken back beside.

    Raises:
        EncodingError: more than 32 bits would be needed, or the numbers are impossible.
    """
    staying = num_clients - corrupt_tolerance - (0 if most_noise_levels else dropout_tolerance)
    if staying < 1 or not noise_multiplier > 0 or noise_stddev not in NAMED_VARIANCES:
        raise EncodingError(
            f"{staying} clients add noise of {noise_multiplier} in {noise_stddev} steps: "
            f"use at least 1 client, positive noise, and steps of {INTEGER_NOISE_STDDEVS}"
        )
    try:
        levels = noise_levels(noise_stddev, staying, dropout_tolerance, most_noise_levels)
    except ValueError as error:
        raise EncodingError(str(error)) from error
    reach = _reach(num_clients, math.sqrt(staying) / noise_multiplier, levels, corrections)
    bits = max(FEWEST_BITS, math.floor(reach).bit_length() + 1)
    if bits > FULL_BITS:
        raise EncodingError(f"{num_clients} clients need {bits} bits: use coarser noise than {noise_stddev}")
    return bits
