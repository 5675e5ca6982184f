"""Survival curves and the log-rank test, from noised counts of events and censored records.

With d_i events in interval i, c_k records that are censored after k intervals, and n_i at risk::

    n_i = sum_(l>=i) d_l + sum_(k>=i) c_k          m_i = n_i - d_i, who survive it
    S_j = prod_(i<=j) m_i / n_i                    Kaplan and Meier, JASA 53, 1958
    var log S_j = sum_(i<=j) d_i / (n_i m_i)       Greenwood's, of sampling, where no d_i counts below 0
                + s^2 sum_cells (d log S_j / d cell)^2      of noise, to first order

Each cell has noise of standard deviation s of its own. The 95 % band of S_j is S_j exp(+-1.96 sd), cut to
[0, 1]: it holds for one end of an interval at a time, and covers noise and sampling. Noise may make a curve
rise; what is said is the nearest curve that does not (isotonic regression). All of it is post-processing of
one released vector, and costs nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gdpfed.extras.statistics.figures import NORMAL_QUANTILE, UNKNOWN, Counts, Figure
from gdpfed.late_import import late_import

stats = late_import("scipy.stats")

HALF = 0.5


@dataclass(frozen=True)
class Point:
    """A survival curve at the end of one interval; a value is None if noise hides it or few are at risk.

    Attributes:
        end: in the unit of the time.
        at_risk, events: in the interval.
        survival: at its end.
        low, high: the ends of the 95 % band, of noise and sampling.
        noise_stddev: of the survival, by noise alone.
    """

    end: float
    at_risk: float | None = None
    events: float | None = None
    survival: float | None = None
    low: float | None = None
    high: float | None = None
    noise_stddev: float | None = None


@dataclass(frozen=True)
class Curve:
    """The survival curve of all records, or of one group.

    `group`: None for all. `n`: how many are counted. `median`: the time at which half survive, with where the
    band does.
    """

    group: str | None
    n: Figure
    points: Sequence[Point]
    median: Figure

    @classmethod
    def of_values(cls, values: dict[str, Any]) -> Self:
        """Make a survival curve from values read from JSON."""
        points = [Point(**each) for each in values["points"]]
        return cls(values["group"], Figure(**values["n"]), points, Figure(**values["median"]))


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of whether groups survive alike; its variance includes the noise.

    Attributes:
        groups: that are compared.
        observed, expected: events of each, and how many there would be if all survived alike.
        statistic: under that hypothesis chi-squared, to first order, with `degrees` of freedom.
        p_value: the probability of one as large or larger.
    """

    groups: Sequence[str]
    observed: Sequence[float]
    expected: Sequence[float]
    statistic: float
    degrees: int
    p_value: float


def survivors(counts: Counts) -> tuple[Counts, Counts, Counts]:
    """Return each interval's events, number at risk and survivors: (..., 2 J + 1) -> three of (..., J)."""
    intervals = counts.shape[-1] // 2
    events, censored = counts[..., :intervals], counts[..., intervals + 1 :]
    at_risk = np.cumsum((events + censored)[..., ::-1], axis=-1)[..., ::-1]
    return events, at_risk, at_risk - events


def curve(group: str | None, ends: Sequence[float], counts: Counts, stddev: float, least: float) -> Curve:
    """Compute a survival curve from counts, shape (2 J + 1,), up to the first interval with few at risk."""
    events, at_risk, alive = survivors(counts)
    intervals = len(ends)
    total = float(counts.sum())
    n = Figure.about(total, NORMAL_QUANTILE * stddev * math.sqrt(counts.size))
    if least and total < least:
        n = UNKNOWN
    cells = 2 * np.arange(intervals, 0, -1)
    off = NORMAL_QUANTILE * stddev
    unknown = (at_risk <= off * np.sqrt(cells)) | (alive <= off * np.sqrt(cells - 1)) | (at_risk < least)
    unknown |= (at_risk <= 0) | (alive <= 0)
    known = int(np.argmax(unknown)) if unknown.any() else intervals
    log_survival = np.cumsum(np.log(alive[:known] / at_risk[:known]))
    survival = falling(np.exp(np.minimum(log_survival, 0)))
    sampled = np.cumsum(np.maximum(events[:known], 0) / (at_risk[:known] * alive[:known]))
    noise = np.array([_noise_of_log_survival(at_risk, alive, last) for last in range(known)]) * stddev**2
    half = NORMAL_QUANTILE * np.sqrt(sampled + noise)
    points = [
        Point(
            end=float(end),
            at_risk=float(at_risk[at]),
            events=float(events[at]),
            survival=float(survival[at]),
            low=float(survival[at] * math.exp(-half[at])),
            high=float(min(1.0, survival[at] * math.exp(half[at]))),
            noise_stddev=float(survival[at] * math.sqrt(noise[at])),
        )
        for at, end in enumerate(ends[:known])
    ]
    shown = [point.end for point in points]
    # Half survive where the curve reaches 1/2, and the interval is where its band does.
    median, early, late = (
        _time_of_half(shown, [getattr(point, name) for point in points])
        for name in ("survival", "low", "high")
    )
    of_half = Figure(median, early, late) if median is not None else UNKNOWN
    return Curve(group, n, [*points, *(Point(float(end)) for end in ends[known:])], of_half)


