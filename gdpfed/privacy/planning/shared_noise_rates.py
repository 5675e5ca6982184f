"""Computes sampling rates and clipping norms of groups that share one noised sum.

Some use up every budget. Their source: Boenisch, Mühl, Dziedzic, Rinberg, Papernot, "Have it your way:
Individualized Privacy Assignment for DP-SGD", NeurIPS 2023, arXiv:2303.17046, Scale (section 4.2) and Sample
(section 4.1), with clients in place of examples.

The others maximise the signal-to-noise ratio of one joint sum, with norms to match. One noise of standard
deviation s serves all groups; group m is drawn at rate q_m and clipped to C_m = s / sigma_m(q_m), the largest
norm that its budget allows at that rate. An update that all clients agree on then moves the sum by
sum_m q_m |G_m| C_m, in units of s by sum_m |G_m| f_m(q_m), f_m(q) = q / sigma_m(q). That is what the rates
maximise; docs/methods.md derives where the maximum lies.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.calibration import (
    Start,
    UnreachableError,
    calibrate_noise_multiplier,
    estimate_noise_multiplier,
    solve_falling,
)
from gdpfed.privacy.accountants.estimate import estimate_by
from gdpfed.privacy.events import Adjacency, SampledGaussian, Sampling
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.planning.sampling_rates import check_feasible, closed_form_sampling_rates, fit_bounds
from gdpfed.privacy.sampling.laws import SamplingLaw, sampling_law
from gdpfed.privacy.validation import require_length, require_positive, require_rate

optimize = late_import("scipy.optimize")

SMALLEST_RATE = 1e-7
EPSILON_TOLERANCE = 1e-3
LOG_SIGMA_TOLERANCE = 3e-4
ALWAYS_TOLERANCE = 1e-6


def scaled_clipping_norms(
    noise_multipliers: Sequence[float], weights: Sequence[float], clipping_norm: float
) -> tuple[float, ...]:
    """Return clipping norms proportional to 1 / sigma_m with mean C, so that all groups need equal noise.

    Then sigma_m C_m is the same in every group: one noise of that standard deviation has the
    multiplier sigma_m for an update of norm C_m.
    """
    require_length("weights", weights, len(noise_multipliers))
    require_positive("clipping_norm", clipping_norm)
    inverses = [1 / require_positive("noise_multiplier", sigma) for sigma in noise_multipliers]
    total = math.fsum(weight * inverse for weight, inverse in zip(weights, inverses, strict=True))
    return tuple(clipping_norm * math.fsum(weights) * inverse / total for inverse in inverses)


def shared_noise_sampling_rates(
    accountant: Accountant,
    groups: Sequence[Group],
    *,
    sampling: Sampling,
    sampling_rate: float,
    num_rounds: int,
    delta: float,
    adjacency: Adjacency = "zero_out",
) -> tuple[float, ...]:
    """Return sampling rates q_m at which one noise sigma spends every group's budget, with mean q.

    A group that sigma protects enough even if it always takes part has rate 1. The rates are good to about
    1e-3 in epsilon; whoever uses them calibrates the noise at them, on the safe side. Under theorem1, where
    sigma_m is proportional to q_m, they have a closed form. Raises PrivacyError for fixed_size sampling,
    which cannot draw such rates, and where no noise gives all groups their budgets.
    """
    sizes = [group.size for group in groups]
    require_rate("sampling_rate", sampling_rate)
    if sampling == "fixed_size":
        raise PrivacyError(
            "one noise for all groups needs sampling rates that do not give whole numbers of clients, and "
            "fixed_size sampling draws whole numbers: use privacy.sampling=poisson"
        )
    if len(groups) == 1 or sampling_rate == 1.0:
        return (float(sampling_rate),) * len(groups)
    if accountant.name == "theorem1":
        return closed_form_sampling_rates(
            [group.epsilon for group in groups], sizes, sampling_rate=sampling_rate, delta=delta
        )
    unit = SampledGaussian(
        sampling=sampling,
        sampling_rate=sampling_rate,
        group_size=max(sizes),
        noise_stddev=1.0,
        clipping_norm=1.0,
        adjacency=adjacency,
    )
    # At the mean rate less noise than all of these is too little for every group, more than all is enough.
    sigmas = [
        calibrate_noise_multiplier(
            accountant,
            replace(unit, group_size=group.size),
            target_epsilon=group.epsilon,
            num_rounds=num_rounds,
            delta=delta,
        )
        for group in groups
    ]
    estimate = estimate_by(accountant)

    def epsilon(sigma: float, rate: float) -> float:
        return estimate(replace(unit, noise_stddev=sigma, sampling_rate=rate), num_rounds, delta)

    rates = _rates_of_mean(epsilon, groups, sampling_rate, min(sigmas) * 0.99, max(sigmas) * 1.01)
    # Rates below 1 are scaled slightly, so that the mean over all clients is exact.
    always = sum(size for rate, size in zip(rates, sizes, strict=True) if rate == 1.0)
    others = math.fsum(rate * size for rate, size in zip(rates, sizes, strict=True) if rate < 1.0)
    scale = (sampling_rate * sum(sizes) - always) / others
    return tuple(rate if rate == 1.0 else min(1.0, rate * scale) for rate in rates)


def _rates_of_mean(
    epsilon: Callable[[float, float], float],
    groups: Sequence[Group],
    mean_rate: float,
    lowest_sigma: float,
    highest_sigma: float,
) -> list[float]:
    """Find the noise at which the groups' largest allowed sampling rates have this mean; return the rates."""
    rates = [mean_rate] * len(groups)
    num_clients = sum(group.size for group in groups)

    def excess(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        for m, group in enumerate(groups):
            rates[m] = _largest_rate(lambda rate: epsilon(sigma, rate), group.epsilon, rates[m])
        mean = math.fsum(rate * group.size for rate, group in zip(rates, groups, strict=True)) / num_clients
        return math.log(mean / mean_rate)

    bounds = math.log(lowest_sigma), math.log(highest_sigma)
    try:
        excess(optimize.brentq(excess, *bounds, xtol=LOG_SIGMA_TOLERANCE))
    except PrivacyError:
        raise
    except ValueError:  # The mean rate is beyond what the search can reach at either end.
        raise PrivacyError(
            f"no noise gives all groups their budgets at the mean sampling_rate {mean_rate:g}; choose "
            "another rate, or method=idp_fedavg_scale"
        ) from None
    return rates


def _largest_rate(epsilon: Callable[[float], float], target: float, guess: float) -> float:
    """Return the largest sampling rate, from SMALLEST_RATE to 1, at which epsilon is within `target`."""
    if guess > 0.5 and epsilon(1.0) <= target:
        return 1.0
    start = Start(1 / min(guess, 0.99), -1.0)
    bounds = 1.0, 1 / SMALLEST_RATE
    try:
        end = solve_falling(
            lambda inverse: epsilon(1 / inverse), target, start, bounds, tolerance=EPSILON_TOLERANCE
        )
    except UnreachableError as error:  # within the budget at all rates, or up to one where it jumps
        return 1.0 if error.high < 1 + ALWAYS_TOLERANCE else 1 / error.high
    return 1 / end.position


Vector = npt.NDArray[np.float64]

SPAN = 2.0
"""How far from the closed form rates are looked for, as a factor."""
RATES_ESTIMATED = 4
RATES_COMPARED = 4001
MOST_SAMPLED = 1 - 1e-6
"""Without sampling accounting is exact: beside estimates that are not, a rate of one would look better."""


@dataclass(frozen=True)
class _Gain:
    """A group's gain for learning (expected clients / noise multiplier) at several sampling rates."""

    rates: Vector
    values: Vector

    def best_rate(self, price: float, size: int) -> float:
        """Return the rate at which gain minus `price` times the expected number of clients is largest."""
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
    """Return sampling rates of mean q that maximise the groups' sum of expected clients / noise multiplier.

    sigma_m(q) is what the accountant says that group m needs at rate q. Rates are at least
    `min_sampling_rate`, at most one, and within a factor `SPAN` of Problem 1's closed form. sigma_m is
    estimated at `RATES_ESTIMATED` rates, and log sigma_m is the polynomial in log q between them; a rate at
    which no noise is found is left out. Under theorem1 sigma_m is proportional to q_m, so all rates are as
    good, and the closed form is returned. Raises PrivacyError where no rates fit the bounds.
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
        """Estimate a group's noise multiplier sigma_m at a sampling rate."""
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
    gains = [_estimated_gain(group, law, sigma, ends) for group, ends in zip(groups, bounds, strict=True)]
    if not all(len(gain.rates) for gain in gains):
        return start
    best = _fitted(_at_one_price(gains, sizes, sampling_rate), sizes, sampling_rate, min_sampling_rate)
    return max(
        (start, best),
        key=lambda rates: math.fsum(gain.at(rate) for gain, rate in zip(gains, rates, strict=True)),
    )


def _estimated_gain(
    group: Group, law: SamplingLaw, sigma: Callable[[Group, float], float], bounds: tuple[float, float]
) -> _Gain:
    """Estimate a group's gain (signal over noise) at many sampling rates, from noise at a few of them."""
    known: dict[float, float] = {}
    for wanted in np.geomspace(*bounds, RATES_ESTIMATED):
        with suppress(PrivacyError):  # No such cohort, or no such noise.
            rate = law.drawn_rate(float(wanted), group.size)
            known[rate] = sigma(group, rate)
    if not known:
        return _Gain(np.empty(0), np.empty(0))
    logs = np.log(sorted(known))
    sigmas = np.log([known[rate] for rate in sorted(known)])
    fine = np.linspace(logs[0], logs[-1], RATES_COMPARED)
    centre = logs.mean()
    polynomial = np.polynomial.polynomial.polyfit(logs - centre, sigmas, len(logs) - 1)
    values = group.size * np.exp(fine - np.polynomial.polynomial.polyval(fine - centre, polynomial))
    return _Gain(np.exp(fine), values)


def _at_one_price(gains: Sequence[_Gain], sizes: Sequence[int], mean_rate: float) -> tuple[float, ...]:
    """Return the rates at which one more sampled client adds the same gain in every group (Lagrange)."""

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
    """Scale sampling rates by one factor, and clip them to [least, 1]; their mean becomes `mean_rate`."""
    members = np.asarray(sizes, dtype=np.float64)
    cohort = mean_rate * float(members.sum())
    shares = fit_bounds(np.asarray(rates) * members / cohort, least * members / cohort, members / cohort)
    return tuple(float(rate) for rate in np.clip(shares * cohort / members, least, 1.0))
