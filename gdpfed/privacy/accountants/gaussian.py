"""Gaussian releases without sampling: exact epsilon, the noise for an epsilon, and zCDP.

Balle and Wang, arXiv:1805.06530, Theorem 8, with sigma the noise over the distance of neighbouring sums:

    delta(epsilon) = Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma)

A sum that one unit moves by Delta, with noise of standard deviation s, is rho-zCDP with rho = Delta^2 / (2
s^2). This holds for continuous noise (Bun, Steinke, arXiv:1605.02658, Proposition 1.6) and for discrete noise
(Canonne, Kamath, Steinke, arXiv:2004.00010v4, Theorem 4). The rhos of several releases add up, also in
adaptive composition.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import get_args

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.discrete import GAUSSIAN_SHARE, MOST_EPSILON, effective_delta
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Adjacency, Gaussian, NoiseLaw
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_delta,
    require_number,
    require_rate,
)

optimize = late_import("scipy.optimize")
special = late_import("scipy.special")

TOLERANCE = 1e-13
NO_NOISE = 1e-150
"""With less noise than this, epsilon is too large for a float."""
SMALLEST_SHARE = 1e-300
"""The least difference of two probabilities; it replaces a difference that rounding makes 0."""


@lru_cache(maxsize=1024)
def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Return epsilon at delta of one Gaussian release; 0 if delta alone suffices, inf without noise.

    `sigma`: the noise divided by the distance of neighbouring sums, from 0 to inf. `delta`: in (0, 1].
    """
    if sigma < NO_NOISE:
        return math.inf if delta < 1 else 0.0
    if sigma == math.inf or _log_delta(sigma, 0.0) <= math.log(delta):
        return 0.0
    return _crossing(lambda epsilon: _log_delta(sigma, epsilon) - math.log(delta))


@lru_cache(maxsize=1024)
def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Return the least Gaussian noise for (epsilon, delta), in units of the sensitivity; 0 if none is needed.

    `epsilon`: at least 0; inf needs no noise. `delta`: in (0, 1].
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
    """Return the positive root of a decreasing function that is positive near 0."""
    low = high = 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    while excess(low) <= 0:
        low, high = low / 2, low
    return float(optimize.brentq(excess, low, high, xtol=TOLERANCE * low, rtol=TOLERANCE))


def zcdp_rho(charges: Sequence[Charge]) -> float:
    """Return rho, the zCDP cost, of all releases together.

    Raises PrivacyError if an event is not a `Gaussian`, which has no sampling.
    """
    rho = 0.0
    for charge in charges:
        if not isinstance(charge.event, Gaussian):
            raise PrivacyError(f"zCDP has no bound here for {charge.event.kind}; use the pld accountant")
        rho += charge.count / (2 * charge.event.noise_multiplier**2)
    return rho


def zcdp_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """Return epsilon at delta of all releases together, from their total zCDP.

    It is the least rho alpha + log(1 - 1/alpha) - log(delta alpha) / (alpha - 1) over alpha > 1 (Canonne,
    Kamath, Steinke, arXiv:2004.00010v4, Proposition 12), since rho-zCDP is (alpha, rho alpha)-RDP at every
    order. The minimum is found numerically; every alpha gives a valid bound.
    """
    require_delta(delta)
    rho = zcdp_rho(charges)
    discrete = sum(
        charge.count
        for charge in charges
        if isinstance(charge.event, Gaussian) and charge.event.noise == "discrete_gaussian"
    )
    if discrete:
        delta = effective_delta(delta, num_rounds=discrete)

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)
        alpha = 1 + excess
        return rho * alpha + math.log(excess / alpha) - math.log(delta * alpha) / excess

    best = optimize.minimize_scalar(bound, bounds=(-9.0, 16.0), method="bounded")
    if not best.fun > -math.inf:
        return math.inf
    epsilon = max(0.0, float(best.fun))
    return math.inf if discrete and epsilon > MOST_EPSILON else epsilon


stats = late_import("scipy.stats")


@lru_cache(maxsize=4096)
def epsilon_against_server(
    noise_multiplier: float, participations: int, delta: float, adjacency: Adjacency = "zero_out"
) -> float:
    """Return the exact epsilon of K noised sums, if the attacker knows that a client is part of each.

    K Gaussians of noise multiplier sigma compose to one of sigma / sqrt(K), whose epsilon is exact (Balle and
    Wang, arXiv:1805.06530, Theorem 8). `noise_multiplier` is std / C; under replace_one, a client moves a sum
    by 2 C. Sampling does not reduce the cost. It holds if the server sees only sums, and no single updates.
    For K = 0 it is 0; without noise it is inf.
    """
    require_count("participations", participations, at_least=0)
    require_delta(delta)
    require_choice("adjacency", adjacency, get_args(Adjacency))
    if require_number("noise_multiplier", noise_multiplier) < 0:
        raise PrivacyError(f"noise_multiplier is {noise_multiplier}; it must not be negative")
    if participations == 0:
        return 0.0
    distance = 1.0 if adjacency == "zero_out" else 2.0
    sigma = noise_multiplier / distance / math.sqrt(participations)
    return gaussian_epsilon(sigma, delta)


def discrete_epsilon_against_server(
    noise_multiplier: float, participations: int, delta: float, adjacency: Adjacency = "zero_out"
) -> float:
    """Return an upper bound on epsilon of K sums with discrete noise, if a client is known to be in each."""
    reduced = effective_delta(delta, num_rounds=max(1, participations))
    charged = noise_multiplier * GAUSSIAN_SHARE
    epsilon = epsilon_against_server(charged, participations, reduced, adjacency)
    return epsilon if epsilon <= MOST_EPSILON else math.inf


def server_epsilon(
    noise: NoiseLaw, noise_multiplier: float, participations: int, delta: float, adjacency: Adjacency
) -> float:
    """Return epsilon against the server of K noised sums, for continuous or discrete noise."""
    bound = discrete_epsilon_against_server if noise == "discrete_gaussian" else epsilon_against_server
    return bound(noise_multiplier, participations, delta, adjacency)


def participations_quantile(num_rounds: int, sampling_rate: float, probability: float = 0.99) -> int:
    """Return the smallest k such that a client is sampled in at most k rounds with this probability.

    With probability 0.99, about 99 of 100 clients take part in no more rounds than this.
    """
    require_count("num_rounds", num_rounds)
    require_rate("sampling_rate", sampling_rate)
    if not 0.0 < require_number("probability", probability) < 1.0:
        raise PrivacyError(f"probability is {probability}; it must lie in (0, 1)")
    return int(stats.binom.ppf(probability, num_rounds, sampling_rate))