def _noise_of_log_survival(at_risk: Counts, alive: Counts, last: int) -> float:
    """Return the variance of log S due to noise in the counts, up to the end of interval `last`.

    An event in interval a counts in n_i up to a and in m_i before it, one censored after k intervals in both
    of the intervals before.
    """
    steps = 1 / alive[: last + 1] - 1 / at_risk[: last + 1]
    before = np.concatenate([[0.0], np.cumsum(steps)])
    own = before[:-1] - 1 / at_risk[: last + 1]
    intervals = len(at_risk)
    # Those after the last interval count in all of it.
    later = (intervals - last - 1) * before[-1] ** 2
    return float((own**2).sum() + later + (before[1:] ** 2).sum() + later)


def falling(values: Counts) -> Counts:
    """Return the least-squares fit of non-increasing values to the given values (pool adjacent violators)."""
    means, sizes = list[float](), list[int]()
    for value in values.tolist():
        means.append(value)
        sizes.append(1)
        while len(means) > 1 and means[-1] > means[-2]:
            size, mean = sizes.pop(), means.pop()
            means[-1] = (means[-1] * sizes[-1] + mean * size) / (sizes[-1] + size)
            sizes[-1] += size
    return np.repeat(means, sizes)


def _time_of_half(ends: Sequence[float], survival: Sequence[float]) -> float | None:
    end, above = 0.0, 1.0
    for later, value in zip(ends, survival, strict=True):
        if value <= HALF:
            return end + (above - HALF) / (above - value) * (later - end)
        end, above = later, value
    return None


def log_rank(groups: Sequence[str], counts: Counts, stddev: float, least: float) -> LogRank | None:
    """Return the log-rank test of all groups with enough records; None if there are fewer than two.

    `counts`: of all cells, shape (groups, 2 J + 1). With w_gi = n_gi / n_i the part of group g of those at
    risk, U_g = sum_i d_gi - w_gi d_i has the covariance sum_i d_i (n_i - d_i) / (n_i - 1) w_gi (1[g = h] -
    w_hi) of chance (Mantel, Cancer Chemotherapy Reports 50, 1966), and s^2 sum_cells (dU_g / dcell)
    (dU_h / dcell) of noise.
    """
    enough = counts.sum(axis=1) > max(least, NORMAL_QUANTILE * stddev * math.sqrt(counts.shape[1]))
    if enough.sum() < 2:
        return None
    chosen, names = counts[enough], [name for name, there in zip(groups, enough, strict=True) if there]
    events, at_risk, _ = survivors(chosen)
    all_events, everybody = events.sum(axis=0), at_risk.sum(axis=0)
    cells = 2 * np.arange(events.shape[1], 0, -1) * len(chosen)
    hidden = everybody <= np.maximum(1.0, NORMAL_QUANTILE * stddev * np.sqrt(cells))
    known = int(np.argmax(hidden)) if hidden.any() else events.shape[1]
    if not known:
        return None
    part, rate = at_risk[:, :known] / everybody[:known], all_events[:known] / everybody[:known]
    expected = (part * all_events[:known]).sum(axis=1)
    observed = events[:, :known].sum(axis=1)
    spread = np.maximum(rate, 0) * np.maximum(everybody[:known] - all_events[:known], 0)
    spread = spread * everybody[:known] / (everybody[:known] - 1)
    same = np.eye(len(chosen))
    chance = np.einsum("i,gi,ghi->gh", spread, part, same[:, :, None] - part[None])
    # How much a record of group h changes U_g, by interval, shape (g, h, i); an event does so by itself too.
    moved: Counts = np.cumsum(rate * (part[:, None] - same[:, :, None]), axis=2)
    of_events, last = same[:, :, None] - part[:, None] + moved, moved[:, :, -1]
    both = np.einsum("gfi,hfi->gh", of_events, of_events) + np.einsum("gfi,hfi->gh", moved, moved)
    # Events after the last known interval are at risk in it all.
    left = events.shape[1] - known
    covariance = chance + stddev**2 * (both + 2 * left * last @ last.T)
    difference = (observed - expected)[:-1]
    statistic = float(difference @ np.linalg.pinv(covariance[:-1, :-1]) @ difference)
    degrees = len(chosen) - 1
    return LogRank(
        groups=names,
        observed=observed.tolist(),
        expected=expected.tolist(),
        statistic=statistic,
        degrees=degrees,
        p_value=float(stats.chi2.sf(statistic, degrees)),
    )


def curves_of(
    ends: Sequence[float], groups: Sequence[str], counts: Counts, stddev: float, least: float
) -> tuple[list[Curve], LogRank | None]:
    """Return the survival curves of all records and of each group, and a log-rank test between the groups.

    `groups`: their names, none without groups; the last one is for those without a value. `counts`: of all
    cells, shape (groups, 2 J + 1), or (1, 2 J + 1).
    """
    of_all = curve(None, ends, counts.sum(axis=0), stddev * math.sqrt(len(counts)), least)
    if not groups:
        return [of_all], None
    each = [curve(name, ends, row, stddev, least) for name, row in zip(groups, counts, strict=True)]
    return [of_all, *each], log_rank(groups[:-1], counts[:-1], stddev, least)
