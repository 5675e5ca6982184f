"""Lower confidence bounds on epsilon, from guesses about which canaries took part in a run.

A canary is in a run or not, by a fair coin of its own. Whoever sees what the run reveals guesses some of
the coins. The better the guesses, the more the run must have told. Every bound here is exact for finitely
many canaries; those with "one run" in their name hold however the canaries influence each other.

Sources: Steinke, Nasr, Jagielski, arXiv:2305.08846; Mahloujifar, Melis, Chaudhuri, arXiv:2410.22235;
Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar, arXiv:2302.03098; Nasr et al., arXiv:2101.04535.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats
from scipy.special import betaincinv, ndtr, ndtri

Scores = npt.NDArray[np.float64]
LARGEST_EPSILON = 100.0
LARGEST_SCALE = 64.0
# A curve tells nothing of alarms that are rarer than this number times its least delta.
TOLD_FROM = 10.0
RESOLUTION = 1e-4


@dataclass(frozen=True)
class Guesses:
    """The numbers of canaries, of guesses about canaries, and of correct guesses."""

    num_canaries: int
    num_guesses: int
    num_correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.num_correct <= self.num_guesses <= self.num_canaries:
            raise ValueError(
                f"{self.num_correct} right of {self.num_guesses} guesses about {self.num_canaries} canaries "
                "cannot be: guesses must be at most canaries, and right guesses at most guesses"
            )


@dataclass(frozen=True)
class PrivacyCurve:
    """Pairs (epsilon, delta) that one mechanism satisfies; together they bound how well any attack can do.

    It is f-differential privacy with f the largest trade-off function under all the pairs, each of which
    says f(x) >= max(0, 1 - delta - e^epsilon x, e^-epsilon (1 - delta - x)) (Dong, Roth, Su,
    arXiv:1905.02383, Proposition 2.4).
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def trade_off(self, false_alarms: float) -> float:
        """Return f(x): the smallest false negative rate of any attack whose false positive rate is x."""
        slopes, offsets, edges = self._lines
        index = bisect_right(edges, false_alarms)
        return max(0.0, offsets[index] - slopes[index] * false_alarms)

    def separation(self, false_alarms: float) -> float:
        """Return the distance of unit Gaussians at false positive rate x: Phi^-1(1 - f(x)) - Phi^-1(x)."""
        if not 0.0 < false_alarms < 1.0:
            return 0.0
        return float(ndtri(1.0 - self.trade_off(false_alarms)) - ndtri(false_alarms))

    def epsilon(self, delta: float, scale: float) -> float:
        """Return epsilon at delta if the Gaussian distance (`separation`) were ``scale`` times as large.

        It is the largest log((1 - f(x) - delta) / x). For the Gaussian mechanism it is that of the noise
        divided by ``scale``.
        """
        if scale <= 0.0:
            return 0.0
        x, separations = self._grid
        alarms = ndtr(ndtri(x) + scale * separations)
        ratios = (alarms - delta) / x
        return math.log(max(1.0, float(np.max(ratios))))

    @cached_property
    def _grid(self) -> tuple[Scores, Scores]:
        """Return a grid of false positive rates, and the trade-off function's `separation` at each."""
        tail = np.logspace(-40, -2, 800)
        x = np.concatenate([tail, np.linspace(0.01, 0.99, 197)[1:-1], 1 - tail[tail > 1e-9][::-1]])
        told = [1.0 - self.trade_off(each) >= TOLD_FROM * min(self.deltas) for each in x]
        separations = np.asarray([self.separation(each) for each in x])
        first = int(np.argmax(told))
        separations[:first] = separations[first]
        return x, separations

    @cached_property
    def _lines(self) -> tuple[list[float], list[float], list[float]]:
        """The lines whose maximum is the trade-off function: slopes, offsets, and crossing points."""
        lines = []
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            if math.isinf(epsilon) or delta >= 1.0:
                continue
            factor = math.exp(min(epsilon, 700.0))
            lines += [(factor, 1.0 - delta), (1.0 / factor, (1.0 - delta) / factor)]
        lines.sort(key=lambda line: (-line[0], -line[1]))
        kept: list[tuple[float, float]] = []
        for slope, offset in lines:
            if kept and slope == kept[-1][0]:
                continue
            while kept and (
                offset >= kept[-1][1]
                or (len(kept) > 1 and _crossing(kept[-2], (slope, offset)) <= _crossing(kept[-2], kept[-1]))
            ):
                kept.pop()
            kept.append((slope, offset))
        if not kept:
            kept = [(0.0, 0.0)]
        edges = [_crossing(left, right) for left, right in pairwise(kept)]
        return [slope for slope, _ in kept], [offset for _, offset in kept], edges


