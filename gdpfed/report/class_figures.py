"""Metrics of how well a model's scores tell classes apart, with 95 % intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from scipy.stats import rankdata

from gdpfed.learning.labels import METRICS
from gdpfed.learning.labels.classes import DEFAULT, auc
from gdpfed.learning.labels.intervals import NORMAL_QUANTILE, interval_of, share_interval

Scores = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Terms = npt.NDArray[np.float64]
AREA = "AUC"


@dataclass(frozen=True)
class Figure:
    """A metric in [-1, 1] with its 95 % interval; all values are NaN if the metric is not defined.

    `stddev`: over several runs; None for one.
    """

    value: float
    low: float
    high: float
    stddev: float | None = None

    @classmethod
    def mean(cls, figures: "Sequence[Figure]") -> "Figure":
        """Return a metric and its interval, averaged over runs, with the standard deviation between runs."""
        if len(figures) == 1:
            return figures[0]
        value, low, high = np.mean([(each.value, each.low, each.high) for each in figures], axis=0).tolist()
        return cls(value, low, high, float(np.std([figure.value for figure in figures], ddof=1)))

    @classmethod
    def around(cls, value: float, error: float, least: float = 0.0) -> "Figure":
        """Return a metric with the interval of +- 1.96 standard errors, limited to [least, 1]."""
        return cls(
            value, max(least, value - NORMAL_QUANTILE * error), min(1.0, value + NORMAL_QUANTILE * error)
        )

    @classmethod
    def share(cls, right: Mask) -> "Figure":
        """Return the share of correct rows as a metric, with Wilson's interval (1927)."""
        return cls(float(np.mean(right)), *share_interval(right)) if len(right) else NOT_DEFINED

    def text(self) -> str:
        """The metric and its interval in percent, as in ``78.0 ± 0.4 [73, 82]``."""
        if math.isnan(self.value):
            return "–"
        spread = f" ± {100 * self.stddev:.1f}" if self.stddev else ""
        return f"{100 * self.value:.1f}{spread} [{100 * self.low:.0f}, {100 * self.high:.0f}]"


NOT_DEFINED = Figure(math.nan, math.nan, math.nan)
Compute = Callable[[Scores, Labels], Figure]


def accuracy(scores: Scores, labels: Labels) -> Figure:
    """Return the share of rows whose own class has the largest score."""
    return Figure.share(scores.argmax(axis=1) == labels)


def area(scores: Scores, labels: Labels) -> Figure:
    """Return the area under the ROC curve, with an interval by Hanley and McNeil (1982).

    Of several classes it is the mean over each class against the rest, with an interval from rows that are
    drawn again. The interval is all of [0, 1] where a class has a single row, or most draws one class.
    """
    found = auc(scores, labels)
    if found is None:
        return NOT_DEFINED
    return Figure(found, *(interval_of("auc", METRICS.get("auc"), scores, labels) or (0.0, 1.0)))


def balanced_accuracy(scores: Scores, labels: Labels) -> Figure:
    """Return balanced accuracy: the share of correct predictions in each class, averaged over classes."""
    answers, shares, variance = scores.argmax(axis=1), [], 0.0
    classes = np.unique(labels)
    if len(classes) < 2:
        return NOT_DEFINED
    for each in classes:
        own = labels == each
        share = float(np.mean(answers[own] == each))
        shares.append(share)
        variance += share * (1 - share) / int(own.sum())
    return Figure.around(float(np.mean(shares)), math.sqrt(variance) / len(shares))


def sensitivity(scores: Scores, labels: Labels) -> Figure:
    """Return sensitivity: the share of rows of class 1 that are predicted as class 1."""
    own = labels == 1
    return Figure.share(scores[own].argmax(axis=1) == 1)


def specificity(scores: Scores, labels: Labels) -> Figure:
    """Return specificity: the share of rows of class 0 that are predicted as class 0."""
    own = labels == 0
    return Figure.share(scores[own].argmax(axis=1) == 0)


def calibration(scores: Scores, labels: Labels) -> Figure:
    """Return calibration in the large: class 1's mean predicted probability minus its share of the rows."""
    gaps = softmax(scores, axis=1)[:, 1] - (labels == 1)
    if len(gaps) < 2:
        return NOT_DEFINED
    return Figure.around(float(gaps.mean()), float(gaps.std(ddof=1)) / math.sqrt(len(gaps)), -1.0)


FIGURES: Mapping[str, Compute] = {DEFAULT: accuracy, AREA: area, "balanced accuracy": balanced_accuracy}
OF_TWO_CLASSES: Mapping[str, Compute] = {
    "sensitivity": sensitivity,
    "specificity": specificity,
    "calibration": calibration,
}


def figures_of(scores: Scores, labels: Labels) -> dict[str, Figure]:
    """Return all metrics of a classifier by name, from scores of shape (N, k) and labels of shape (N,)."""
    computed = FIGURES if scores.shape[1] > 2 else {**FIGURES, **OF_TWO_CLASSES}
    if len(labels) == 0:
        return dict.fromkeys(computed, NOT_DEFINED)
    return {name: compute(scores, labels) for name, compute in computed.items()}


def row_terms(scores: Scores, labels: Labels) -> dict[str, Terms]:
    """Return each row's contribution to the sampling errors of accuracy and of AUC, both of shape (N,).

    Two models on the same rows differ by a figure whose error has the difference of their terms, so that what
    is hard for both of them takes nothing away (DeLong, DeLong, Clarke-Pearson, Biometrics 44, 1988):

        accuracy: (right_i - mean) / N
        AUC A of n rows of a class and m others: (share of the others below row i - A) / n for a row of the
        class, (share of the class above row j - A) / m for another; of several classes the mean over them.

    The AUC's are NaN where it is not defined. `scores`: shape (N, k). `labels`: shape (N,).
    """
    right = (scores.argmax(axis=1) == labels).astype(np.float64)
    classes = np.unique(labels)
    if len(classes) < 2:
        return {DEFAULT: (right - right.mean()) / len(right), AREA: np.full(len(labels), math.nan)}
    two = scores.shape[1] == 2
    apart = scores[:, [0, 1]] - scores[:, [1, 0]] if two else softmax(scores, axis=1)
    of_area = []
    for each in classes:
        of_class, own = apart[:, int(each)], labels == each
        n, m = int(own.sum()), int((~own).sum())
        ranks = rankdata(of_class)
        below = (ranks[own] - rankdata(of_class[own])) / m
        above = 1 - (ranks[~own] - rankdata(of_class[~own])) / n
        terms = np.empty(len(labels))
        terms[own], terms[~own] = (below - below.mean()) / n, (above - above.mean()) / m
        of_area.append(terms)
    return {DEFAULT: (right - right.mean()) / len(right), AREA: np.mean(of_area, axis=0)}
