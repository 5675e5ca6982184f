"""One noise for groups with different budgets: the clipping norms, or the rates, at which it fits each.

Source: Boenisch, Mühl, Dziedzic, Rinberg, Papernot, "Have it your way: Individualized Privacy
Assignment for DP-SGD", NeurIPS 2023, arXiv:2303.17046, Scale (section 4.2) and Sample (section 4.1), with
clients in place of examples.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.bisection import Start, UnreachableError, solve_falling
from gdpfed.privacy.accountants.calibration import calibrate_noise_multiplier
from gdpfed.privacy.accountants.estimate import estimate_by
from gdpfed.privacy.events import Adjacency, SampledGaussian, Sampling
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.planning.sampling_rates import closed_form_sampling_rates
from gdpfed.privacy.validation import require_length, require_positive, require_rate

optimize = late_import("scipy.optimize")

SMALLEST_RATE = 1e-7
EPSILON_TOLERANCE = 1e-3
LOG_SIGMA_TOLERANCE = 3e-4
ALWAYS_TOLERANCE = 1e-6


def scaled_clipping_norms(
    noise_multipliers: Sequence[float], weights: Sequence[float], clipping_norm: float
) -> tuple[float, ...]:
    """Return C_m proportional to 1 / sigma_m, with mean C under these weights of the groups.

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
    """Return q_m with epsilon(q_m, sigma) = eps_m for one sigma in all groups, sum_m q_m |G_m| = q n.

    A group that sigma protects enough even if it always takes part has rate 1. The rates are good
    to about 1e-3 in epsilon; whoever uses them calibrates the noise at them, on the safe side.
    Under theorem1, where sigma_m is proportional to q_m, they have a closed form.

    Raises PrivacyError for fixed_size sampling, which cannot draw such rates, and where no noise
    gives all groups their budgets.
    """
    sizes = [group.size for group in groups]
    require_rate("sampling_rate", sampling_rate)
    if sampling == "fixed_size":
        raise PrivacyError(
            "rates that fit one noise are no whole cohorts, so fixed_size sampling would miss the "
            "budgets; use poisson sampling"
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

    lowest, highest = _bracket(accountant, groups, unit, num_rounds, delta)
    estimate = estimate_by(accountant)

    def epsilon(sigma: float, rate: float) -> float:
        return estimate(replace(unit, noise_stddev=sigma, sampling_rate=rate), num_rounds, delta)

    rates = _rates_of_mean(epsilon, groups, sampling_rate, lowest, highest)
    return _with_mean(rates, sizes, sampling_rate)


def _bracket(
    accountant: Accountant, groups: Sequence[Group], unit: SampledGaussian, num_rounds: int, delta: float
) -> tuple[float, float]:
    """Return two sigmas at which no group, and at which every group, may be sampled above q."""
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
    return min(sigmas) * 0.99, max(sigmas) * 1.01


def _rates_of_mean(
    epsilon: Callable[[float, float], float],
    groups: Sequence[Group],
    mean_rate: float,
    lowest_sigma: float,
    highest_sigma: float,
) -> list[float]:
    """Return every group's largest rate at the sigma where their mean over clients is `mean_rate`."""
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
    """Return the largest rate, from SMALLEST_RATE to 1, at which epsilon is within `target`."""
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


def _with_mean(rates: Sequence[float], sizes: Sequence[int], mean_rate: float) -> tuple[float, ...]:
    """Scale the rates below one, by next to nothing, so that the mean over clients is exact."""
    always = sum(size for rate, size in zip(rates, sizes, strict=True) if rate == 1.0)
    others = math.fsum(rate * size for rate, size in zip(rates, sizes, strict=True) if rate < 1.0)
    scale = (mean_rate * sum(sizes) - always) / others
    return tuple(rate if rate == 1.0 else min(1.0, rate * scale) for rate in rates)
