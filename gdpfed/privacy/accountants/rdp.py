"""Renyi differential privacy: divergences by order, and the epsilon that they prove.

* Poisson sampling under zero_out uses the noise multiplier std / C.
* The bound for fixed-size sampling is for a unit that is replaced by another one. It uses std over the
  *distance of two updates*, std / (2 C), also under zero_out: if a client is not drawn, another client is
  drawn in its place, so the bound compares two real updates. With std / C, epsilon would be far too small.

Source of the bound for fixed-size sampling: Wang, Balle, Kasiviswanathan, "Subsampled Renyi Differential
Privacy and Analytical Moments Accountant", arXiv:1808.00087, Theorem 27:

    (a - 1) D_a <= log(1 + C(a, 2) q^2 min(4 (e^v - 1), 2 e^v) + sum_{j=3..a} C(a, j) q^j T_j)
    T_j = min(4 sqrt(B_2floor(j/2) B_2ceil(j/2)), 2 exp((j - 1) j v / 2)),    v = 1/sigma^2

B_l is the moment E[(r - 1)^l] of the likelihood ratio r = exp((2 x - 1) v / 2), with x drawn from N(0,
sigma^2). It is integrated with positive terms, since rounding would ruin the alternating sum that it equals.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, singledispatch

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.privacy.events import DPSGDSteps, Event, Gaussian, SampledGaussian

special = late_import("scipy.special")

# For fixed-size sampling, fractional orders are interpolated between whole ones and take as long; see below.
POISSON_ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(128, 256, 512, 1024),
)
LAST_TERM = 1000
SERIES_LENGTHS = (60, LAST_TERM)
"""The numbers of terms of a fractional order's series that are tried, one after the other."""
LAST_OF_FIRST = 63
FIRST_ORDERS = tuple(order for order in POISSON_ORDERS if order == int(order) and order <= LAST_OF_FIRST)
LATER_ORDERS = tuple(order for order in POISSON_ORDERS if order not in FIRST_ORDERS)
FIXED_SIZE_ORDERS = (
    *(1.25, 1.5, 1.75, 2.5, 3.5),
    *range(2, 33),
    *(36, 40, 44, 48, 56, 64, 80, 96, 128, 192, 257, 384, 512, 1024),
)
FILTER_ORDERS = tuple(order for order in POISSON_ORDERS if order == int(order) or order in (1.5, 2.5, 3.5))
"""The orders of a filter. Every kind of release has nearly all of them; discrete noise has the whole ones."""
SUITED_SHARE = 0.8
"""How much of a filter's weight lies on the orders that suit its limit; the rest lies on all orders alike."""
ROUGH_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 44, 64)
"""Few orders for a quick bound: the time of a fixed-size bound grows with the square of its order."""

LIMIT_STEP, LIMIT_ERROR = 1.02, 1e-7
LEAST_LIMIT, MOST_LIMIT = 1e-3, 1e3
"""The range of limits to which the weights of a filter are fitted; beyond it they are those of its ends."""

# The sums are 1 + O(q^2) in floating point. At tiny rates, rounding can make a divergence too small, or
# negative, and epsilon 0. This slack is added to every divergence.
RENYI_ROUNDING_SLACK = 1e-13


def rdp_epsilon(
    event: Event, count: int, delta: float, *, keeps: Callable[[float], bool] = lambda order: True
) -> float:
    """Return epsilon of `count` releases by Renyi DP, converted by arXiv:2004.00010v4, Proposition 12.

    Fractional and high orders take most of the time. Under Poisson sampling, orders that cannot give the
    least epsilon are left out, which does not change the result.
    """
    if not isinstance(event, SampledGaussian) or (event.sampling, event.adjacency) != ("poisson", "zero_out"):
        curve = {order: count * renyi for order, renyi in renyi_curve(event).items() if keeps(order)}
        return epsilon_of_renyi(curve, delta)
    sigma, rate = event.noise_multiplier, event.sampling_rate

    def all_rounds(orders: tuple[float, ...]) -> dict[float, float]:
        one_round = _with_slack(orders, poisson_renyi(sigma, rate, orders))
        return {order: count * renyi for order, renyi in one_round.items()}

    curve = all_rounds(FIRST_ORDERS)
    best = epsilon_of_renyi(curve, delta)
    # Pinsker's inequality gives a lower bound at order 1, where the divergence is least.
    at_least = count * 2 * (rate * math.erf(1 / (math.sqrt(8) * sigma))) ** 2
    later = tuple(
        order
        for order in LATER_ORDERS
        if keeps(order)
        and not epsilon_of_renyi({order: max(at_least, _least_renyi(curve, order))}, delta) > best
    )
    return epsilon_of_renyi(curve | all_rounds(later), delta)


