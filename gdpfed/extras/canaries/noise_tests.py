"""Statistical tests of coordinates that hold only noise: is it large enough, and correlated as planned?

All are of values that are normal under the plan. Where a program has more noise than its plan, or noise whose
covariance is larger in the order of positive semidefinite matrices, each finds a fault no more often than of
one that has the plan's: a sum of squares, whatever its weights, is only larger then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.linalg import solve_triangular

from gdpfed.extras.canaries.program_check import POWER

Floats = npt.NDArray[np.float64]
# Of the directions that are looked for, the noise on one half of the coordinates is no smaller than this.
LEAST_VARIANCE = 1e-3
# Of fewer coordinates no law of their mean is near enough.
LEAST_COLUMNS = 30
# How many sums are compared with each other at most, and how many at once.
MOST_SUMS, BLOCK = 4000, 256


@dataclass(frozen=True, eq=False)
class NoiseStream:
    """The noise in one run of a sum that is repeated in every round under the same name.

    Attributes:
        rounds: whose sums came out, ascending.
        values: nan where there may be more than noise, shape (rounds, coordinates).
        root: the covariance of a column is root root^T under the plan, lower triangular.
    """

    rounds: tuple[int, ...]
    values: Floats
    root: Floats

    @cached_property
    def white(self) -> Floats:
        """The noise that is newly drawn in each round, divided by its planned standard deviation."""
        if not np.any(self.root - np.diag(np.diag(self.root))):
            return np.asarray(self.values / np.diag(self.root)[:, None])
        found = np.full(self.values.shape, np.nan)
        whole = np.isfinite(self.values).all(axis=0)
        found[:, whole] = solve_triangular(self.root, self.values[:, whole], lower=True)
        return found

    @cached_property
    def columns(self) -> Floats:
        """The newly drawn noise at those coordinates where the noise of every round is known."""
        return self.white[:, np.isfinite(self.white).all(axis=0)]


@dataclass(frozen=True)
class NoiseTest:
    """The result of a test of whether the noise is as large as planned.

    Attributes:
        share: standard deviation that was measured, in that of the plan.
        p_value: at most how likely so little noise is under the plan.
        would_find: the share below which a fault is found, with probability `POWER`.
        num_values: how many squares were added up.
    """

    share: float
    p_value: float
    would_find: float
    num_values: int


def _of_squares(total: float, count: int, level: float) -> NoiseTest:
    """Test by chi-square whether a sum of ``count`` squared standard normals is too small."""
    least = stats.chi2.ppf(level, count)
    return NoiseTest(
        share=float(np.sqrt(total / count)),
        p_value=float(stats.chi2.cdf(total, count)),
        would_find=float(np.sqrt(least / stats.chi2.ppf(POWER, count))),
        num_values=count,
    )


def amount_of_noise(streams: Sequence[NoiseStream], level: float) -> NoiseTest | None:
    """Test whether newly drawn noise of all rounds and runs is as large as planned; None if unmeasured."""
    values = np.concatenate([np.zeros(0), *(each.white[np.isfinite(each.white)] for each in streams)])
    return _of_squares(float(values @ values), len(values), level) if len(values) else None


def noise_over_rounds(
    streams: Sequence[NoiseStream], turns: Sequence[Sequence[int]], num_rounds: int, level: float
) -> NoiseTest | None:
    """Test whether noise hides a client's contributions as planned, in any weighted sum over rounds.

    With x the rounds of a client and K the planned covariance, weights a tell (a^T x)^2 / (a^T S a) of it
    under noise of covariance S, and no weights tell more than x^T K^-1 x under K. On every second coordinate
    S is measured, and the client and the weights a = S^-1 x that tell most are chosen; on the others the
    squares of a^T y are added up. So weights that nobody has thought of are found, and the test is exact.

    Args:
        streams: of every run, in which the sums of some rounds may be missing.
        turns: the rounds of some clients.
        num_rounds: T.
        level: the probability of a false alarm.

    Returns:
        The test, with the share of the planned noise that is left against the best weights; None where no
        client's rounds are there, or too few coordinates.
    """
    moves = np.zeros((num_rounds, len(turns)))
    for number, rounds in enumerate(turns):
        moves[list(rounds), number] = 1.0
    learned = shrunk_covariance([(each.rounds, each.columns[:, ::2]) for each in streams], num_rounds)
    seen, told = [], np.zeros((2, len(turns)))
    for each in streams:
        there = list(each.rounds)
        moved = solve_triangular(each.root, moves[there], lower=True)
        weights = np.linalg.solve(learned[np.ix_(there, there)], moved)
        told += np.sum(moved * weights, axis=0), np.sum(moved * moved, axis=0)
        seen.append((each.columns[:, 1::2], moved, weights))
    if not np.any(told[1] > 0):
        return None
    best = int(np.argmax(np.divide(told[0], told[1], out=np.zeros(len(turns)), where=told[1] > 0)))
    total, count = 0.0, 0
    for values, moved, weights in seen:
        x, a = moved[:, best], weights[:, best]
        if not np.any(x):
            continue
        least = (a @ x) ** 2 / (x @ x)
        total += float(np.sum((a @ values) ** 2)) / least
        count += values.shape[1]
    return _of_squares(total, count, level) if count else None


def shrunk_covariance(streams: Sequence[tuple[Sequence[int], Floats]], num_rounds: int) -> Floats:
    """Estimate the covariance of the noise between rounds, shrunk towards the planned covariance.

    ``streams`` are rounds and columns of new noise in units of its planned deviation, a run each. Of T rounds
    and n columns it is (W + (T / n) I) / (1 + T / n), shape (T, T), with W the mean of the products.
    """
    found, counts = np.zeros((2, num_rounds, num_rounds))
    for rounds, columns in streams:
        there = np.ix_(list(rounds), list(rounds))
        found[there] += columns @ columns.T
        counts[there] += columns.shape[1]
    mean = np.divide(found, counts, out=np.eye(num_rounds), where=counts > 0)
    uncertain = num_rounds / max(1.0, float(counts.max()))
    values, vectors = np.linalg.eigh((mean + uncertain * np.eye(num_rounds)) / (1 + uncertain))
    return np.asarray((vectors * np.maximum(values, LEAST_VARIANCE)) @ vectors.T)


@dataclass(frozen=True)
class LagTest:
    """The lag in rounds at which newly drawn noise is most correlated, and the test of this correlation.

    Attributes:
        lag: in rounds.
        correlation: of new noise that is `lag` rounds apart.
        p_value: bound on the chance of a correlation as large at any lag, where rounds are independent.
        would_find: the correlation above which a lag is found, with probability `POWER`.
    """

    lag: int
    correlation: float
    p_value: float
    would_find: float


def noise_at_lags(streams: Sequence[NoiseStream], num_rounds: int, level: float) -> LagTest | None:
    """Test whether the rounds' newly drawn noise is correlated; None if no two rounds can be compared.

    With w the new noise, every coordinate of every run has a sum of w_t w_(t - lag) over the rounds. Under
    the plan these sums are independent and symmetric about zero, which makes Student's t of them no larger
    than that of normal values (Efron, 1969). None where no two rounds are there.
    """
    best, smallest, lags, counts = (0, 0.0), 2.0, 0, [1]
    for lag in range(1, num_rounds):
        sums, squares = [np.zeros(0)], 0.0
        for each in streams:
            place = {index: row for row, index in enumerate(each.rounds)}
            pairs = [(row, place[index - lag]) for index, row in place.items() if index - lag in place]
            if pairs and each.columns.shape[1]:
                later, earlier = (each.columns[list(rows)] for rows in zip(*pairs, strict=True))
                sums.append(np.sum(later * earlier, axis=0))
                squares += float(np.sqrt(np.sum(later**2) * np.sum(earlier**2)))
        found = np.concatenate(sums)
        if len(found) < LEAST_COLUMNS or not squares:
            continue
        lags, counts = lags + 1, [*counts, round(squares)]
        far = float(np.mean(found)) * np.sqrt(len(found)) / max(float(np.std(found, ddof=1)), 1e-300)
        p_value = float(2 * stats.t.sf(abs(far), len(found) - 1))
        if p_value < smallest:
            best, smallest = (lag, float(np.sum(found)) / squares), p_value
    if not lags:
        return None
    least = stats.norm.isf(level / (2 * lags)) + stats.norm.ppf(POWER)
    return LagTest(
        lag=best[0],
        correlation=best[1],
        p_value=min(1.0, smallest * lags),
        would_find=float(min(1.0, least / np.sqrt(max(counts)))),
    )


@dataclass(frozen=True)
class PairTest:
    """The two sums whose noise is most correlated, and the test of this correlation.

    Attributes:
        pair: their numbers.
        correlation: of their noise.
        p_value: at most how likely so much of it is of any pair, where noise is independent.
        would_find: the correlation above which a pair is found, with probability `POWER`.
        num_pairs: that were compared.
    """

    pair: tuple[int, int]
    correlation: float
    p_value: float
    would_find: float
    num_pairs: int


def noise_in_common(noise: Floats, level: float) -> PairTest | None:
    """Test whether the noise of any two sums is correlated, with Student's t for every pair.

    ``noise`` has the new noise of a sum a row, in the same coordinates; nan where there may be more than
    noise. Under the plan the correlation r of n pairs of values, whose means are zero, has
    r sqrt((n - 1) / (1 - r^2)) ~ t(n - 1). None for fewer than two sums.
    """
    there = np.isfinite(noise).astype(np.float32)
    values = np.where(there > 0, noise, 0.0).astype(np.float32)
    num_pairs, best, smallest, sizes = 0, (0, 0, 0.0), 2.0, [0.0]
    for begin in range(0, len(noise), BLOCK):
        rows = slice(begin, begin + BLOCK)
        counts = there[rows] @ there.T
        lengths = np.sqrt((values[rows] ** 2 @ there.T) * (there[rows] @ (values**2).T))
        later = np.arange(len(noise)) > np.arange(begin, min(begin + BLOCK, len(noise)))[:, None]
        compared = later & (counts > 2) & (lengths > 0)
        num_pairs += int(compared.sum())
        found = np.divide(values[rows] @ values.T, lengths, out=np.zeros_like(lengths), where=compared)
        far = np.abs(found) * np.sqrt(np.maximum(counts - 1, 0) / np.maximum(1 - found**2, 1e-9))
        first, second = np.unravel_index(int(np.argmax(far)), far.shape)
        if compared[first, second]:
            sizes.append(float(np.median(counts[compared])))
            p_value = float(2 * stats.t.sf(far[first, second], counts[first, second] - 1))
            if p_value < smallest:
                best, smallest = (begin + int(first), int(second), float(found[first, second])), p_value
    if not num_pairs:
        return None
    least = stats.norm.isf(level / (2 * num_pairs)) + stats.norm.ppf(POWER)
    return PairTest(
        pair=best[:2],
        correlation=best[2],
        p_value=min(1.0, smallest * num_pairs),
        would_find=float(np.tanh(least / np.sqrt(max(sizes)))),
        num_pairs=num_pairs,
    )


@dataclass(frozen=True)
class LengthTest:
    """The measured norm of the canaries' contributions, and the test of whether it is within the bound.

    Attributes:
        length: in units of the bound.
        p_value: at most how likely it is to see so much of contributions within the bound.
        would_find: the length above which they are found, with probability `POWER`.
        num_values: how many canaries were counted.
    """

    length: float
    p_value: float
    would_find: float
    num_values: int


def length_of_contributions(beyond: Floats, expected: Floats, level: float) -> LengthTest | None:
    """Test by a one-sided t test whether the canaries' contributions exceed the clipping bound.

    Args:
        beyond: what every canary's projections have beyond its bound, by the weights of the best test of
            whether it was there; under the plan normal, with one variance and mean zero, or less where it
            contributes less. Shape (m,).
        expected: what it has of a contribution of the bound, by the same weights, shape (m,).
        level: the probability of a false alarm.

    Returns:
        The test; None of fewer than three canaries.
    """
    count = len(beyond)
    if count < 3:
        return None
    error = float(np.std(beyond, ddof=1)) / np.sqrt(count)
    per_bound, mean = float(np.mean(expected)), float(np.mean(beyond))
    seen = (stats.t.isf(level, count - 1) + stats.norm.ppf(POWER)) * error
    return LengthTest(
        length=1 + mean / per_bound,
        p_value=float(stats.t.sf(mean / max(error, 1e-300), count - 1)),
        would_find=1 + float(seen) / per_bound,
        num_values=count,
    )
