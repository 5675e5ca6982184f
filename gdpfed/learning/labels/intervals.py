"""Computes 95 % confidence intervals of metrics, which depend on the number of test examples.

* A share of examples: Wilson's interval (1927), by `scipy.stats`.
* An area under the curve of two classes: every area A from which what was found is at most 1.96 standard
  errors away, with the error that Hanley and McNeil (1982) give for A (Newcombe, Statistics in Medicine 25,
  2006). The error of what was found would be 0 for an area of 1, however few examples there are.
* An area under the curve of several classes, if none has a single example, and any other metric: from the
  2.5th to the 97.5th percentile over examples that are drawn again with replacement (Efron's bootstrap).
"""

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.labels.classes import DEFAULT, auc_error
from gdpfed.learning.labels.kind import Metric, Outputs, Targets

optimize = late_import("scipy.optimize")
stats = late_import("scipy.stats")

FEWEST = 30
"""With fewer examples of a party nothing is shown: from this number a share is known within 17 points."""
NORMAL_QUANTILE = 1.959963984540054
"""The 97.5th percentile of the normal distribution."""
REDRAWN = 200
TINY = 1e-9
Ends = tuple[float, float]


def interval_of(name: str, metric: Metric, outputs: Outputs, targets: Targets) -> Ends | None:
    """Return the 95 % interval of a metric of outputs and targets, both (n, ...); None if there is none.

    Examples count as independent of each other, places within one do not.
    """
    if not len(targets) or metric.of(outputs, targets) is None:
        return None
    if name == DEFAULT and outputs.ndim == 2 and targets.ndim == 1:
        return share_interval(outputs.argmax(axis=1) == targets)
    if name == "auc" and outputs.ndim == 2 and outputs.shape[1] == 2:
        area, members = metric.of(outputs, targets), int((targets == 1).sum())
        return None if area is None else area_interval(area, members, len(targets) - members)
    if name == "auc" and targets.ndim == 1 and 1 in np.unique(targets, return_counts=True)[1]:
        return None  # Drawing one example again shows nothing of how others of its class would be ranked.
    return redrawn_interval(metric, outputs, targets)


def share_interval(right: npt.NDArray[np.bool_]) -> Ends:
    """Return Wilson's 95 % interval for the share of right answers; there must be at least one answer."""
    found = stats.binomtest(int(right.sum()), len(right)).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def area_interval(area: float, members: int, others: int) -> Ends:
    """Return the 95 % interval of an area under the ROC curve, by inverting a statistical test of the area.

    The test uses the standard error that the area would have if the assumed true area were right.

    `members`, `others`: how many examples there are of class 1 and of class 0, one or more.
    """

    def excess(other: float) -> float:
        return abs(area - other) - NORMAL_QUANTILE * auc_error(other, members, others)

    # At 0 and 1 the error is 0, and beside them it is larger than what lies between.
    within = min(max(area, TINY), 1 - TINY)
    low = 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, within))
    high = 1.0 if excess(1.0) <= 0 else float(optimize.brentq(excess, within, 1.0))
    return low, high


def redrawn_interval(metric: Metric, outputs: Outputs, targets: Targets) -> Ends | None:
    """Return a bootstrap interval of a metric from 200 resamplings; None if most resamples have no value.

    The draws are seeded, so a report that is made again says the same.
    """
    generator, number = np.random.default_rng(0), len(targets)
    drawn = (generator.integers(number, size=number) for _ in range(REDRAWN))
    values = [value for chosen in drawn if (value := metric.of(outputs[chosen], targets[chosen])) is not None]
    if len(values) <= REDRAWN // 2:
        return None
    low, high = np.percentile(values, [2.5, 97.5]).tolist()
    return float(low), float(high)
