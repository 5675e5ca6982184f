"""Bisection for a decreasing function; the result never exceeds the target."""

import math
from collections.abc import Callable
from dataclasses import dataclass

RELATIVE_TOLERANCE = 1e-3
MAX_EVALUATIONS = 100
LONGEST_LOG_STEP = 2.0


@dataclass(frozen=True)
class Start:
    """Where a search begins or has ended: x and d log f / d log x there."""

    position: float
    log_slope: float


class UnreachableError(ArithmeticError):
    """The function jumps over the target, or meets it outside the bounds.

    Attributes:
        low: the largest x known to be above the target.
        high: the smallest x known to be at or below it.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__(f"the target is not met between {low:.6g} and {high:.6g}")
        self.low = low
        self.high = high


def is_met(value: float, target: float, tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Whether a search may end with this value: at the target, or below by less than the tolerance."""
    return target * (1 - tolerance) < value <= target


def solve_falling(
    function: Callable[[float], float],
    target: float,
    start: Start,
    bounds: tuple[float, float],
    *,
    tolerance: float = RELATIVE_TOLERANCE,
) -> Start:
    """Return x > 0 with f(x) in (target (1 - tolerance), target], for f that falls in x.

    Secant steps on log f against log x, kept within the bracket found so far, which begins as
    `bounds`. f may be 0 or infinite.

    Raises UnreachableError.
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
        position = _next_position(position, height, slope, low, high)
    raise UnreachableError(math.exp(low), math.exp(high))


def _next_position(position: float, height: float, slope: float, low: float, high: float) -> float:
    step = -height / min(slope, -0.05)
    candidate = position + math.copysign(min(abs(step), LONGEST_LOG_STEP), height)
    if low < candidate < high:
        return candidate
    return (low + high) / 2
