"""How values are displayed: metrics with units and axes, a line of text for each round, means over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, isinf, isnan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Self

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.labels import METRICS
from gdpfed.learning.labels.classes import DEFAULT
from gdpfed.runs.round_log import RoundLogEntry

special = late_import("scipy.special")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of all pictures: those of Okabe and Ito, which people with any sight of colours tell apart."""
STEP_PERCENT = 5
ABSENT = "–"
NOT_EVALUATED = "not evaluated"
TOO_FEW = "too few"
"""Shown in place of a figure that rests on too few examples."""
DATASETS = {
    "breast_cancer": "Breast cancer",
    "cifar10": "CIFAR-10",
    "cifar10-hog": "CIFAR-10 (JPEG), HOG",
    "cifar10-jpeg": "CIFAR-10 (JPEG)",
    "cifar10-prior": "CIFAR-10 (JPEG), random prior",
    "digits": "Digits",
    "fmnist": "FMNIST",
    "fmnist-prior": "FMNIST, random prior",
    "heart_disease": "Heart disease",
    "shakespeare": "Shakespeare",
    "svhn": "SVHN",
    "tinyshakespeare": "Tiny Shakespeare",
    "tinyshakespeare-ngram": "Tiny Shakespeare, 3-gram",
}
OWN_DATA = {"csv": "table", "image_folder": "pictures", "npz": "data", "python": "data"}


WITHOUT_A_SUM = "no sum, rounds.jsonl says why"


@dataclass(frozen=True)
class Spread:
    """The mean of ``count`` values and their standard deviation, which is None for a single value."""

    mean: float
    stddev: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Compute mean and standard deviation of at least one value; of runs not evaluated (NaN) neither."""
        varies = len(values) > 1 and all(map(isfinite, values))
        return cls(fmean(values), stdev(values) if varies else None, len(values))

    def text(self, form: str = ".1f") -> str:
        """Write ``mean ± stddev``, the mean alone if there is only one value, or "not evaluated" for NaN."""
        if isnan(self.mean):
            return NOT_EVALUATED
        spread = "" if self.stddev is None else f" ± {self.stddev:{form}}"
        return f"{self.mean:{form}}{spread}"

    def half_width(self) -> float | None:
        """Return half of the mean's 95 % interval, t(0.975, n - 1) s / sqrt(n); None for one value."""
        if self.stddev is None:
            return None
        return float(special.stdtrit(self.count - 1, 0.975)) * self.stddev / sqrt(self.count)

    def with_interval(self, form: str = ".1f") -> str:
        """Write ``mean ± half of its 95 % interval``, or the mean alone if there is only one value."""
        half = self.half_width()
        return f"{self.mean:{form}}" if half is None else f"{self.mean:{form}} ± {half:{form}}"


@dataclass(frozen=True)
class MetricDisplay:
    """How a metric is shown: `words`, its displayed name, and `percent`, whether its value is in percent."""

    words: str
    percent: bool

    @classmethod
    def of(cls, name: str) -> Self:
        """Look up how a metric is shown; a metric that is not registered is shown under its own name."""
        try:
            metric = METRICS.get(name)
        except LearningError:
            return cls(name, percent=False)
        return cls(metric.words, metric.percent)

    @property
    def heading(self) -> str:
        """The heading of a column or the label of an axis for this metric."""
        return f"test {self.words}{' (%)' if self.percent else ''}"

    @property
    def form(self) -> str:
        """The number format for displayed values of this metric."""
        return ".1f" if self.percent else ".4g"

    def scaled(self, value: float) -> float:
        """Convert a value of the metric to the scale of display, such as percent."""
        return 100 * value if self.percent else value

    def text(self, value: float | None) -> str:
        """Write a value of the metric with its unit."""
        if value is None or isnan(value):
            return ABSENT
        return f"{self.scaled(value):{self.form}}{' %' if self.percent else ''}"

    def axis(self, figures: Sequence[float]) -> tuple[float, float]:
        """Return the limits of a picture's axis for these displayed values.

        In percent the limits are multiples of five from 0 to 100, and 0 and 100 without values. Other metrics
        have a margin around the values.
        """
        finite = [figure for figure in figures if not isnan(figure)]
        if not self.percent:
            low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
            margin = 0.05 * (high - low) or 0.5
            return low - margin, high + margin
        if not finite:
            return 0, 100
        low = STEP_PERCENT * floor(max(0.0, min(finite)) / STEP_PERCENT)
        high = STEP_PERCENT * ceil(min(100.0, max(finite)) / STEP_PERCENT)
        return (low, high) if low < high else (max(0, low - STEP_PERCENT), min(100, high + STEP_PERCENT))


