"""Counts a model's right and wrong answers at a client; computes metrics from noised sums of such counts.

Counts of K classes are a vector of K K + 2 B numbers: the confusion matrix, a row a class and a column an
answer, then two histograms of a score in B bins of equal width from 0 to 1. Of two classes the score is the
probability of class 1, of records of class 0 and of class 1; of more classes it is that of the answer, of
wrong and of right answers. A record is in one cell and in one bin.

Rates of a client are two numbers: the shares of its records that are answered rightly and wrongly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import

special = late_import("scipy.special")

BINS = 10
MOST_CLASSES = 100
REDRAWN = 400
LEAST_SIGNAL = 3.0
"""With fewer clients than this number of standard deviations of the noise, no share is shown."""
Counts = npt.NDArray[np.float64]
Metric = Callable[[Counts, int], float | None]


def counts_dimension(num_classes: int, *, rates: bool = False) -> int:
    """Return the length of a client's count vector: 2 if `rates`, else k^2 + 2 B for k classes and B bins.

    Raises LearningError: labels that are not classes, or too many of them.
    """
    if not 2 <= num_classes <= MOST_CLASSES:
        raise LearningError(
            f"run.evaluation=nodes counts answers of 2 to {MOST_CLASSES} classes, and this data has "
            f"{num_classes or 'labels that are not single classes'}: use run.evaluation=server"
        )
    return 2 if rates else num_classes**2 + 2 * BINS


def held_out_counts(
    outputs: npt.NDArray[np.float64],
    labels: npt.NDArray[np.int64],
    persons: npt.NDArray[np.int64] | None = None,
) -> Counts:
    """Return one vector of counts: a confusion matrix, then two histograms of the model's scores.
    Shapes: outputs float[n, k], labels int[n] -> float64[d].

    Of persons each counts as one: each of its rows as its share of them. A record is in one cell and in one
    bin whatever a model says of it: numbers that are not all finite count as zeros.
    """
    weights = None
    if persons is not None:
        _, row_of, rows = np.unique(persons, return_inverse=True, return_counts=True)
        weights = 1 / rows[row_of]
    number = outputs.shape[1]
    outputs = np.where(np.isfinite(outputs).all(axis=1, keepdims=True), outputs, 0.0)
    chances = special.softmax(outputs, axis=1)
    answers = outputs.argmax(axis=1)
    two = number == 2
    scores = chances[:, 1] if two else chances.max(axis=1)
    half = labels if two else (answers == labels).astype(np.int64)
    bins = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    cells = np.bincount(labels * number + answers, weights, minlength=number**2)
    histogram = np.bincount(half * BINS + bins, weights, minlength=2 * BINS)
    return np.concatenate([cells, histogram]).astype(np.float64)


def held_out_rates(outputs: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> Counts:
    """Return the shares of right and wrong answers: outputs float[n, k], labels int[n] -> float64[2]."""
    right = float(np.mean(outputs.argmax(axis=1) == labels))
    return np.array([right, 1 - right])


@dataclass(frozen=True)
class Interval:
    """A metric and its 95 % interval, which covers noise and sampling error; all are None if undefined."""

    value: float | None
    low: float | None
    high: float | None


NOT_KNOWN = Interval(None, None, None)


def judged(counts: Counts, num_classes: int, noise_stddev: float) -> dict[str, Interval]:
    """Compute metrics with 95 % intervals from noised counts; a metric that the noise hides is None.

    The interval is from the 2.5th to the 97.5th percentile of 400 values of counts that are drawn anew:
    Poisson counts about those that were released, and the noise again (a parametric bootstrap).

    Args:
        counts: of shape (K K + 2 B,), as they were released.
        num_classes: K.
        noise_stddev: of the noise in each of them.
    """
    metrics = METRICS | (OF_TWO if num_classes == 2 else {})
    generator = np.random.default_rng(0)
    size = (REDRAWN, len(counts))
    drawn = generator.poisson(np.maximum(counts, 0), size) + generator.normal(0, noise_stddev, size)
    found = {}
    for name, metric in metrics.items():
        again = [value for each in drawn if (value := metric(each, num_classes)) is not None]
        value = metric(counts, num_classes)
        low, high = np.percentile(again, [2.5, 97.5]).tolist() if len(again) > REDRAWN // 2 else (1.0, 0.0)
        known = value is not None and low <= value <= high
        found[name] = Interval(value, low, high) if known else NOT_KNOWN
    return found


def judged_rates(rates: Counts, noise_stddev: float) -> dict[str, Interval]:
    """Compute accuracy and its 95 % interval from the noised sums of clients' right and wrong fractions.

    r / (r + w) with noise s in both is off by s sqrt(r^2 + w^2) / (r + w)^2, to first order; shares of n
    clients vary by a (1 - a) / n at most.
    """
    right, wrong = rates.tolist()
    whole = right + wrong
    value = _share(right, whole)
    if value is None or whole < LEAST_SIGNAL * noise_stddev:
        return {"accuracy": NOT_KNOWN}
    of_noise = noise_stddev * float(np.hypot(value, 1 - value)) / whole
    off = 1.96 * float(np.hypot(of_noise, np.sqrt(value * (1 - value) / whole)))
    return {"accuracy": Interval(value, max(0.0, value - off), min(1.0, value + off))}


def _share(part: float, whole: float) -> float | None:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else None


def number_of(counts: Sequence[float]) -> float:
    """Return the number of records in noised counts: the sum of the confusion matrix."""
    return float(np.sum(counts[: len(counts) - 2 * BINS]))


def _confusion(counts: Counts, num_classes: int) -> Counts:
    matrix: Counts = counts[: num_classes**2].reshape(num_classes, num_classes)
    return matrix


def _accuracy(counts: Counts, num_classes: int) -> float | None:
    matrix = _confusion(counts, num_classes)
    return _share(float(np.trace(matrix)), float(matrix.sum()))


def _recall(counts: Counts, num_classes: int, label: int) -> float | None:
    matrix = _confusion(counts, num_classes)
    return _share(float(matrix[label, label]), float(matrix[label].sum()))


def _balanced_accuracy(counts: Counts, num_classes: int) -> float | None:
    recalls = [_recall(counts, num_classes, label) for label in range(num_classes)]
    known = [recall for recall in recalls if recall is not None]
    return float(np.mean(known)) if len(known) == num_classes else None


def _histograms(counts: Counts) -> tuple[Counts, Counts]:
    return counts[-2 * BINS : -BINS], counts[-BINS:]


def _auc(counts: Counts, num_classes: int) -> float | None:
    """Compute AUC from histograms of scores; ties within a bin count half."""
    low, high = _histograms(counts)
    wins = float(high @ (np.cumsum(low) - low / 2))
    return _share(wins, float(low.sum() * high.sum())) if min(low.sum(), high.sum()) > 0 else None


def _calibration_error(counts: Counts, num_classes: int) -> float | None:
    """Compute the calibration error from counts of scores in bins."""
    false, true = _histograms(counts)
    middles = (np.arange(BINS) + 0.5) / BINS
    return _share(float(np.abs(true - middles * (false + true)).sum()), float((false + true).sum()))


METRICS: dict[str, Metric] = {
    "accuracy": _accuracy,
    "balanced accuracy": _balanced_accuracy,
    "calibration error": _calibration_error,
}
OF_TWO: dict[str, Metric] = {
    "AUC": _auc,
    "sensitivity": lambda counts, k: _recall(counts, k, 1),
    "specificity": lambda counts, k: _recall(counts, k, 0),
    "prevalence": lambda counts, k: _share(
        float(_confusion(counts, k)[1].sum()), float(counts[: k * k].sum())
    ),
}
