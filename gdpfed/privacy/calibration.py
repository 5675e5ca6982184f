"""The least noise that keeps a group within its budget, found on the safe side."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import dp_accounting as dp

from gdpfed.privacy.accounting import Accountant, make_accountant, pld_epsilon
from gdpfed.privacy.errors import PrivacyError
from gdpfed.privacy.mechanism import Adjacency, SampledGaussian, Sampling
from gdpfed.privacy.theorem1 import check_theorem1, theorem1_variance
from gdpfed.privacy.validation import require_count, require_delta, require_positive

RELATIVE_TOLERANCE = 1e-3
MIN_NOISE_MULTIPLIER = 1e-2
MAX_NOISE_MULTIPLIER = 1e7
MAX_EVALUATIONS = 100
TYPICAL_LOG_SLOPE = -1.3
SEARCH_COARSENESS = 8.0
LONGEST_LOG_STEP = 2.0


@dataclass(frozen=True)
class _Start:
    """Where a search begins or has ended: sigma and d log epsilon / d log sigma there."""

    sigma: float
    log_slope: float


def calibrate_noise_multiplier(
    accountant: Accountant,
    *,
    sampling: Sampling,
    sampling_rate: float,
    group_size: int,
    target_epsilon: float,
    num_rounds: int,
    delta: float,
    adjacency: Adjacency = "zero_out",
    clipping_norm: float = 1.0,
) -> float:
    """Return sigma_m = std / C of the sum's noise, so that training meets `target_epsilon`.

    With the accountant's epsilon, epsilon(sigma) <= target and target - epsilon(sigma) < 1e-3 *
    target. For theorem1 sigma^2 is Theorem 1's formula, refused outside its conditions; only
    there does `clipping_norm` matter. Results are cached.

    Raises PrivacyError for invalid combinations, and for budgets that no noise can reach.
    """
    require_positive("epsilon", target_epsilon)
    require_count("num_rounds", num_rounds)
    require_delta(delta)
    unit_noise = SampledGaussian(
        sampling=sampling,
        sampling_rate=sampling_rate,
        group_size=group_size,
        noise_stddev=clipping_norm,
        clipping_norm=clipping_norm,
        adjacency=adjacency,
    )
    if accountant.name == "theorem1":
        return _calibrate_theorem1(unit_noise, target_epsilon, num_rounds, delta)
    unit_noise = replace(unit_noise, noise_stddev=1.0, clipping_norm=1.0)
    return _calibrate_by_search(accountant, unit_noise, target_epsilon, num_rounds, delta)


@lru_cache(maxsize=1024)
def _calibrate_by_search(
    accountant: Accountant, unit_noise: SampledGaussian, target: float, num_rounds: int, delta: float
) -> float:
    accountant.epsilon(unit_noise, 1, delta)  # refuses a combination before any search
    start = _Start(_guess(unit_noise, target, num_rounds, delta), TYPICAL_LOG_SLOPE)
    if accountant.name == "pld":
        _check_delta_against_participation(unit_noise.sampling_rate, num_rounds, delta)
        start = _solve(
            lambda sigma: pld_epsilon(
                replace(unit_noise, noise_stddev=sigma),
                num_rounds,
                delta,
                coarseness=SEARCH_COARSENESS,
            ),
            target,
            start,
        )
    solution = _solve(
        lambda sigma: accountant.epsilon(replace(unit_noise, noise_stddev=sigma), num_rounds, delta),
        target,
        start,
    )
    return solution.sigma


def _calibrate_theorem1(mechanism: SampledGaussian, target: float, num_rounds: int, delta: float) -> float:
    rate = mechanism.sampling_rate
    variance = theorem1_variance(sampling_rate=rate, num_rounds=num_rounds, epsilon=target, delta=delta)
    variance *= 1 + 1e-9  # so that solving back for epsilon cannot round above the target
    check_theorem1(
        noise_variance_multiplier=variance,
        sampling_rate=rate,
        epsilon=target,
        delta=delta,
        clipping_norm=mechanism.clipping_norm,
    )
    sigma = math.sqrt(variance)
    noised = replace(mechanism, noise_stddev=sigma * mechanism.clipping_norm)
    accounted = make_accountant("theorem1").epsilon(noised, num_rounds, delta)
    if accounted > target:
        raise PrivacyError(
            f"theorem1 accounts {accounted:.6g} for a budget of {target:g}; use the pld accountant"
        )
    return sigma


def _check_delta_against_participation(rate: float, num_rounds: int, delta: float) -> None:
    ever_sampled = -math.expm1(num_rounds * math.log1p(-rate)) if rate < 1 else 1.0
    if delta >= ever_sampled:
        raise PrivacyError(
            f"delta {delta:.3g} is not below {ever_sampled:.3g}, the chance that a client ever "
            "takes part, so it would allow releasing updates without noise; choose a smaller delta"
        )


def _guess(mechanism: SampledGaussian, target: float, num_rounds: int, delta: float) -> float:
    """Return sigma from the central limit mu = q sqrt(T (exp(1/sigma^2) - 1)).

    Bu, Dong, Long, Su, "Deep Learning with Gaussian Differential Privacy", Corollary 5.4: a start
    for the search, never a result.
    """
    mu = 1 / dp.get_sigma_gaussian(target, delta)
    per_round = mu / (mechanism.sampling_rate * math.sqrt(num_rounds))
    sigma = 1 / math.sqrt(math.log1p(per_round**2))
    if mechanism.sampling == "fixed_size":
        sigma *= 2  # that bound compares two updates, which are up to 2 C apart
    return min(max(sigma, MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER)


def _solve(epsilon: Callable[[float], float], target: float, start: _Start) -> _Start:
    """Return sigma with epsilon(sigma) in (target (1 - 1e-3), target], epsilon falling in sigma.

    Secant steps on log epsilon against log sigma, kept within the bracket found so far.
    """
    aim = target * (1 - RELATIVE_TOLERANCE / 2)
    # In log sigma: the largest known to be too little noise, the smallest known to be enough.
    low, high = math.log(MIN_NOISE_MULTIPLIER), math.log(MAX_NOISE_MULTIPLIER)
    position, slope = math.log(start.sigma), start.log_slope
    previous: tuple[float, float] | None = None
    for _ in range(MAX_EVALUATIONS):
        value = epsilon(math.exp(position))
        if target * (1 - RELATIVE_TOLERANCE) < value <= target:
            return _Start(math.exp(position), slope)
        low, high = (position, high) if value > target else (low, position)
        if high - low < 1e-9:
            break
        height = math.log(value / aim) if 0 < value < math.inf else math.copysign(9, value - aim)
        if previous is not None and position != previous[0]:
            slope = (height - previous[1]) / (position - previous[0])
        previous = (position, height)
        position = _next_position(position, height, slope, low, high)
    raise PrivacyError(_why_unreachable(target, low, high))


def _next_position(position: float, height: float, slope: float, low: float, high: float) -> float:
    step = -height / min(slope, -0.05)
    candidate = position + math.copysign(min(abs(step), LONGEST_LOG_STEP), height)
    if low < candidate < high:
        return candidate
    return (low + high) / 2


def _why_unreachable(target: float, low: float, high: float) -> str:
    if low > math.log(MAX_NOISE_MULTIPLIER) - 1:
        return (
            f"epsilon {target:g} cannot be reached by any noise under this accountant; "
            "raise the budget, lower the rate or the rounds, or use the pld accountant"
        )
    if high < math.log(MIN_NOISE_MULTIPLIER) + 1:
        return f"epsilon {target:g} needs practically no noise; lower the budget to one that protects"
    return (
        f"epsilon {target:g} lies in a gap of this accountant's bound at noise multiplier "
        f"{math.exp(high):.4g}; use the pld accountant or a larger budget"
    )
