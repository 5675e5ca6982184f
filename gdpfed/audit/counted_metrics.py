"""Recompute metrics with confidence intervals from noised counts of a model's right and wrong answers.

Counts are a confusion matrix of K x K cells, a row a class, then two histograms of B bins. Intervals are the
2.5th and 97.5th percentile over 400 counts drawn anew, as numpy's generator of seed 0 draws them: Poisson
numbers about the released ones, and the noise again. A metric that leaves its own interval is not known.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from gdpfed.audit.tolerances import SAME_FIGURE

BINS, REDRAWN = 10, 400
LEAST_SIGNAL = 3.0
NORMAL_QUANTILE = 1.96
# The cells and the bins of an honest run's counts differ by more deviations than this once in a million.
MOST_DEVIATIONS = 5.0
UNKNOWN = {"value": None, "low": None, "high": None}

Floats = npt.NDArray[np.float64]
Found = Mapping[str, Mapping[str, float | None]]


def check_metrics(said: Found, computed: Found, whose: str) -> Iterator[str]:
    """Yield a line if the metrics stated in a file do not follow from the counts in that file."""
    if said.keys() != computed.keys():
        yield f"{whose} has the metrics {', '.join(said)}, where {', '.join(computed)} follow from its counts"
        return
    for name, values in computed.items():
        for key, value in values.items():
            stated = said[name][key]
            if stated is None or value is None:
                same = stated is value
            else:
                same = math.isclose(stated, value, rel_tol=SAME_FIGURE, abs_tol=SAME_FIGURE)
            if not same:
                yield f"{whose} has {name} {stated} ({key}), where {value} follows from its counts"
                return


def check_counted_twice(counts: Floats, noise_stddev: float, whose: str) -> Iterator[str]:
    """Check that confusion matrix and score histograms count the same number of records, up to noise."""
    classes = _classes(counts)
    apart = counts[: classes**2].sum() - counts[classes**2 :].sum()
    if abs(apart) > MOST_DEVIATIONS * noise_stddev * math.sqrt(len(counts)) + SAME_FIGURE * len(counts):
        yield f"{whose} counts {abs(apart):.4g} records more in its cells than in its bins, or less"


def metrics_of_records(counts: Floats, noise_stddev: float) -> Found:
    """Compute metrics from counts (K K + 2 B,): confusion matrix of K classes, two histograms of B bins.

    Raises ValueError: a number of counts that no number of classes has.
    """
    generator, size = np.random.default_rng(0), (REDRAWN, len(counts))
    drawn = generator.poisson(np.maximum(counts, 0), size) + generator.normal(0, noise_stddev, size)
    values, again = _metrics(counts[None, :]), _metrics(drawn)
    metrics: dict[str, Mapping[str, float | None]] = {}
    for name, of_counts in values.items():
        value, known = float(of_counts[0]), again[name][np.isfinite(again[name])]
        metrics[name] = UNKNOWN
        if math.isfinite(value) and len(known) > REDRAWN // 2:
            low, high = (float(each) for each in np.percentile(known, [2.5, 97.5]))
            if low <= value <= high:
                metrics[name] = {"value": value, "low": low, "high": high}
    return metrics


def metrics_of_clients(rates: Floats, noise_stddev: float) -> Found:
    """Compute accuracy and its interval from noised sums of clients' fractions of right and wrong answers."""
    right, wrong = (float(rate) for rate in rates)
    whole = right + wrong
    if whole <= 0 or whole < LEAST_SIGNAL * noise_stddev:
        return {"accuracy": UNKNOWN}
    value = min(max(right / whole, 0.0), 1.0)
    variance = (noise_stddev / whole) ** 2 * (value**2 + (1 - value) ** 2) + value * (1 - value) / whole
    off = NORMAL_QUANTILE * math.sqrt(variance)
    return {"accuracy": {"value": value, "low": max(0.0, value - off), "high": min(1.0, value + off)}}


def _classes(counts: Floats) -> int:
    classes = math.isqrt(max(0, counts.shape[-1] - 2 * BINS))
    if classes < 2 or classes**2 + 2 * BINS != counts.shape[-1]:
        raise ValueError(
            f"{counts.shape[-1]} counts do not fit any number of classes; the file of counts is "
            "damaged, restore it from a copy"
        )
    return classes


def _metrics(counts: Floats) -> dict[str, Floats]:
    """Compute metrics from each row of counts; NaN where a metric is not defined."""
    number = _classes(counts)
    cells = counts[:, : number**2].reshape(-1, number, number)
    low, high = counts[:, -2 * BINS : -BINS], counts[:, -BINS:]
    rows, right = cells.sum(axis=2), np.einsum("nkk->nk", cells)
    recalls = _shares(right, rows)
    below = np.cumsum(low, axis=1) - low / 2
    pairs = np.where(np.minimum(low.sum(axis=1), high.sum(axis=1)) > 0, low.sum(axis=1) * high.sum(axis=1), 0)
    middles = (np.arange(BINS) + 0.5) / BINS
    missed = np.abs(high - middles * (low + high)).sum(axis=1)
    found = {
        "accuracy": _shares(right.sum(axis=1), rows.sum(axis=1)),
        "balanced accuracy": recalls.mean(axis=1),
        "calibration error": _shares(missed, (low + high).sum(axis=1)),
    }
    if number > 2:
        return found
    return found | {
        "AUC": _shares((high * below).sum(axis=1), pairs),
        "sensitivity": recalls[:, 1],
        "specificity": recalls[:, 0],
        "prevalence": _shares(rows[:, 1], rows.sum(axis=1)),
    }


def _shares(part: Floats, whole: Floats) -> Floats:
    """Divide elementwise and clip to [0, 1]; return NaN where `whole` is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(whole > 0, np.clip(part / whole, 0.0, 1.0), np.nan))