def rough_fixed_size_epsilon(event: SampledGaussian, count: int, delta: float) -> float:
    """Bound the epsilon of fixed-size sampling fast, from few Renyi orders; rarely over 1 % too large."""
    renyi = _with_slack(ROUGH_ORDERS, _fixed_size_renyi(event, ROUGH_ORDERS))
    return epsilon_of_renyi({order: count * value for order, value in renyi.items()}, delta)


def _least_renyi(first: Mapping[float, float], order: float) -> float:
    """Return a lower bound on the Renyi divergence at an order, from the divergences at the lowest orders.

    (order - 1) times the divergence is convex in the order, and 0 at the orders 0 and 1. So it lies above the
    lines through two neighbouring whole orders beside it.
    """

    def convex(n: int) -> float:
        return (n - 1) * first[n] if n > 1 else 0.0

    below = min(int(order), LAST_OF_FIRST)
    chords = [convex(below) + (order - below) * (convex(below) - convex(below - 1))]
    if below + 2 <= LAST_OF_FIRST:
        chords.append(convex(below + 1) - (below + 1 - order) * (convex(below + 2) - convex(below + 1)))
    return max(chords) / (order - 1)


def epsilon_of_renyi(curve: Mapping[float, float], delta: float) -> float:
    """Return the least epsilon that these Renyi divergences prove at delta."""
    return min((_epsilon_of_order(order, renyi, delta) for order, renyi in curve.items()), default=math.inf)


