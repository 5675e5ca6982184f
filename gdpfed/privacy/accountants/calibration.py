"""Calibration: searches the smallest noise multiplier with which epsilon stays within a budget.

It is found by bisection of a decreasing function; the result never exceeds the target.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant, make_accountant
from gdpfed.privacy.accountants.calibrated import keep_noise, known_noise
from gdpfed.privacy.accountants.composition import AfterRelease
from gdpfed.privacy.accountants.estimate import estimate_by
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.privacy.accountants.pld import pld_epsilon
from gdpfed.privacy.accountants.rdp import rough_fixed_size_epsilon
from gdpfed.privacy.accountants.theorem1 import check_theorem1, theorem1_variance
from gdpfed.privacy.events import LocalWindows, SampledGaussian
from gdpfed.privacy.validation import require_count, require_delta, require_positive

RELATIVE_TOLERANCE = 1e-3
MAX_EVALUATIONS = 100
LONGEST_LOG_STEP = 2.0


@dataclass(frozen=True)
class Start:
    """The start of a search for x with f(x) = target: a first x, and the slope of log f over log x there."""

    position: float
    log_slope: float


class UnreachableError(ArithmeticError):
    """The search failed: the function jumps over the target, or reaches it only outside the bounds.

    `low`: the largest x known to be above the target. `high`: the smallest x known to be at or below it.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__(f"the target is not met between {low:.6g} and {high:.6g}")
        self.low = low
        self.high = high