def _crossing(steep: tuple[float, float], flat: tuple[float, float]) -> float:
    return (steep[1] - flat[1]) / (steep[0] - flat[0])


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Bound the probability of at least this many correct guesses if a program is (epsilon, delta)-private.

    Steinke et al., Theorem 5.2: with pure privacy the right guesses are at most binomial, each right with
    probability e^epsilon / (1 + e^epsilon); delta adds 2 m delta max_i P(v - i <= W < v) / i.
    """
    correct, tried = guesses.num_correct, guesses.num_guesses
    right = 1.0 / (1.0 + math.exp(-epsilon))
    pure = float(stats.binom.sf(correct - 1, tried, right))
    if delta == 0.0 or correct == 0:
        return min(1.0, pure)
    steps = np.arange(1, correct + 1)
    between = stats.binom.sf(correct - steps - 1, tried, right) - pure
    return min(1.0, pure + 2 * guesses.num_canaries * delta * float(np.max(between / steps)))


def one_run_epsilon(guesses: Guesses, delta: float, significance: float) -> float:
    """Return the largest epsilon that these guesses rule out at delta, at this significance level."""
    return largest_refuted(
        lambda epsilon: one_run_p_value(guesses, epsilon, delta) <= significance, LARGEST_EPSILON
    )


def refutes(guesses: Guesses, trade_off: Callable[[float], float], significance: float) -> bool:
    """Return whether this many correct guesses rule out a trade-off function, at level `significance`.

    Mahloujifar et al., Algorithm 3 (audit_rh) for two values a coin: it follows how probable right and
    wrong guesses may at most be, from the most right guesses downwards.
    """
    correct, tried, total = guesses.num_correct, guesses.num_guesses, guesses.num_canaries
    right, wrong = significance * correct / total, significance * (tried - correct) / total
    for index in range(correct - 1, -1, -1):
        larger = max(wrong, trade_off(1.0 - right))
        if larger == wrong:
            break
        right = min(1.0, right + index / (tried - index) * (larger - wrong))
        wrong = larger
    return right + wrong > tried / total


def refuted_scale(guesses: Guesses, curve: PrivacyCurve, significance: float) -> float:
    """Return the largest s at which the guesses rule out s times the curve's Gaussian `separation`.

    Where it is above 1, the mechanism is not what the curve says, with confidence 1 - significance.
    """
    if 2 * guesses.num_correct <= guesses.num_guesses:
        return 0.0

    def refuted(scale: float) -> bool:
        def trade_off(x: float) -> float:
            if not 0.0 < x < 1.0:
                return curve.trade_off(x)
            return float(ndtr(-ndtri(x) - scale * curve.separation(x)))

        return refutes(guesses, trade_off, significance)

    return largest_refuted(refuted, LARGEST_SCALE)


@dataclass(frozen=True)
class Alarms:
    """Confidence bounds on the true and false positive rates of guesses by one threshold on the scores.

    An alarm says of a canary that it was in the run, or of one that it was not.
    """

    true: float
    false: float

    def epsilon(self, delta: float) -> float:
        """Return log((true - delta) / false), at least 0: the epsilon that the two rates rule out."""
        return max(0.0, math.log((self.true - delta) / self.false)) if self.true > delta else 0.0

    def scale(self, curve: PrivacyCurve) -> float:
        """Return the distance ndtri(true) - ndtri(false) of the rates, divided by the curve's `separation`.

        At least 0; it is 0 if the curve allows any distance or none.
        """
        if not (self.true > 0.0 and self.false < 1.0):
            return 0.0
        allowed = curve.separation(self.false)
        shown = float(ndtri(self.true) - ndtri(self.false))
        return max(0.0, shown / allowed) if 0.0 < allowed < math.inf else 0.0


FALSE_ALARM_SHARES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5)
NUM_ALARMS = 2 * len(FALSE_ALARM_SHARES)


def alarms_of(scores: Scores, present: npt.NDArray[np.bool_], significance: float) -> list[Alarms]:
    """Bound the error rates of guesses at several thresholds: a high score says present, a low score absent.

    A threshold is the k-th of n scores that alarms would be false for. Whatever their law, the share of such
    scores beyond it is at most Beta(k, n - k + 1), and the other canaries beyond it are binomial: both bounds
    hold at a significance of one half. It needs canaries that do not influence each other.
    """
    found = []
    for sign, negatives, positives in ((1, ~present, present), (-1, present, ~present)):
        false, true = np.sort(sign * scores[negatives])[::-1], sign * scores[positives]
        if not len(false) or not len(true):
            continue
        for share in FALSE_ALARM_SHARES:
            rank = max(1, math.ceil(share * len(false)))
            hits = int(np.sum(true > false[rank - 1]))
            found.append(
                Alarms(
                    at_least(hits, len(true), significance / 2),
                    float(betaincinv(rank, len(false) - rank + 1, 1 - significance / 2)),
                )
            )
    return found


def at_least(hits: int, trials: int, significance: float) -> float:
    """Return a lower confidence limit for a probability, given hits in trials (Clopper and Pearson)."""
    return float(betaincinv(hits, trials - hits + 1, significance)) if hits else 0.0


def two_gaussians_epsilon(present: Scores, absent: Scores, delta: float) -> float:
    """Estimate epsilon at delta from two Gaussians fitted to the scores of present and of absent canaries.

    Andrew et al., Section 3, with both laws fitted; the larger one of both directions.
    """
    laws = [stats.norm(np.mean(scores), max(np.std(scores), 1e-12)) for scores in (present, absent)]
    return max(_divergence_epsilon(laws[0], laws[1], delta), _divergence_epsilon(laws[1], laws[0], delta))


def _divergence_epsilon(law: "stats.rv_frozen", other: "stats.rv_frozen", delta: float) -> float:
    """Return the smallest epsilon at which two distributions' hockey-stick divergence is at most delta."""
    spread = 8 * max(law.std(), other.std())
    edges = np.linspace(min(law.mean(), other.mean()) - spread, max(law.mean(), other.mean()) + spread, 20001)
    p, q = np.diff(law.cdf(edges)), np.diff(other.cdf(edges))

    def excess(epsilon: float) -> float:
        return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0))) - delta

    if excess(0.0) <= 0.0:
        return 0.0
    if excess(LARGEST_EPSILON) > 0.0:
        return math.inf
    return float(optimize.brentq(excess, 0.0, LARGEST_EPSILON, xtol=RESOLUTION))


