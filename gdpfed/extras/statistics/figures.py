"""Statistics from noised counts: means, standard deviations and quantiles, with 95 % intervals.

All of it is post-processing of one released vector, so it costs nothing. The noise of every cell is known: it
has mean 0 and one standard deviation s, and cells are independent. So the half width of an interval is 1.96
standard deviations of the figure's own noise, to first order. What other records might have said, the
sampling error, is another question and another number.

With midpoints m_j and counts c_j of the cells that hold numbers, N = sum c_j::

    mean = sum m_j c_j / N                        noise: s sqrt(sum (m_j - mean)^2) / N
    sd^2 = sum (m_j - mean)^2 c_j / N - grouping  of sd: s sqrt(sum ((m_j - mean)^2 - sd^2)^2) / (2 sd N)

Below and above the range a number counts as the end of the range. Grouping is Sheppard's correction, sum
w_j^2 c_j / (12 N) with the widths w_j of the bins. A quantile q is where the counts so far, which grow evenly
within a bin, reach q N; of N - q N both have noise, and the ends of its interval are where they might.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.extras.statistics.layout import Cells

NORMAL_QUANTILE = 1.96
QUARTILES = (0.25, 0.5, 0.75)
Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Figure:
    """A number computed from noised counts, with its 95 % interval.

    Attributes:
        value: None where nothing is known under this noise, or too few records are counted.
        low, high: the ends of what the noise leaves open.
        sampling: half of what other records of the same kind leave open; None where that is not said.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    sampling: float | None = None

    @classmethod
    def about(cls, value: float, half_width: float, sampling: float | None = None) -> "Figure":
        """Return a number with an interval of this half-width around it."""
        return cls(value, value - half_width, value + half_width, sampling)


UNKNOWN = Figure(None)


def total(counts: Counts, stddev: float) -> Figure:
    """Return the sum of noised counts with a 95 % interval; each count has noise of deviation `stddev`."""
    return Figure.about(float(counts.sum()), NORMAL_QUANTILE * stddev * math.sqrt(counts.size))


@dataclass(frozen=True)
class Moments:
    """The mean and standard deviation of a column, computed from noised counts."""

    mean: Figure
    stddev: Figure


def moments(cells: Cells, counts: Counts, stddev: float) -> Moments:
    """Compute a numeric column's mean and standard deviation from noised counts in, below and above bins."""
    ends, present = np.asarray(cells.edges), counts[:-1]
    widths = np.diff(ends, prepend=ends[0], append=ends[-1])
    middles = np.concatenate([ends[:1], (ends[:-1] + ends[1:]) / 2, ends[-1:]])
    whole = float(present.sum())
    if not whole > NORMAL_QUANTILE * stddev * math.sqrt(present.size):
        return Moments(UNKNOWN, UNKNOWN)
    mean = min(max(float(middles @ present) / whole, float(ends[0])), float(ends[-1]))
    squares = (middles - mean) ** 2
    variance = float(squares @ present - (widths**2 / 12) @ present) / whole
    noise = stddev * math.sqrt(float(squares.sum())) / whole
    if not variance > 0:
        return Moments(Figure.about(mean, NORMAL_QUANTILE * noise), UNKNOWN)
    spread = math.sqrt(variance)
    of_spread = stddev * math.sqrt(float(((squares - variance) ** 2).sum())) / (2 * spread * whole)
    sampled = NORMAL_QUANTILE * spread / math.sqrt(whole)
    off = NORMAL_QUANTILE * of_spread
    return Moments(
        Figure.about(mean, NORMAL_QUANTILE * noise, sampled),
        Figure(spread, max(0.0, spread - off), spread + off, sampled / math.sqrt(2)),
    )


def quantile(cells: Cells, counts: Counts, stddev: float, q: float) -> Figure:
    """Estimate the value below which a fraction q of a column's numbers lies, within the declared range.

    With k of J cells below an end of a bin, C - q N has noise s sqrt((1 - q)^2 k + q^2 (J - k)).
    """
    ends, present = np.asarray(cells.edges), counts[:-1]
    whole, number = float(present.sum()), present.size
    if not whole > NORMAL_QUANTILE * stddev * math.sqrt(number):
        return UNKNOWN
    above = np.cumsum(present)[:-1] - q * whole
    below = np.arange(1, number)
    noise = NORMAL_QUANTILE * stddev * np.sqrt((1 - q) ** 2 * below + q**2 * (number - below))
    # The last position where the values are 0 or less is the first one from the other end.
    high = -_crossing(-ends[::-1], -(above - noise)[::-1])
    return Figure(_crossing(ends, above), _crossing(ends, above + noise), high)


def _crossing(ends: Counts, above: Counts) -> float:
    """Return the first position, interpolated between bin edges, where the values `above` reach 0 or more."""
    reached = np.flatnonzero(above >= 0)
    if not len(reached):
        return float(ends[-1])
    at = int(reached[0])
    if at == 0:
        return float(ends[0])
    part = above[at - 1] / (above[at - 1] - above[at])
    return float(ends[at - 1] + part * (ends[at] - ends[at - 1]))


def records(blocks: list[Counts], stddev: float) -> Figure:
    """Estimate the number of records by a weighted mean of the totals of all tables of counts (blocks).

    The mean of the totals T_b, each weighted by 1 / J_b, with noise s / sqrt(sum 1 / J_b).
    """
    weights = np.array([1 / block.size for block in blocks])
    totals = np.array([block.sum() for block in blocks])
    return Figure.about(
        float(weights @ totals / weights.sum()), NORMAL_QUANTILE * stddev / math.sqrt(weights.sum())
    )