def is_met(value: float, target: float, tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Whether a value is close enough to end the search: at most the target, and within the tolerance."""
    return target * (1 - tolerance) < value <= target


def solve_falling(
    function: Callable[[float], float],
    target: float,
    start: Start,
    bounds: tuple[float, float],
    *,
    tolerance: float = RELATIVE_TOLERANCE,
) -> Start:
    """Solve f(x) = target for a decreasing f: return an x with f(x) in (target (1 - tolerance), target].

    Secant steps on log f against log x, kept within the bracket found so far, which begins as `bounds`. f may
    be 0 or infinite. Raises UnreachableError.
    """
    aim = target * (1 - tolerance / 2)
    # In log x: the largest known to be too little, the smallest known to be enough.
    low, high = math.log(bounds[0]), math.log(bounds[1])
    position, slope = math.log(start.position), start.log_slope
    previous: tuple[float, float] | None = None
    for _ in range(MAX_EVALUATIONS):
        value = function(math.exp(position))
        if is_met(value, target, tolerance):
            return Start(math.exp(position), slope)
        low, high = (position, high) if value > target else (low, position)
        if high - low < 1e-9:
            break
        height = math.log(value / aim) if 0 < value < math.inf else math.copysign(9, value - aim)
        if previous is not None and position != previous[0]:
            slope = (height - previous[1]) / (position - previous[0])
        previous = (position, height)
        step = -height / min(slope, -0.05)
        candidate = position + math.copysign(min(abs(step), LONGEST_LOG_STEP), height)
        position = candidate if low < candidate < high else (low + high) / 2
    raise UnreachableError(math.exp(low), math.exp(high))


MIN_NOISE_MULTIPLIER = 1e-2
MAX_NOISE_MULTIPLIER = 1e7
TYPICAL_LOG_SLOPE = -1.3
SEARCH_COARSENESS = 8.0


def calibrate_noise_multiplier(
    accountant: Accountant,
    unit_noise: SampledGaussian,
    *,
    target_epsilon: float,
    num_rounds: int,
    delta: float,
) -> float:
    """Return sigma, the noise multiplier with which a whole training costs at most `target_epsilon`.

    `unit_noise` is a round with noise of one clipping norm. With the accountant's epsilon, epsilon(sigma) <=
    target and target - epsilon(sigma) < 1e-3 * target. For theorem1 sigma^2 is Theorem 1's formula, refused
    outside its conditions; only there does the clipping norm matter. Results are cached, also on the disk,
    and checked when they are used again. Raises PrivacyError for invalid combinations, and for budgets that
    no noise can reach.
    """
    require_positive("epsilon", target_epsilon)
    require_count("num_rounds", num_rounds)
    require_delta(delta)
    if accountant.name != "theorem1":
        unit_noise = replace(unit_noise, noise_stddev=1.0, clipping_norm=1.0)
        return _calibrate_by_search(accountant, unit_noise, target_epsilon, num_rounds, delta)
    rate, norm = unit_noise.sampling_rate, unit_noise.clipping_norm
    variance = theorem1_variance(
        sampling_rate=rate, num_rounds=num_rounds, epsilon=target_epsilon, delta=delta
    )
    variance *= 1 + 1e-9  # so that solving back for epsilon cannot round above the target
    check_theorem1(
        noise_variance_multiplier=variance,
        sampling_rate=rate,
        epsilon=target_epsilon,
        delta=delta,
        clipping_norm=norm,
    )
    sigma = math.sqrt(variance)
    noised = replace(unit_noise, noise_stddev=sigma * norm)
    accounted = make_accountant("theorem1").epsilon(noised, num_rounds, delta)
    if not accounted <= target_epsilon:
        raise PrivacyError(
            f"theorem1 computes epsilon {accounted:.6g}, above {target_epsilon:g}; use the pld accountant"
        )
    return sigma


def calibrate_windows(
    accountant: Accountant, unit_noise: LocalWindows, *, target_epsilon: float, count: int, delta: float
) -> float:
    """Return the least noise that meets `target_epsilon` if a model is released after every window of steps.

    A window is a sequence of local steps; the model after its last step is released with noise.

    `unit_noise` is the event with noise of one unit of its bound. The result is on the safe side, as that of
    `calibrate_noise_multiplier`. Raises PrivacyError for another accountant than pld, which alone has a bound
    for windows, and for budgets that no noise can reach.
    """
    require_positive("epsilon", target_epsilon)
    require_count("count", count)
    require_delta(delta)
    accountant.epsilon(unit_noise, 1, delta)  # refuses an accountant without a bound before any search
    return _calibrate_windows(unit_noise, target_epsilon, count, delta)


@lru_cache(maxsize=256)
def _calibrate_windows(unit_noise: LocalWindows, target: float, count: int, delta: float) -> float:
    bounds = MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER
    mixture, releases = unit_noise.mixture, count * unit_noise.num_windows
    # Many small moves add up like their mean: a start for the search, never a result.
    mean = math.fsum(s * w for s, w in zip(mixture.sensitivities, mixture.weights, strict=True))
    guess = mean * math.sqrt(releases) * gaussian_sigma(target, delta)
    start = Start(min(max(guess, 10 * MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER / 10), TYPICAL_LOG_SLOPE)

    def epsilon(coarseness: float, z: float) -> float:
        noised = replace(unit_noise, noise_multiplier=z)
        return pld_epsilon(noised, count, delta, coarseness=coarseness)

    try:
        start = solve_falling(partial(epsilon, SEARCH_COARSENESS), target, start, bounds)
        start = solve_falling(partial(epsilon, 1.0), target, start, bounds)
    except UnreachableError as error:
        raise PrivacyError(_why_unreachable(target, error.low, error.high)) from None
    return start.position


def calibrate_scale(epsilon: Callable[[float], float], *, target_epsilon: float, guess: float) -> float:
    """Return the smallest noise multiplier, or common factor on several, that meets `target_epsilon`.

    `epsilon` maps this number to the cost of all rounds, and must be decreasing. The result is on the safe
    side, as that of `calibrate_noise_multiplier`. Raises PrivacyError for budgets that no noise can reach.
    """
    bounds = MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER
    try:
        return solve_falling(epsilon, target_epsilon, Start(guess, TYPICAL_LOG_SLOPE), bounds).position
    except UnreachableError as error:
        raise PrivacyError(_why_unreachable(target_epsilon, error.low, error.high)) from None


def estimate_noise_multiplier(
    accountant: Accountant, unit_noise: SampledGaussian, target_epsilon: float, num_rounds: int, delta: float
) -> float:
    """Estimate a group's noise multiplier to about 1 %, only to compare sampling rates, never to add noise.

    `unit_noise` is a round with noise of one clipping norm. Raises PrivacyError where no noise meets the
    budget.
    """
    start = Start(_guess(unit_noise, target_epsilon, num_rounds, delta), TYPICAL_LOG_SLOPE)

    def found(epsilon: Callable[[SampledGaussian, int, float], float]) -> float:
        return _search(
            lambda event: epsilon(event, num_rounds, delta), unit_noise, target_epsilon, start
        ).position

    continuous = make_accountant("rdp"), make_accountant("rdp", "whole")
    if accountant in continuous and unit_noise.sampling == "fixed_size":
        with suppress(UnreachableError):  # Some budgets need higher orders.
            return found(rough_fixed_size_epsilon)
    try:
        return found(estimate_by(accountant))
    except UnreachableError as error:
        raise PrivacyError(_why_unreachable(target_epsilon, error.low, error.high)) from None


def _search(
    epsilon: Callable[[SampledGaussian], float], unit_noise: SampledGaussian, target: float, start: Start
) -> Start:
    """Find the noise multiplier at which the function `epsilon` meets the target; search from `start`."""
    bounds = MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER
    return solve_falling(
        lambda sigma: epsilon(replace(unit_noise, noise_stddev=sigma)), target, start, bounds
    )


@lru_cache(maxsize=1024)
def _calibrate_by_search(
    accountant: Accountant, unit_noise: SampledGaussian, target: float, num_rounds: int, delta: float
) -> float:
    accountant.epsilon(unit_noise, 1, delta)  # refuses a combination before any search
    if accountant.name == "pld":
        rate = unit_noise.sampling_rate
        ever_sampled = -math.expm1(num_rounds * math.log1p(-rate)) if rate < 1 else 1.0
        if not delta < ever_sampled:
            raise PrivacyError(
                f"delta {delta:.3g} is not below {ever_sampled:.3g}, the chance that a client ever "
                "takes part, so it would allow releasing updates without noise; choose a smaller delta"
            )

    def epsilon(event: SampledGaussian) -> float:
        return accountant.epsilon(event, num_rounds, delta)

    key = {
        "accountant": [type(accountant).__name__, accountant.name, accountant.renyi_orders],
        **({"paid": accountant.paid.to_dict()} if isinstance(accountant, AfterRelease) else {}),
        "event": unit_noise.to_dict(),
        "epsilon": target,
        "num_rounds": num_rounds,
        "delta": delta,
    }
    known = known_noise(key)
    if known is not None and is_met(epsilon(replace(unit_noise, noise_stddev=known)), target):
        return known
    start = Start(_guess(unit_noise, target, num_rounds, delta), TYPICAL_LOG_SLOPE)
    try:
        if accountant.name == "pld":
            start = _search(
                lambda event: pld_epsilon(event, num_rounds, delta, coarseness=SEARCH_COARSENESS),
                unit_noise,
                target,
                start,
            )
        noise = _search(epsilon, unit_noise, target, start).position
    except UnreachableError as error:
        raise PrivacyError(_why_unreachable(target, error.low, error.high)) from None
    keep_noise(key, noise)
    return noise


def _guess(mechanism: SampledGaussian, target: float, num_rounds: int, delta: float) -> float:
    """Return a first guess of the noise multiplier, by the central limit theorem for DP.

    It solves mu = q sqrt(T (exp(1/sigma^2) - 1)) for sigma.
    Bu, Dong, Long, Su, "Deep Learning with Gaussian Differential Privacy", Corollary 5.4: a start
    for the search, never a result.
    """
    mu = 1 / gaussian_sigma(target, delta)
    per_round = mu / (mechanism.sampling_rate * math.sqrt(num_rounds))
    sigma = 1 / math.sqrt(math.log1p(per_round**2))
    if mechanism.sampling == "fixed_size":
        sigma *= 2  # that bound compares two updates, which are up to 2 C apart
    return min(max(sigma, MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER)


def _why_unreachable(target: float, low: float, high: float) -> str:
    if low > MAX_NOISE_MULTIPLIER / math.e:
        return (
            f"epsilon {target:g} cannot be reached by any noise under this accountant; "
            "raise the budget, lower the rate or the rounds, or use the pld accountant"
        )
    if high < MIN_NOISE_MULTIPLIER * math.e:
        return f"epsilon {target:g} needs practically no noise; lower the budget to one that protects"
    return (
        f"epsilon {target:g} lies in a gap of this accountant's bound at noise multiplier "
        f"{high:.4g}; use the pld accountant or a larger budget"
    )