def largest_refuted(refuted: Callable[[float], bool], most: float) -> float:
    """Search for the largest value up to ``most`` that `refuted` rules out; return 0 if it rules out none."""
    low, high = 0.0, min(1.0, most)
    while high < most and refuted(high):
        low, high = high, min(most, 2 * high)
    if high == most and refuted(most):
        return most
    while high - low > RESOLUTION * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


# Shares of all canaries that are guessed: the highest scores alone, and as many of the lowest with them.
ONE_SIDED_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
TWO_SIDED_SHARES = (0.05, 0.2, 0.5)
NUM_SHARES = len(ONE_SIDED_SHARES) + len(TWO_SIDED_SHARES)


def guesses_of(scores: Scores, present: npt.NDArray[np.bool_]) -> list[Guesses]:
    """Return several sets of guesses: highest scores mean present; in some sets, lowest scores mean absent.

    Of equal scores the first come first, which nobody's coin decides.
    """
    order = np.argsort(-scores, kind="stable")
    right_in = np.concatenate([[0], np.cumsum(present[order])])
    right_out = np.concatenate([[0], np.cumsum(~present[order[::-1]])])
    total = len(scores)
    one_sided = [math.ceil(share * total) for share in ONE_SIDED_SHARES]
    two_sided = [math.floor(share * total) for share in TWO_SIDED_SHARES]
    return [
        *(Guesses(total, count, int(right_in[count])) for count in one_sided),
        *(Guesses(total, 2 * count, int(right_in[count] + right_out[count])) for count in two_sided),
    ]


def best_of(bound: Callable[[Guesses], float], guesses: Sequence[Guesses]) -> float:
    """Return the largest bound on epsilon over several sets of guesses."""
    return max((bound(each) for each in guesses), default=0.0)
