"""Discretised privacy loss distributions of sums with Gaussian noise, and their composition.

A unit moves a sum with noise N(0, sigma^2) by s_k with probability w_k. Of the two distributions of the sum,
P = sum_k w_k N(s_k, sigma^2) and Q = N(0, sigma^2), the loss of P over Q is, at a sum x,

    L(x) = log sum_k w_k exp((s_k x - s_k^2 / 2) / sigma^2),

which grows with x. From the exact delta(epsilon) at the points of a grid follows the distribution on it that
is never more private (Doroshenko et al., arXiv:2207.04380, Algorithm 1: connect the dots).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import

fft = late_import("scipy.fft")
optimize = late_import("scipy.optimize")
signal = late_import("scipy.signal")
special = late_import("scipy.special")

Floats = npt.NDArray[np.float64]

TAIL = 0.5 * math.exp(-50)
"""How much of a distribution of sums may lie beyond either end of its grid; it counts as an infinite loss."""
CUT = 1e-15
"""How much of a composition may be cut off at its ends; it counts as an infinite loss too."""
MASS_WITHIN = 0.5
"""How far from one all chances together may be: on the finest grids roundings add up to a sixth."""
TILTS = 20
"""Exponents of Chernoff's bound on the ends of a composition, in both directions."""
SMALLEST_DIVISOR = 1e-300
LARGEST_EXPONENT = 700.0
AT_ONCE = 2_000_000
"""Numbers of a table of points and parts that are held at one time."""
NEWTON_STEPS = 100
"""Steps double the digits that are right; more than these are rounding."""


