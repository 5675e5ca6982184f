"""Recomputes survival curves and the log-rank test from released counts.

Derivatives are taken by complex steps, f'(x) = Im f(x + ih) / h to all digits (Squire and Trapp, SIAM Review
40, 1998), and the falling curve is by the formula min_a max_b of means, in place of what the run did.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc

Z = 1.96
TINY = 1e-30
Numbers = npt.NDArray[Any]
POINT = ("at_risk", "events", "survival", "low", "high", "noise_stddev")


def curves_of(
    ends: Sequence[float], groups: Sequence[str], counts: Numbers, noise: float, least: float
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Compute survival curves and the log-rank test from counts, shape (groups, cells)."""
    found = [_curve(None, ends, counts.sum(axis=0), noise * math.sqrt(len(counts)), least)]
    if not groups:
        return found, None
    found += [_curve(name, ends, row, noise, least) for name, row in zip(groups, counts, strict=True)]
    return found, _log_rank_test(groups[:-1], counts[:-1], noise, least)


def _followed(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return each interval's number of events and of records at risk, from counts of shape (..., cells)."""
    number = counts.shape[-1] // 2
    events = counts[..., :number]
    risk = [
        counts[..., at:number].sum(axis=-1) + counts[..., number + 1 + at :].sum(axis=-1)
        for at in range(number)
    ]
    return events, np.stack(risk, axis=-1)


def _slopes(function: Callable[[Numbers], Numbers], at: Numbers) -> Numbers:
    """Return a function's derivatives with respect to each number of an array, shape (cells, values)."""
    steps = np.eye(at.size).reshape(at.size, *at.shape) * TINY * 1j
    return np.stack([function(at + step).imag / TINY for step in steps])


def _curve(
    group: str | None, ends: Sequence[float], counts: Numbers, noise: float, least: float
) -> dict[str, Any]:
    events, risk = _followed(counts)
    number, total = len(ends), float(counts.sum())
    known = 0
    while known < number:
        cells, there = 2 * (number - known), risk[known]
        stay = there - events[known]
        if there <= max(0.0, Z * noise * math.sqrt(cells)) or there < least:
            break
        if stay <= max(0.0, Z * noise * math.sqrt(cells - 1)):
            break
        known += 1

    def logarithms(cells: Numbers) -> Numbers:
        happened, exposed = _followed(cells)
        return np.cumsum(np.log1p(-happened[:known] / exposed[:known]))

    logs = logarithms(counts) if known else np.zeros(0)
    survival = _falling(np.exp(np.minimum(logs, 0.0)))
    by_noise = (_slopes(logarithms, counts) ** 2).sum(axis=0) * noise**2 if known else logs
    stay = risk[:known] - events[:known]
    chance = np.cumsum(np.maximum(events[:known], 0) / risk[:known] / stay)
    off = Z * np.sqrt(chance + by_noise)
    low, high = survival / np.exp(off), np.minimum(survival * np.exp(off), 1.0)
    values = (risk[:known], events[:known], survival, low, high, survival * np.sqrt(by_noise))
    points = [
        {"end": float(end), **dict.fromkeys(POINT)}
        if at >= known
        else {"end": float(end), **{name: float(each[at]) for name, each in zip(POINT, values, strict=True)}}
        for at, end in enumerate(ends)
    ]
    half = Z * noise * math.sqrt(counts.size)
    n = _figure(total, total - half, total + half) if not least or total >= least else _figure()
    middle = [_time_of_half(ends, each) for each in (survival, low, high)]
    median = _figure(*middle) if middle[0] is not None else _figure()
    return {"group": group, "n": n, "points": points, "median": median}


def _figure(
    value: float | None = None, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "sampling": None}


def _falling(values: Numbers) -> Numbers:
    """Return the best non-increasing fit: min over a <= j of max over b >= j of the mean of values a to b."""
    found = []
    for at in range(len(values)):
        firsts = [
            max(values[first : last + 1].mean() for last in range(at, len(values))) for first in range(at + 1)
        ]
        found.append(min(firsts))
    return np.array(found)


def _time_of_half(ends: Sequence[float], values: Numbers) -> float | None:
    """Return the first time at which survival is at most 1/2, by interpolation; None if never."""
    times, heights = [0.0, *ends], [1.0, *values.tolist()]
    for at in range(1, len(heights)):
        if heights[at] <= 0.5:
            part = (heights[at - 1] - 0.5) / (heights[at - 1] - heights[at])
            return float(times[at - 1] + part * (times[at] - times[at - 1]))
    return None


def _log_rank_test(
    names: Sequence[str], counts: Numbers, noise: float, least: float
) -> dict[str, Any] | None:
    whole = max(least, Z * noise * math.sqrt(counts.shape[1]))
    kept = [at for at, row in enumerate(counts) if row.sum() > whole]
    if len(kept) < 2:
        return None
    counts = counts[kept]
    events, risk = _followed(counts)
    number, known = events.shape[1], 0
    while known < number:
        cells = 2 * (number - known) * len(kept)
        if risk[:, known].sum() <= max(1.0, Z * noise * math.sqrt(cells)):
            break
        known += 1
    if not known:
        return None

    def difference(cells: Numbers) -> Numbers:
        happened, exposed = _followed(cells)
        alike = exposed / exposed.sum(axis=0) * happened.sum(axis=0)
        return np.asarray((happened - alike)[:, :known].sum(axis=1))

    covariance = np.zeros((len(kept), len(kept)))
    for at in range(known):
        there, gone = risk[:, at].sum(), events[:, at].sum()
        part = risk[:, at] / there
        spread = max(gone / there, 0.0) * max(there - gone, 0.0) * there / (there - 1)
        covariance += spread * (np.diag(part) - np.outer(part, part))
    slopes = _slopes(difference, counts)
    covariance += noise**2 * slopes.T @ slopes
    apart = difference(counts)
    observed = events[:, :known].sum(axis=1)
    statistic = float(apart[:-1] @ np.linalg.pinv(covariance[:-1, :-1]) @ apart[:-1])
    return {
        "groups": [names[at] for at in kept],
        "observed": observed.tolist(),
        "expected": (observed - apart).tolist(),
        "statistic": statistic,
        "degrees": len(kept) - 1,
        "p_value": float(gammaincc((len(kept) - 1) / 2, statistic / 2)),
    }
