"""Exact epsilon and noise of one Gaussian release without sampling.

Balle and Wang, arXiv:1805.06530, Theorem 8: with noise sigma over the distance of neighbours

    delta(epsilon) = Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma)
"""

import math
from collections.abc import Callable
from functools import lru_cache

from gdpfed.late_import import late_import

optimize = late_import("scipy.optimize")
special = late_import("scipy.special")

TOLERANCE = 1e-13
NO_NOISE = 1e-150
"""Below it, epsilon is beyond what a number can hold."""
SMALLEST_SHARE = 1e-300
"""What a difference of two probabilities is taken for that rounding makes nothing."""


@lru_cache(maxsize=1024)
def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Return epsilon at delta; 0 where delta alone covers the release, inf without noise.

    Args:
        sigma: the noise over the distance of neighbours, from 0 to inf.
        delta: in (0, 1].
    """
    if sigma < NO_NOISE:
        return math.inf if delta < 1 else 0.0
    if sigma == math.inf or _log_delta(sigma, 0.0) <= math.log(delta):
        return 0.0
    return _crossing(lambda epsilon: _log_delta(sigma, epsilon) - math.log(delta))


@lru_cache(maxsize=1024)
def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Return the least noise over the distance of neighbours at (epsilon, delta); 0 where none is needed.

    Args:
        epsilon: at least 0; inf needs no noise.
        delta: in (0, 1].
    """
    if epsilon == math.inf or delta == 1:
        return 0.0
    return _crossing(lambda sigma: _log_delta(sigma, epsilon) - math.log(delta))


def _log_delta(sigma: float, epsilon: float) -> float:
    half, shift = 1 / (2 * sigma), epsilon * sigma
    with_unit = float(special.log_ndtr(half - shift))
    if with_unit == -math.inf:
        return with_unit
    without = epsilon + float(special.log_ndtr(-half - shift))
    return with_unit + math.log(max(-math.expm1(min(without - with_unit, 0.0)), SMALLEST_SHARE))


def _crossing(excess: Callable[[float], float]) -> float:
    """The positive number at which a falling function, above 0 near 0, is 0."""
    low = high = 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    while excess(low) <= 0:
        low, high = low / 2, low
    return float(optimize.brentq(excess, low, high, xtol=TOLERANCE * low, rtol=TOLERANCE))