@dataclass(frozen=True)
class Losses:
    """A discretised distribution of the privacy loss log(P/Q), for output laws P and Q of neighbouring runs.

    `interval`: the grid's step h. `lowest`: the least loss, in steps. `chances`: of the losses h * (lowest,
    lowest + 1, ...), shape (n,). `infinite`: the probability of an infinite loss.
    """

    interval: float
    lowest: int
    chances: Floats
    infinite: float

    def repeated(self, count: int) -> "Losses":
        """Return the privacy loss distribution of `count` independent releases with this distribution.

        The n-fold convolution is one power of a Fourier transform. Chernoff's bound says where all but CUT
        of it lies; what is beyond wraps around, so as much is counted as infinite. So is what the power may
        have lost by rounding: a transform errs by a unit in the last place, and the power `count` times that.
        """
        if count == 1:
            return self
        low, high = self._ends(count)
        length = fft.next_fast_len(max(high - low + 1, len(self.chances)), real=True)
        whole = fft.irfft(fft.rfft(self.chances, length) ** count, length)
        infinite = CUT + count * 2.0**-52 - math.expm1(count * math.log1p(-self.infinite))
        kept = np.roll(whole, -low)[: high - low + 1]
        return Losses(self.interval, self.lowest * count + low, kept, infinite)

    def _ends(self, count: int) -> tuple[int, int]:
        size = len(self.chances)
        low, high = 0, (size - 1) * count
        for sign in (1, -1):
            tilt = np.exp(sign * np.arange(size) / size)
            tilted = self.chances
            for order in range(1, TILTS + 1):
                tilted = tilted * tilt
                total = float(tilted.sum())
                if total <= 0.0:
                    break
                end = size * (count * math.log(total) + math.log(2 / CUT)) / order
                if sign > 0:
                    high = min(high, math.ceil(end))
                else:
                    low = max(low, math.floor(-end))
        return low, high

    def with_losses(self, other: "Losses") -> "Losses":
        """Return the joint privacy loss distribution of this release and another; both need the same grid."""
        chances = signal.fftconvolve(self.chances, other.chances)
        below = int(np.argmax(np.cumsum(chances) > CUT / 2))
        end = len(chances) - int(np.argmax(np.cumsum(chances[::-1]) > CUT / 2))
        end = max(end, below + 1)
        kept = chances[below:end].copy()
        kept[0] += chances[:below].sum()
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return Losses(
            self.interval, self.lowest + other.lowest + below, kept, infinite + float(chances[end:].sum())
        )

    def _above(self) -> tuple[Floats, Floats, Floats]:
        """Return the positive privacy losses l, and the probabilities P(loss >= l) and Q(loss >= l)."""
        first = max(0, 1 - self.lowest)
        steps = self.lowest + np.arange(first, len(self.chances), dtype=np.float64)
        losses = steps * self.interval
        chances = self.chances[first:]
        upper = np.cumsum(chances[::-1])[::-1] + self.infinite
        lower = np.cumsum((chances * np.exp(-losses))[::-1])[::-1]
        return losses, upper, lower

    def delta(self, epsilons: Floats) -> Floats:
        """Return delta = P(loss > epsilon) - e^epsilon Q(loss > epsilon) for an array of epsilon >= 0."""
        losses, upper, lower = self._above()
        if not self._is_sound():
            return np.ones_like(epsilons)
        first = np.searchsorted(losses, epsilons, side="right")
        return _delta(epsilons, np.append(upper, self.infinite)[first], np.append(lower, 0.0)[first])

    def _is_sound(self) -> bool:
        """Whether the probabilities of all losses sum to about 1; for extreme numbers they may not."""
        return bool(abs(float(self.chances.sum()) + self.infinite - 1.0) <= MASS_WITHIN)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 whose delta(epsilon) is at most ``delta``; inf if there is none."""
        if not (self.infinite <= delta and self._is_sound()):
            return math.inf
        losses, upper, lower = self._above()
        if not len(losses):
            return 0.0
        # Between the loss before and this one, delta(epsilon) is made of what lies at this one and above.
        too_large = np.flatnonzero(_delta(losses - self.interval, upper, lower) > delta)
        if not len(too_large):
            return 0.0
        last = too_large[-1]
        if lower[last] <= 0.0:
            return float(losses[last])
        above, below = float(upper[last] - delta), float(lower[last])
        # A mass near nothing has no quotient.
        if below < SMALLEST_DIVISOR:
            return max(0.0, math.log(above) - math.log(below))
        return max(0.0, math.log(above / below))


def _delta(epsilons: Floats, upper: Floats, lower: Floats) -> Floats:
    """Return delta = P - e^epsilon Q, where P and Q are the probabilities of a loss above epsilon."""
    return np.asarray(upper - np.exp(np.minimum(epsilons, LARGEST_EXPONENT)) * np.maximum(lower, 0.0))


@dataclass(frozen=True)
class BothLosses:
    """A release's privacy loss distributions in both directions: a client or record is removed, or added."""

    directions: tuple[Losses, ...]

    def repeated(self, count: int) -> "BothLosses":
        """Return the privacy loss distributions of `count` independent releases, in both directions."""
        return BothLosses(tuple(direction.repeated(count) for direction in self.directions))

    def with_losses(self, other: "BothLosses") -> "BothLosses":
        """Return the joint privacy loss distributions of this release and another, in both directions."""
        number = max(len(self.directions), len(other.directions))
        pairs = zip(self._of(number), other._of(number), strict=True)
        return BothLosses(tuple(own.with_losses(further) for own, further in pairs))

    def _of(self, number: int) -> tuple[Losses, ...]:
        return self.directions if len(self.directions) == number else self.directions * number

    def delta(self, epsilons: Floats) -> Floats:
        """Return for each epsilon >= 0 of an array the larger delta of the two directions, same shape."""
        return np.asarray(np.max([direction.delta(epsilons) for direction in self.directions], axis=0))

    def epsilon(self, delta: float) -> float:
        """Return epsilon at delta: the larger of the two for adding and for removing a client or record."""
        return max(direction.epsilon(delta) for direction in self.directions)