def _epsilon_of_order(order: float, renyi: float, delta: float) -> float:
    # Of numbers at the edge of floats a divergence may come out as no number, which proves nothing.
    if not renyi > -math.inf:
        return math.inf
    # Divergences grow with the order, so each one bounds that of order 1, which bounds delta at epsilon = 0.
    if delta**2 > -math.expm1(-renyi):
        return 0.0
    return max(0.0, renyi + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def filter_epsilon(curve: Mapping[float, float], delta: float, limit: float | None) -> float:
    """Return epsilon at delta of releases that were chosen one after the other, by a Renyi filter.

    L is the loss of all that was released, S_a the sum of the divergences at order a. exp((a - 1) (L - S_a))
    has mean 1 at most at whichever release one stops (Feldman and Zrnic, NeurIPS 2021, Theorem 3.1). So has
    the sum of these with weights w_a that add up to 1 and are fixed before the first release. So
    E (1 - e^(epsilon - L))_+ <= delta, if for each loss x

        1 - e^(epsilon - x) <= delta sum_a w_a exp((a - 1) (x - S_a)).

    `curve`: S_a by order. `limit`: the epsilon up to which releases are allowed; the weights follow from it
    and delta alone. None: the result is a limit that these releases keep, close to the least one.
    """
    if limit is None:
        low = high = max(LEAST_LIMIT, epsilon_of_renyi(curve, delta))
        while filter_epsilon(curve, delta, high) > high:
            low, high = high, high * LIMIT_STEP
        while high > low * (1 + LIMIT_ERROR):
            middle = (low + high) / 2
            low, high = (low, middle) if filter_epsilon(curve, delta, middle) <= middle else (middle, high)
        return high
    weights = _filter_weights(min(max(limit, LEAST_LIMIT), MOST_LIMIT), delta)
    used = [order for order in weights if curve.get(order, math.inf) < math.inf]
    if not used:
        return math.inf
    order = np.array(used, dtype=np.float64)
    offset = np.array([math.log(delta * weights[each]) - (each - 1) * curve[each] for each in used])

    def value_and_slope(loss: float) -> tuple[float, float]:
        """Return x + log(1 - delta sum_a ...) and its slope, which falls; -inf beyond the logarithm."""
        with np.errstate(over="ignore"):
            terms = np.exp(offset + (order - 1) * loss)
        share = float(terms.sum())
        if not share < 1.0:
            return -math.inf, -math.inf
        return loss + math.log1p(-share), 1 - float((order - 1) @ terms) / (1 - share)

    width = 1.0
    high = float((-offset / (order - 1)).min())  # One term alone is 1 there.
    while value_and_slope(high - width)[1] < 0:
        width *= 2
    low = high - width
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if value_and_slope(middle)[1] >= 0 else (low, middle)
    # A concave function lies below each of its tangents.
    value, slope = value_and_slope(low)
    return max(0.0, value + slope * (high - low))


@lru_cache(maxsize=64)
def _filter_weights(limit: float, delta: float) -> dict[float, float]:
    """Return the weight of each order in a filter; together they are 1.

    Most of it lies around the order that is best for one Gaussian release of this epsilon at delta, within
    the width over which its terms differ little. The rest falls with the order, so that each doubling of
    order - 1 has as much.
    """
    order = np.array(FILTER_ORDERS)
    mu = 1 / gaussian_sigma(limit, delta)
    best = min(FILTER_ORDERS, key=lambda each: _epsilon_of_order(each, each * mu**2 / 2, delta))
    apart = np.gradient(order)
    suited, rest = apart * np.exp(-(((order - best) * mu) ** 2) / 2), apart / (order - 1)
    weights = SUITED_SHARE * suited / suited.sum() + (1 - SUITED_SHARE) * rest / rest.sum()
    return dict(zip(FILTER_ORDERS, weights.tolist(), strict=True))


@singledispatch
def renyi_curve(event: Event) -> dict[float, float]:
    """Return an upper bound on one release's Renyi divergence at each order that has a bound.

    Each type of event registers its own function. Raises PrivacyError for those that need less noise by the
    pld accountant; a ledger's filter has a bound of them (`gdpfed.privacy.accountants.filter_curves`).
    """
    raise PrivacyError(f"the rdp accountant has no bound for {event.kind}; use the pld accountant")


@renyi_curve.register
def _(event: Gaussian) -> dict[float, float]:
    return {order: order / (2 * event.noise_multiplier**2) for order in POISSON_ORDERS}


@renyi_curve.register
def _(event: DPSGDSteps) -> dict[float, float]:
    one_step = poisson_renyi(event.noise_multiplier, event.batch_rate)
    return _with_slack(POISSON_ORDERS, one_step, event.num_releases)


@renyi_curve.register
def _(event: SampledGaussian) -> dict[float, float]:
    if event.sampling == "fixed_size":
        return _with_slack(FIXED_SIZE_ORDERS, _fixed_size_renyi(event))
    if event.adjacency == "zero_out":
        return _with_slack(POISSON_ORDERS, poisson_renyi(event.noise_multiplier, event.sampling_rate))
    raise PrivacyError(
        "the rdp accountant has no bound for poisson sampling under replace_one adjacency; "
        "use the pld accountant, or zero_out adjacency, or fixed_size sampling"
    )


def _with_slack(
    orders: tuple[float, ...], renyi: tuple[float, ...], num_steps: int = 1
) -> dict[float, float]:
    return {
        order: num_steps * (value + RENYI_ROUNDING_SLACK) for order, value in zip(orders, renyi, strict=True)
    }


def _fixed_size_renyi(
    mechanism: SampledGaussian, orders: tuple[float, ...] = FIXED_SIZE_ORDERS
) -> tuple[float, ...]:
    # If all clients are drawn, no other client is drawn in the place of one, and zero_out moves the sum by C.
    everybody = mechanism.cohort_size == mechanism.group_size
    distance = 1.0 if everybody and mechanism.adjacency == "zero_out" else 2.0
    multiplier = mechanism.noise_multiplier / distance
    return without_replacement_renyi(multiplier, mechanism.cohort_size, mechanism.group_size, orders)


def poisson_renyi(
    noise_multiplier: float, sampling_rate: float, orders: tuple[float, ...] = POISSON_ORDERS
) -> tuple[float, ...]:
    """Return the Renyi divergences of one Poisson-sampled round, at these orders.

    Source: arXiv:1908.10530, Section 3.3.
    """
    known = _known_divergences(noise_multiplier, sampling_rate)
    for order in orders:
        if order in known:
            continue
        if sampling_rate == 1.0:
            known[order] = order / (2 * noise_multiplier**2)
        elif order == int(order):
            known[order] = _whole_order_renyi(noise_multiplier, sampling_rate, int(order))
        else:
            known[order] = _fractional_order_renyi(noise_multiplier, sampling_rate, order)
    return tuple(known[order] for order in orders)


def _whole_order_renyi(noise_multiplier: float, sampling_rate: float, order: int) -> float:
    """Return the Renyi divergence of one Poisson-sampled round at an integer order, as a binomial sum."""
    k, log_binomials = _log_binomials(order)
    terms = log_binomials + k * math.log(sampling_rate) + (order - k) * math.log1p(-sampling_rate)
    terms += (k * k - k) / (2 * noise_multiplier**2)
    largest = terms.max()
    if not largest < math.inf:
        return math.inf
    return float(largest + math.log(np.exp(terms - largest).sum())) / (order - 1)


def _fractional_order_renyi(noise_multiplier: float, sampling_rate: float, order: float) -> float:
    """Return the Renyi divergence of one Poisson-sampled round at a fractional order.

    It is the sum of two integrals, below z and above z, each of which is a series. The absolute values of the
    terms are added, which gives an upper bound. The series ends where terms fall and are below e^-30 of the
    sum. If it does not end within 1,000 terms, the result is inf.
    """
    log_rate, log_rest = math.log(sampling_rate), math.log1p(-sampling_rate)
    z = noise_multiplier**2 * (log_rest - log_rate) + 0.5
    for most in SERIES_LENGTHS:
        i, log_binomials = _log_binomials(order, most)
        j = order - i
        below = log_binomials + i * log_rate + j * log_rest + (i * i - i) / (2 * noise_multiplier**2)
        above = log_binomials + j * log_rate + i * log_rest + (j * j - j) / (2 * noise_multiplier**2)
        below += special.log_ndtr((z - i) / noise_multiplier)
        above += special.log_ndtr((j - z) / noise_multiplier)
        sums = np.logaddexp.accumulate(np.logaddexp(below, above))
        falling = (np.diff(below) < 0) & (np.diff(above) < 0)
        ended = np.flatnonzero(falling & (np.maximum(below, above)[1:] < sums[1:] - 30))
        if len(ended):
            return float(sums[ended[0] + 1]) / (order - 1)
    return math.inf


@lru_cache(maxsize=2 * len(POISSON_ORDERS))
def _log_binomials(
    order: float, most: int = LAST_TERM
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return k = 0, 1, ... and log |C(a, k)| of order a: up to k = a for an integer a, else `most` terms."""
    k = np.arange(order + 1 if order == int(order) else most, dtype=np.float64)
    return k, special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)


@lru_cache(maxsize=1024)
def _known_divergences(noise_multiplier: float, sampling_rate: float) -> dict[float, float]:
    """Return a dict, empty at first, that caches one sampled round's Renyi divergences by Renyi order."""
    return {}


Floats = npt.NDArray[np.float64]

HIGHEST_WITH_MOMENTS = 256
"""Above this order only the second part of T_j is computed, which is smaller at high orders."""
STEPS_A_SIGMA = 8
"""Points of the integral for each sigma; the integrand is a sum of normal densities, so 8 lose no digit."""
SIGMAS_BEYOND = 12
LEAST_WITH_MOMENTS = 0.7
"""Below this noise, too, only the second part is computed, since B_j > exp((j - 1) j v / 2) / 2 there."""
HIGHEST_AT_ONCE = (32, HIGHEST_WITH_MOMENTS)
"""Moments are computed up to one of these orders."""


@lru_cache(maxsize=256)
def without_replacement_renyi(
    sigma: float, cohort_size: int, group_size: int, orders: tuple[float, ...]
) -> tuple[float, ...]:
    """Return bounds on the Renyi divergences of one round with fixed-size sampling, at orders above 1.

    Between whole orders (a - 1) D_a is convex, so that the chord is an upper bound (Corollary 10 of the
    source). `sigma`: the noise divided by the distance of two clients' updates. `cohort_size`: the number of
    clients that are drawn. `group_size`: the number of clients in the group. `orders`: Renyi orders.
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
    """Return the Renyi bound of one round with fixed-size sampling at an integer order a, times (a - 1)."""
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
    """Return log E (r - 1)^l, l = 0, 2, ...: moments of a likelihood ratio r, for fixed-size sampling.

    It uses the trapezium rule over x. If the noise is small, the integrand of B_l is a bell around x = l; if
    it is large, it is two bells around x = -sigma sqrt(l) and x = sigma sqrt(l).
    """
    step, beyond = sigma / STEPS_A_SIGMA, (math.sqrt(highest) + SIGMAS_BEYOND) * sigma
    x = np.arange(-beyond, highest + beyond, step)
    log_densities = -((x / sigma) ** 2) / 2 + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    exponents = (2 * x - 1) / (2 * sigma**2)
    with np.errstate(divide="ignore"):
        # The logarithm of |e^u - 1|, since the value itself could overflow.
        logs = np.maximum(exponents, 0.0) + np.log(-np.expm1(-abs(exponents)))
    evens = np.arange(2, highest + 1, 2)
    terms = log_densities + evens[:, None] * logs
    largest = terms.max(axis=1)
    return np.append(0.0, largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1)))
