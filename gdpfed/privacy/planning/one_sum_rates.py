"""Rates by group that maximise the signal-to-noise ratio of one joint sum, with norms to match.

One noise of standard deviation s serves all groups; group m is drawn at rate q_m and clipped to C_m =
s / sigma_m(q_m), the largest norm that its budget allows at that rate. An update that all clients agree on
then moves the sum by sum_m q_m |G_m| C_m, in units of s by sum_m |G_m| f_m(q_m), f_m(q) = q / sigma_m(q).
That is what the rates maximise; docs/methods.md derives where the maximum lies.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.calibration import estimate_noise_multiplier
from gdpfed.privacy.events import Adjacency, SampledGaussian, Sampling
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.planning.sampling_rates import check_feasible, closed_form_sampling_rates, fit_bounds
from gdpfed.privacy.sampling.laws import SamplingLaw, sampling_law
from gdpfed.privacy.validation import require_rate

optimize = late_import("scipy.optimize")

Vector = npt.NDArray[np.float64]

SPAN = 2.0
"""How far from the closed form rates are looked for, as a factor."""
RATES_ESTIMATED = 4
RATES_COMPARED = 4001
MOST_SAMPLED = 1 - 1e-6
"""Without sampling accounting is exact: beside estimates that are not, a rate of one would look better."""


@dataclass(frozen=True)
class _Gain:
    """|G_m| f_m(q) at `RATES_COMPARED` rates, evenly spaced in log q."""

    rates: Vector
    values: Vector

    def best_rate(self, price: float, size: int) -> float:
        """Return the rate with the largest gain less `price` for every expected client."""
        return float(self.rates[np.argmax(self.values - price * size * self.rates)])

    def at(self, rate: float) -> float:
        return float(np.interp(rate, self.rates, self.values))


def one_sum_sampling_rates(
    accountant: Accountant,
    groups: Sequence[Group],
    *,
    sampling: Sampling,
    sampling_rate: float,
    num_rounds: int,
    delta: float,
    adjacency: Adjacency = "zero_out",
    min_sampling_rate: float = 0.0,
) -> tuple[float, ...]:
    """Return the q_m that maximise sum_m |G_m| q_m / sigma_m(q_m), with sum_m q_m |G_m| = q n.

    sigma_m(q) is what the accountant says that group m needs at rate q. Rates are at least
    `min_sampling_rate`, at most one, and within a factor `SPAN` of Problem 1's closed form. sigma_m is
    estimated at `RATES_ESTIMATED` rates, and log sigma_m is the polynomial in log q between them; a rate at
    which no noise is found is left out. Under theorem1 sigma_m is proportional to q_m, so all rates are as
    good, and the closed form is returned.

    Raises PrivacyError where no rates fit the bounds.
    """
    check_feasible(require_rate("sampling_rate", sampling_rate), min_sampling_rate)
    if len(groups) == 1 or sampling_rate in (1.0, min_sampling_rate):
        return (float(sampling_rate),) * len(groups)
    sizes, epsilons = [group.size for group in groups], [group.epsilon for group in groups]
    free = closed_form_sampling_rates(epsilons, sizes, sampling_rate=sampling_rate, delta=delta)
    start = _fitted(free, sizes, sampling_rate, min_sampling_rate)
    if accountant.name == "theorem1":
        return start
    law = sampling_law(sampling)

    def sigma(group: Group, rate: float) -> float:
        """Estimate sigma_m at a rate."""
        unit_noise = SampledGaussian(
            sampling=sampling,
            sampling_rate=rate,
            group_size=group.size,
            noise_stddev=1.0,
            clipping_norm=1.0,
            adjacency=adjacency,
        )
        return estimate_noise_multiplier(accountant, unit_noise, group.epsilon, num_rounds, delta)

    bounds = [(max(rate / SPAN, min_sampling_rate), min(rate * SPAN, MOST_SAMPLED)) for rate in start]
    gains = [_estimated_gain(group, law, sigma, each) for group, each in zip(groups, bounds, strict=True)]
    if not all(len(each.rates) for each in gains):
        return start
    found = _fitted(_at_one_price(gains, sizes, sampling_rate), sizes, sampling_rate, min_sampling_rate)
    return max(
        (start, found),
        key=lambda rates: math.fsum(each.at(rate) for each, rate in zip(gains, rates, strict=True)),
    )


def _estimated_gain(
    group: Group, law: SamplingLaw, sigma: Callable[[Group, float], float], bounds: tuple[float, float]
) -> _Gain:
    """Return the gain of a group at rates within bounds, from sigma at a few of them."""
    known: dict[float, float] = {}
    for wanted in np.geomspace(*bounds, RATES_ESTIMATED):
        with suppress(PrivacyError):  # No such cohort, or no such noise.
            rate = law.drawn_rate(float(wanted), group.size)
            known[rate] = sigma(group, rate)
    return _interpolated(known, group.size)


def _interpolated(known: dict[float, float], size: int) -> _Gain:
    """Return the gain between rates whose sigma is known; without rates where none is."""
    if not known:
        return _Gain(np.empty(0), np.empty(0))
    logs = np.log(sorted(known))
    sigmas = np.log([known[rate] for rate in sorted(known)])
    fine = np.linspace(logs[0], logs[-1], RATES_COMPARED)
    centre = logs.mean()
    polynomial = np.polynomial.polynomial.polyfit(logs - centre, sigmas, len(logs) - 1)
    values = size * np.exp(fine - np.polynomial.polynomial.polyval(fine - centre, polynomial))
    return _Gain(np.exp(fine), values)


def _at_one_price(gains: Sequence[_Gain], sizes: Sequence[int], mean_rate: float) -> tuple[float, ...]:
    """Return the rates at which another client is worth the same in every group (Lagrange's condition)."""

    def rates(log_price: float) -> tuple[float, ...]:
        price = math.exp(log_price)
        return tuple(each.best_rate(price, size) for each, size in zip(gains, sizes, strict=True))

    cohort = mean_rate * sum(sizes)

    def excess(log_price: float) -> float:
        return math.fsum(rate * size for rate, size in zip(rates(log_price), sizes, strict=True)) - cohort

    lowest, highest = -40.0, 40.0
    if excess(lowest) <= 0 or excess(highest) >= 0:
        return rates(lowest if excess(lowest) <= 0 else highest)
    return rates(optimize.brentq(excess, lowest, highest, xtol=1e-9))


def _fitted(
    rates: Sequence[float], sizes: Sequence[int], mean_rate: float, least: float
) -> tuple[float, ...]:
    """Scale rates by one factor, within [least, 1], so that their mean over clients is exact."""
    members = np.asarray(sizes, dtype=np.float64)
    cohort = mean_rate * float(members.sum())
    shares = fit_bounds(np.asarray(rates) * members / cohort, least * members / cohort, members / cohort)
    return tuple(float(rate) for rate in np.clip(shares * cohort / members, least, 1.0))