def losses_of_mixture(
    stddev: float, moves: Sequence[float], weights: Sequence[float], interval: float
) -> BothLosses:
    """Return the privacy losses of a noised sum that a client changes by moves[k] with chance weights[k].

    `stddev` is that of the noise, and a record may stand in place of the client.
    A sum that the unit is part of with probability q has the moves 0 and 1, and the weights 1 - q and q.
    """
    part = _Mixture(stddev, moves, weights)
    if not part.moves.any():
        return BothLosses((Losses(interval, 0, np.ones(1), 0.0),))

    def going(epsilons: Floats) -> Floats:
        deltas = -np.expm1(np.minimum(epsilons, 0.0))
        inside = epsilons > part.least
        at = part.where(epsilons[inside])
        deltas[inside] = part.beyond(at) - np.exp(epsilons[inside] + special.log_ndtr(-at / stddev))
        return deltas

    def coming(epsilons: Floats) -> Floats:
        deltas = np.zeros_like(epsilons)
        inside = epsilons < -part.least
        at = part.where(-epsilons[inside])
        deltas[inside] = special.ndtr(at / stddev) - part.scaled_below(at, epsilons[inside])
        return deltas

    end = part.end
    return BothLosses(
        (
            _on_grid(going, part.loss(-end), part.loss(part.furthest()), interval),
            _on_grid(coming, -part.loss(end), -part.loss(-end), interval),
        )
    )


def losses_of_replacing(stddev: float, rate: float, interval: float) -> BothLosses:
    """Return the privacy losses of a noised sum under replace-one: a sampled client changes it by 1 or -1.

    With y = exp(x / sigma^2), a = q exp(-1 / (2 sigma^2)) and b = 1 - q, the loss at x is log((b + a y) / (b
    + a / y)). It is epsilon at x = sigma^2 (epsilon / 2 + asinh((b / a) sinh(epsilon / 2))).
    """
    part = _Mixture(stddev, (0.0, 1.0), (1 - rate, rate))
    log_still = math.log1p(-rate) if rate < 1 else -math.inf
    log_ratio = log_still - math.log(rate) + 0.5 / stddev**2

    def deltas(epsilons: Floats) -> Floats:
        half = abs(epsilons) / 2
        with np.errstate(divide="ignore"):
            log_sinh = log_ratio + half + np.log(-np.expm1(-2 * half)) - math.log(2)
        across = np.logaddexp(log_sinh, 0.5 * np.logaddexp(2 * log_sinh, 0.0))
        at = stddev**2 * np.copysign(half + across, epsilons)
        other = (
            log_still + special.log_ndtr(-at / stddev),
            math.log(rate) + special.log_ndtr((-1 - at) / stddev),
        )
        return np.asarray(part.beyond(at) - np.exp(epsilons + np.logaddexp(*other)))

    def loss(at: float) -> float:
        return part.loss(at) - part.loss(-at)

    return BothLosses((_on_grid(deltas, loss(-part.end), loss(part.furthest()), interval),))


