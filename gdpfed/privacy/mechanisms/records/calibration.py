"""Searches the noise, the batch rate or the number of DP-SGD steps that a budget allows.

Source: `Poisson(q, Gaussian(sigma))`, composed with itself once a step, against everybody: batches are drawn
on the client. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.
"""

from collections.abc import Callable, Sequence

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.calibration import (
    Start,
    UnreachableError,
    calibrate_noise_multiplier,
    solve_falling,
)
from gdpfed.privacy.events import DPSGDSteps, SampledGaussian

MOST_STEPS = 10_000_000
SMALLEST_RATE = 1e-7
KNEE = 1.1
KNEE_PATTERN = (1, 2, 5)


def steps_epsilon(
    accountant: Accountant, *, batch_rate: float, noise_multiplier: float, num_steps: int, delta: float
) -> float:
    """Return epsilon at delta of a number of DP-SGD steps; 0 without steps."""
    if num_steps == 0:
        return 0.0
    event = DPSGDSteps(batch_rate=batch_rate, noise_multiplier=noise_multiplier, num_steps=num_steps)
    return accountant.epsilon(event, 1, delta)


def steps_allowed(
    accountant: Accountant,
    *,
    epsilon: float,
    delta: float,
    batch_rate: float,
    noise_multiplier: float,
    at_least: int = 0,
) -> int:
    """Return X, the largest number of DP-SGD steps that cost at most `epsilon` at delta; up to ten million.

    Epsilon grows with the steps, so X is bracketed by growing strides and found by bisection. `at_least` so
    many steps are known to be within `epsilon`.
    """

    def fits(num_steps: int) -> bool:
        spent = steps_epsilon(
            accountant,
            batch_rate=batch_rate,
            noise_multiplier=noise_multiplier,
            num_steps=num_steps,
            delta=delta,
        )
        return spent <= epsilon

    stride = max(1, at_least // 256)
    low, high = at_least, at_least + stride
    while high <= MOST_STEPS and fits(high):
        stride *= 2
        low, high = high, high + stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return min(low, MOST_STEPS)


def step_noise(
    accountant: Accountant, *, epsilon: float, delta: float, batch_rate: float, num_steps: int
) -> float:
    """Return the least noise multiplier with which `num_steps` DP-SGD steps cost at most `epsilon`.

    Raises PrivacyError for a budget that no noise can reach.
    """
    unit_noise = SampledGaussian(
        sampling="poisson", sampling_rate=batch_rate, group_size=1, noise_stddev=1.0, clipping_norm=1.0
    )
    return calibrate_noise_multiplier(
        accountant, unit_noise, target_epsilon=epsilon, num_rounds=num_steps, delta=delta
    )


def largest_batch_rate(
    accountant: Accountant,
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    num_steps: int,
    at_most: float,
) -> float:
    """Return the largest batch rate, up to `at_most`, at which `num_steps` steps cost at most `epsilon`.

    Raises PrivacyError where even the smallest rate costs more.
    """

    def spent(rate: float) -> float:
        return steps_epsilon(
            accountant,
            batch_rate=rate,
            noise_multiplier=noise_multiplier,
            num_steps=num_steps,
            delta=delta,
        )

    if spent(at_most) <= epsilon:
        return at_most
    try:
        inverse = solve_falling(
            lambda inverse: spent(1 / inverse),
            epsilon,
            Start(2 / at_most, -1.0),
            (1 / at_most, 1 / SMALLEST_RATE),
        )
    except UnreachableError:
        raise PrivacyError(
            f"no batch rate keeps {num_steps} steps of noise multiplier {noise_multiplier:.4g} within "
            f"epsilon {epsilon:g}: take fewer steps or more noise"
        ) from None
    return 1 / inverse.position


def knee_steps(noise_of: Callable[[int], float], num_rounds: int, most_local_steps: int) -> int:
    """Return the fewest local steps (1, 2, 5, ...) whose noise sigma^2 per step is within 10 % of the lowest.

    With tau local steps, T = num_rounds tau steps in all, and sigma(T) = `noise_of` (T), sigma^2 / T is the
    noise for each unit of learning: it falls in T to a floor, beyond which steps cost time and drift only.
    The knee is the least T with sigma^2 / T at most 1.1 times its value at `most_local_steps`.
    """
    grid = step_grid(most_local_steps)

    def noise_per_step(tau: int) -> float:
        return noise_of(num_rounds * tau) ** 2 / (num_rounds * tau)

    floor = noise_per_step(most_local_steps)
    return next(tau for tau in grid if noise_per_step(tau) <= KNEE * floor)


def step_grid(largest: int) -> Sequence[int]:
    """Return numbers of local steps to try: 1, 2, 5, 10, ... below `largest`, and `largest`."""
    steps, power = [], 1
    while power < largest:
        steps += [factor * power for factor in KNEE_PATTERN if factor * power < largest]
        power *= 10
    return [*steps, largest]


def evenly_spread(num_steps: int, num_rounds: int) -> tuple[int, ...]:
    """Spread DP-SGD steps evenly over rounds: each round takes ceil(steps left / rounds left)."""
    schedule, left = [], num_steps
    for rounds_left in range(num_rounds, 0, -1):
        schedule.append(-(-left // rounds_left))
        left -= schedule[-1]
    return tuple(schedule)