def shown_in(record: RoundLogEntry) -> str:
    """Write a round's metric in words, as in ``accuracy 86.9 %``."""
    if not record.evaluated:
        return NOT_EVALUATED
    name, value = record.shown
    shown = MetricDisplay.of(name)
    return f"{shown.words} {shown.text(value)}"


def dataset_label(name: str, path: str | None = None) -> str:
    """Return the displayed name of a data set; the name of a user's own data includes the file or folder."""
    if name in OWN_DATA:
        place = "" if path is None else f" in {Path(path).name}"
        return f"own {OWN_DATA[name]}{place}"
    return DATASETS.get(name, name)


def status_line(
    record: RoundLogEntry,
    budgets: Sequence[float],
    num_rounds: int,
    seconds_left: float,
    *,
    cohorts: bool,
    against: str,
) -> str:
    """Describe a round in one line: metric, cohort, survivors, epsilon spent and left, time, failures.

    Without ``cohorts`` the line leaves out what reveals the draw: cohort, survivors, all times, and the
    reasons of failures.
    """
    failures = record.failures if cohorts else dict.fromkeys(record.failures, WITHOUT_A_SUM)
    failed = "".join(f"; {name}: {reason}" for name, reason in failures.items())
    shown = f"round {record.round}/{num_rounds}: {shown_in(record)}"
    if all(isinf(budget) for budget in budgets):
        spent = "no privacy"
    else:
        figures = [
            f"{epsilon:.2f}+{max(0.0, budget - epsilon):.2f}"
            for epsilon, budget in zip(record.spent_epsilon, budgets, strict=True)
            if epsilon is not None
        ]
        whom = f" against {against}," if against else ""
        spent = f"epsilon{whom} spent+left {', '.join(figures)}"
    if not cohorts:
        return f"{shown}, {spent}{failed}"
    left = f"{duration(seconds_left)} left{failed}"
    drawn = f"asked {each_of(record.cohort_sizes)}, in the sums {each_of(record.survivors)}"
    return f"{shown}, {drawn}, {spent}, {record.seconds['total']:.1f} s, {left}"


def each_of(sizes: Sequence[int]) -> str:
    """Write the sizes of groups or sums with plus signs, as in 3+4."""
    return "+".join(str(size) for size in sizes) or "0"


def duration(seconds: float) -> str:
    """Write a duration in words, as in 1 min 5 s."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole_seconds} s" if minutes else f"{whole_seconds} s"


def metrics_of(record: RoundLogEntry, *, cohorts: bool) -> dict[str, float]:
    """Return all numbers in a round's log entry by name, for trackers such as TensorBoard.

    Without ``cohorts`` all numbers that depend on the drawn clients are left out, with all times.
    """
    by_group: dict[str, Sequence[float | None]] = {"epsilon/group": record.spent_epsilon}
    if cohorts:
        by_group |= {
            "cohort/group": record.cohort_sizes,
            "survivors/sum": record.survivors,
            "epsilon_against_server/group": record.epsilon_against_server,
        }
    by_name: dict[str, float | None] = {DEFAULT: record.accuracy} | record.metrics | {"loss": record.loss}
    metrics = {f"test/{name}": value for name, value in by_name.items() if value is not None}
    for name, values in by_group.items():
        metrics |= {f"{name}_{k}": float(v) for k, v in enumerate(values) if v is not None}
    seconds = record.seconds if cohorts else {}
    return metrics | {f"seconds/{phase}": value for phase, value in seconds.items()}