class _Mixture:
    """The mixture of Gaussians sum_k w_k N(s_k, sigma^2), without components of weight 0.

    `end`: TAIL of N(0, sigma^2) lies beyond it. `least`: log P(s = 0), the loss that no sum is below.
    """

    def __init__(self, stddev: float, moves: Sequence[float], weights: Sequence[float]) -> None:
        kept = np.asarray(weights, dtype=np.float64) > 0
        self.stddev, self.end = stddev, -stddev * float(special.ndtri(TAIL))
        self.moves = np.asarray(moves, dtype=np.float64)[kept]
        self.weights = np.asarray(weights, dtype=np.float64)[kept]
        still = float(self.weights[self.moves == 0].sum())
        self.least = math.log(still) if still else -math.inf
        moving = self.moves > 0
        self._pull = self.moves[moving] / stddev**2
        self._start = np.log(self.weights[moving]) - self._pull * self.moves[moving] / 2

    def loss(self, at: float) -> float:
        """Return the privacy loss L(x) of an output x of the mixture."""
        return float(np.logaddexp.reduce([self.least, *(self._start + self._pull * at)]))

    def beyond(self, at: Floats) -> Floats:
        """Return P(x > a) of the mixture at each a."""
        return self._summed(lambda rows: special.ndtr((self.moves - rows) / self.stddev), at)

    def scaled_below(self, at: Floats, epsilons: Floats) -> Floats:
        """Return e^epsilon P(x < a) of the mixture for each pair of a (`at`) and epsilon (`epsilons`)."""
        return self._summed(
            lambda rows: np.exp(rows[:, 1:] + special.log_ndtr((rows[:, :1] - self.moves) / self.stddev)),
            np.column_stack([at, epsilons]),
        )

    def _summed(self, table: Callable[[Floats], Floats], places: Floats) -> Floats:
        """Return sum_k w_k table(x)[:, k], the weighted sum over the mixture's components, at every x."""
        rows = places.reshape(len(places), -1)
        return _in_chunks(lambda chunk: table(chunk) @ self.weights, rows, len(self.weights))

    def furthest(self) -> float:
        """Return the output x that the mixture exceeds with the small probability TAIL."""

        def excess(at: float) -> float:
            return math.log(max(float(self.beyond(np.array([at]))[0]), 1e-300)) - math.log(TAIL)

        return float(
            optimize.brentq(
                excess, self.end * 0.99, (self.end + self.moves.max()) * 1.01, xtol=1e-6 * self.stddev
            )
        )

    def where(self, epsilons: Floats) -> Floats:
        """Return, for each epsilon, the output x with this privacy loss; epsilon must be a possible loss.

        The parts that move have log sum = log(e^epsilon - P(s = 0)), a convex function of x whose slope is
        bounded from below. Newton's steps come down to it from where its largest part alone is as large.
        """
        with np.errstate(divide="ignore"):
            wanted = epsilons + np.log(-np.expm1(self.least - epsilons))
        return _in_chunks(self._newton, wanted, len(self._pull))

    def _newton(self, wanted: Floats) -> Floats:
        at = np.full_like(wanted, np.inf)
        for start, pull in zip(self._start, self._pull, strict=True):
            at = np.minimum(at, (wanted - start) / pull)
        if len(self._pull) == 1:
            return at
        inside = np.isfinite(wanted)
        for _ in range(NEWTON_STEPS):
            exponents = self._start + self._pull * at[inside, None]
            largest = exponents.max(axis=1)
            parts = np.exp(exponents - largest[:, None])
            total = parts.sum(axis=1)
            step = (largest + np.log(total) - wanted[inside]) * total / (parts @ self._pull)
            at[inside] -= step
            if not len(step) or abs(step).max() <= 1e-9 * self.stddev:
                break
        return at


def _in_chunks(function: Callable[[Floats], Floats], values: Floats, parts: int) -> Floats:
    """Apply a function to a long array in pieces, to limit memory."""
    number = max(1, AT_ONCE // parts)
    chunks = (values[start : start + number] for start in range(0, len(values), number))
    return np.concatenate([np.zeros(0), *map(function, chunks)])


def _on_grid(deltas: Callable[[Floats], Floats], least: float, most: float, interval: float) -> Losses:
    """Return a discretised privacy loss distribution, given its delta(epsilon) as the function `deltas`.

    Between the points of the grid delta is linear in e^epsilon.

    With the difference D_i = delta_{i+1} - delta_i, the probability of loss h i is
    (D_i - e^h D_{i-1}) / (e^h - 1), and what lies below the first point is put on it.
    """
    lowest = math.floor(least / interval)
    steps = np.arange(lowest, math.ceil(most / interval) + 1, dtype=np.float64)
    points = steps * interval
    at_points = np.clip(deltas(points), 0.0, 1.0)
    at_points = np.maximum.accumulate(at_points[::-1])[::-1]
    falls = np.diff(at_points)
    chances = np.empty_like(at_points)
    chances[1:-1] = (falls[1:] - math.exp(interval) * falls[:-1]) / math.expm1(interval)
    chances[0] = 1 - at_points[0]
    if len(points) > 1:
        chances[0] += falls[0] / math.expm1(interval)
        chances[-1] = falls[-1] / math.expm1(-interval)
    return Losses(interval, lowest, np.maximum(chances, 0.0), float(at_points[-1]))
