"""Renyi divergences of a Gaussian release to a cohort of fixed size, drawn without replacement.

Wang, Balle, Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant",
arXiv:1808.00087, Theorem 27, for neighbours of which one unit is replaced by another:

    (a - 1) D_a <= log(1 + C(a, 2) q^2 min(4 (e^v - 1), 2 e^v) + sum_{j=3..a} C(a, j) q^j T_j)
    T_j = min(4 sqrt(B_2floor(j/2) B_2ceil(j/2)), 2 exp((j - 1) j v / 2)),    v = 1/sigma^2

B_l is the moment E[(r - 1)^l] of the likelihood ratio r = exp((2 x - 1) v / 2), x drawn from N(0, sigma^2).
It equals an alternating sum, of which rounding would leave nothing; so it is integrated, by positive terms.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import

special = late_import("scipy.special")

Floats = npt.NDArray[np.float64]

HIGHEST_WITH_MOMENTS = 256
"""Above it only the second part of T_j is taken, which is the smaller one at high orders."""
STEPS_A_SIGMA = 8
"""The integrand is a sum of normal densities: at these many points a sigma no digit is lost."""
SIGMAS_BEYOND = 12
LEAST_WITH_MOMENTS = 0.7
"""Below this noise, too: B_j > exp((j - 1) j v / 2) / 2 there."""
HIGHEST_AT_ONCE = (32, HIGHEST_WITH_MOMENTS)
"""Moments are made up to one of these orders."""


@lru_cache(maxsize=256)
def without_replacement_renyi(
    sigma: float, cohort_size: int, group_size: int, orders: tuple[float, ...]
) -> tuple[float, ...]:
    """Return the divergences of one release at these orders, which are above 1.

    Between whole orders (a - 1) D_a is convex, so that the chord is a bound (their Corollary 10).

    Args:
        sigma: the noise over the distance of two units' updates.
        cohort_size: how many are drawn.
        group_size: out of how many.
        orders: Renyi orders.
    """
    if cohort_size == group_size:
        return tuple(order / (2 * sigma**2) for order in orders)
    rate = cohort_size / group_size

    def at(order: float) -> float:
        low = math.floor(order)
        if low == order:
            return _log_moment(sigma, rate, low)
        return (low + 1 - order) * _log_moment(sigma, rate, low) + (order - low) * _log_moment(
            sigma, rate, low + 1
        )

    return tuple(at(order) / (order - 1) for order in orders)


@lru_cache(maxsize=1024)
def _log_moment(sigma: float, rate: float, order: int) -> float:
    """(a - 1) D_a at a whole order a."""
    if order == 1:
        return 0.0
    whole = np.arange(2, order + 1)
    j = whole.astype(np.float64)
    bounds = math.log(2) + (j - 1) * j / (2 * sigma**2)
    if order <= HIGHEST_WITH_MOMENTS and sigma >= LEAST_WITH_MOMENTS:
        logs = _log_even_moments(sigma, min(h for h in HIGHEST_AT_ONCE if order <= h))
        bounds = np.minimum(bounds, math.log(4) + (logs[whole // 2] + logs[(whole + 1) // 2]) / 2)
    square = 1 / sigma**2
    bounds[0] = min(math.log(4) + square + math.log(-math.expm1(-square)), math.log(2) + square)
    log_binomials = special.gammaln(order + 1) - special.gammaln(j + 1) - special.gammaln(order - j + 1)
    return float(np.logaddexp.reduce(np.concatenate([[0.0], bounds + j * math.log(rate) + log_binomials])))


@lru_cache(maxsize=64)
def _log_even_moments(sigma: float, highest: int) -> Floats:
    """log B_0, log B_2, ..., log B_highest.

    The trapezium rule over x. Where noise is small, the integrand of B_l is a bell around x = l; where it is
    large, two bells around x = -sigma sqrt(l) and x = sigma sqrt(l).
    """
    step, beyond = sigma / STEPS_A_SIGMA, (math.sqrt(highest) + SIGMAS_BEYOND) * sigma
    x = np.arange(-beyond, highest + beyond, step)
    log_densities = -((x / sigma) ** 2) / 2 + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    exponents = (2 * x - 1) / (2 * sigma**2)
    with np.errstate(divide="ignore"):
        # log |e^u - 1|, which would be too large itself
        logs = np.maximum(exponents, 0.0) + np.log(-np.expm1(-abs(exponents)))
    evens = np.arange(2, highest + 1, 2)
    terms = log_densities + evens[:, None] * logs
    largest = terms.max(axis=1)
    return np.append(0.0, largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1)))
