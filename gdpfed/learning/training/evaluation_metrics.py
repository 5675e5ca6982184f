"""Metrics by name: what the released model is judged by on test examples.

A metric is one figure of the outputs of a model on all test examples. Another package adds one as an entry
point of the group ``gdpfed.metrics``, or for one process with ``METRICS.register``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.registry import Registry

special = late_import("scipy.special")
stats = late_import("scipy.stats")

Outputs = npt.NDArray[np.float64]
Targets = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """One figure of outputs of shape (N, k) and targets of shape (N,).

    `of`: the figure; None where it is not defined on such targets. `words`: what it is called in print.
    `percent`: whether it lies in [0, 1] and is shown in percent. `of_numbers`: whether targets are numbers,
    in their own unit, and outputs likewise; else class numbers.
    """

    of: Callable[[Outputs, Targets], float | None]
    words: str
    percent: bool = True
    of_numbers: bool = False


BINS = 15
"""Of confidences, for their calibration."""
METRICS: Registry[Metric] = Registry("metric", "gdpfed.metrics", error=LearningError)


def accuracy(outputs: Outputs, targets: Targets) -> float | None:
    """Share of examples whose largest output is that of their class."""
    return float(np.mean(outputs.argmax(axis=1) == targets))


def macro_f1(outputs: Outputs, targets: Targets) -> float | None:
    """Mean of 2 TP / (2 TP + FP + FN) over the classes that examples or answers have."""
    answers = outputs.argmax(axis=1)
    found = [
        2 * np.sum((answers == k) & (targets == k)) / (np.sum(answers == k) + np.sum(targets == k))
        for k in np.union1d(answers, targets)
    ]
    return float(np.mean(found))


def auc(outputs: Outputs, targets: Targets) -> float | None:
    """Area under the curve of true over false positives, the mean over each class against the rest.

    Of class k it is the probability that an example of k has a larger softmax output k than another one,
    ties counted half: (sum of ranks - n (n + 1) / 2) / (n m) with n examples of k and m others (Hanley and
    McNeil, 1982). Classes without an example are left out; with fewer than two classes it is not defined.
    """
    classes = np.unique(targets)
    if len(classes) < 2:
        return None
    # Of two classes the difference of outputs has the same order, and is not rounded to 1.
    two = outputs.shape[1] == 2
    scores = outputs[:, [0, 1]] - outputs[:, [1, 0]] if two else special.softmax(outputs, axis=1)
    areas = []
    for k in classes:
        own = targets == k
        n, m = int(own.sum()), int((~own).sum())
        areas.append((stats.rankdata(scores[:, int(k)])[own].sum() - n * (n + 1) / 2) / (n * m))
    return float(np.mean(areas))


def auc_error(area: float, members: int, others: int) -> float:
    """The standard error of an area under the curve (Hanley and McNeil, Radiology 143, 1982)."""
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (members - 1) * (first - area**2) + (others - 1) * (second - area**2)
    return math.sqrt(max(spread, 0.0) / (members * others))


def ece(outputs: Outputs, targets: Targets) -> float | None:
    """Expected calibration error: sum_b n_b / N |share right in b - mean confidence in b|.

    Confidence is the largest softmax output, in 15 bins of equal width (Guo, Pleiss, Sun, Weinberger,
    arXiv:1706.04599, equation 3). It is better the smaller.
    """
    shares = special.softmax(outputs, axis=1)
    confidence, right = shares.max(axis=1), shares.argmax(axis=1) == targets
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, right, BINS) - np.bincount(bins, confidence, BINS)
    return float(np.abs(gaps).sum() / len(targets))


def mean_absolute_error(outputs: Outputs, targets: Targets) -> float | None:
    """Mean of |output - target|, in the label's own unit."""
    return float(np.mean(np.abs(outputs[:, 0] - targets)))


def r2(outputs: Outputs, targets: Targets) -> float | None:
    """1 - sum of squared errors / sum of squared deviations from the mean; not defined for equal targets."""
    spread = float(np.sum((targets - targets.mean()) ** 2))
    return None if spread == 0 else 1 - float(np.sum((outputs[:, 0] - targets) ** 2)) / spread


def chosen_metrics(names: Sequence[str] | None, num_classes: int) -> dict[str, Metric]:
    """The metrics of these names in their order; by default accuracy, or the mean absolute error of numbers.

    `num_classes`: of the data set; 1 where a label is a number.

    Raises LearningError: no metric of a name, the same one twice, or one that does not fit the labels.
    """
    numbers = num_classes == 1
    chosen: dict[str, Metric] = {}
    for name in names or [DEFAULT_OF_NUMBERS if numbers else DEFAULT]:
        metric = METRICS.get(name)
        if metric.of_numbers != numbers:
            fitting = ", ".join(key for key, each in METRICS.items().items() if each.of_numbers == numbers)
            labels = "numbers" if numbers else "classes"
            raise LearningError(
                f"dataset.metrics={name} does not fit labels that are {labels}: choose of {fitting}"
            )
        if name in chosen:
            raise LearningError(f"dataset.metrics names {name} twice: name it once")
        chosen[name] = metric
    return chosen


DEFAULT, DEFAULT_OF_NUMBERS = "accuracy", "mean_absolute_error"
METRICS.register(DEFAULT, Metric(accuracy, "accuracy"))
METRICS.register("ece", Metric(ece, "calibration error"))
METRICS.register("auc", Metric(auc, "AUC"))
METRICS.register("macro_f1", Metric(macro_f1, "macro F1"))
METRICS.register(
    DEFAULT_OF_NUMBERS, Metric(mean_absolute_error, "mean absolute error", percent=False, of_numbers=True)
)
METRICS.register("r2", Metric(r2, "R²", percent=False, of_numbers=True))
