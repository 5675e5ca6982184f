"""Checks the size of a decoded sum: rejects a sum that is larger than honest members could produce.

Let n be the number of contributions, C_i their clipping norms, A = C_1 + .. + C_n, and d the dimension. An
honest sum is u + v. Here u is the sum of the updates, with |u| <= A, since each update has norm at most C_i
even after rounding; v is the sum of the noise.

A client's noise is independent in each coordinate, with variance s**2 in steps of the grid. Its law is

* a sum of discrete Gaussians times integers: E exp(a v) <= exp(a**2 s**2 / 2) for all a, as for a Gaussian
  (Canonne, Kamath and Steinke, NeurIPS 2020: completing the square moves a sum over the integers off its
  centre, where it is largest), and sums of independent parts keep that form; or
* a rounded Gaussian, v = g + r with |r| <= 1/2 of mean 0, since both laws are symmetric. By Hoeffding's
  lemma r has parameter 1/2, and by Hoelder's inequality v has s + 1/2, although g and r depend on each other.

m of the members may also take back noise of earlier sums: Gaussian noise of standard deviation r at most, in
the same vector as an update or alone. The parameter is then sqrt(s**2 + r**2) + 1/2, whose square is at most
(s + 1/2)**2 + (r + 1/2)**2, or r + 1/2. So v is sub-Gaussian with parameter
S = sqrt(n (s + 1/2)**2 + m (r + 1/2)**2) grid. With x = b ln 2 for b bits:

* P[some |v_j| > S sqrt(2 (ln(2 d) + x))] <= 2 d exp(-ln(2 d) - x) = 2**-b (Chernoff, and a union bound);
* P[|v|**2 > S**2 (d + 2 sqrt(d x) + 2 x)] <= exp(-x) = 2**-b (Hsu, Kakade and Zhang, Electronic
  Communications in Probability 2012, theorem 1; for Gaussians Laurent and Massart, Annals of Statistics
  2000).

So |sum| stays below A + S sqrt(d + 2 sqrt(d x) + 2 x), and each coordinate below A + S sqrt(2 (ln(2 d) + x)).
With b = 42 for each bound, an honest sum is refused with probability at most 2 * 2**-42 + 2**-80 + 2**-152 <
2**-40; 2**-80 is for the distance of the sampler from its law, and 2**-152 for a wrap. The bounds are raised
by 2**-22 of themselves for floating-point errors. Without noise both bounds are A, and an honest sum never
exceeds them. The check uses only the released sum and public numbers, so it costs no privacy.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.encoding import Encoding
from secagg.sum_errors import ImplausibleSum

FALSE_ALARM_BITS = 40
"""An honest sum is refused with probability at most 2**-40."""
_TAIL = (FALSE_ALARM_BITS + 2) * math.log(2)
_SLACK = 1 + 2.0**-22


@dataclass(frozen=True)
class SumBounds:
    """Upper limits on the size of a sum of honest members, in the unit of updates.

    `norm`: bound on the L2 norm. `coordinate`: bound on the magnitude of every coordinate. `noise_norm`:
    sqrt(d) times the standard deviation of the noise, which is near the noise's norm.
    """

    norm: float
    coordinate: float
    noise_norm: float


def sum_bounds(
    encoding: Encoding,
    num_survivors: int,
    noise_level: int,
    norms: float | None = None,
    num_correcting: int = 0,
) -> SumBounds:
    """Compute limits on a sum of honest members' clipped updates and noise; infinite without clipping.

    Args:
        encoding: the sum's grid, with the noise of one client.
        num_survivors: the number of updates in the sum.
        noise_level: the last level of noise that stays in the sum.
        norms: A, the sum of the survivors' clipping norms; by default `num_survivors` times C.
        num_correcting: m, how many members of the sum take back earlier noise.
    """
    largest = num_survivors * encoding.clipping_norm if norms is None else norms
    if encoding.levels is None:
        return SumBounds(largest, largest, 0.0)
    d, stddev = encoding.dimension, math.sqrt(encoding.levels.variance(noise_level))
    unit = math.sqrt(num_survivors) * encoding.grid
    taken_back = math.sqrt(num_correcting) * encoding.grid * (encoding.integer_correction_stddev + 0.5)
    tail = math.hypot(unit * (stddev + 0.5), taken_back)
    return SumBounds(
        norm=largest + tail * math.sqrt(d + 2 * math.sqrt(d * _TAIL) + 2 * _TAIL),
        coordinate=largest + tail * math.sqrt(2 * (math.log(2 * d) + _TAIL)),
        noise_norm=unit * stddev * math.sqrt(d),
    )


def check_sum(
    encoding: Encoding,
    num_survivors: int,
    noise_level: int,
    total: NDArray[np.float64],
    norms: float | None = None,
    num_correcting: int = 0,
) -> None:
    """Raise ImplausibleSum for a sum larger than honest members produce, except with probability 2**-40.

    Args:
        total: float64[d], the decoded sum. The other arguments are those of `sum_bounds`.

    Raises ImplausibleSum, which names the bound, the value and the limit.
    """
    if math.isinf(encoding.clipping_norm):
        return
    bounds = sum_bounds(encoding, num_survivors, noise_level, norms, num_correcting)
    found = {"coordinate": float(max(total.max(), -total.min())), "norm": float(np.linalg.norm(total))}
    for name, value in found.items():
        limit = getattr(bounds, name) * _SLACK
        if value > limit:
            raise ImplausibleSum(name, value, limit)


def largest_undetected_push(encoding: Encoding) -> float:
    """Return how far one member can change a sum and still pass the sum's size checks half of the time.

    A push that does not depend on the noise is nearly orthogonal to it. A push of norm p thus raises the
    noise's norm N to sqrt(N**2 + p**2), so the bound on the norm allows p = sqrt(bound**2 - N**2). Spread
    over all coordinates, the push stays far below their bound. Updates of other members in the opposite
    direction allow up to (n - 1) C more, and updates in the same direction reduce it as much.
    """
    bounds = sum_bounds(encoding, encoding.num_contributors, noise_level=0)
    return math.sqrt(bounds.norm**2 - bounds.noise_norm**2)
