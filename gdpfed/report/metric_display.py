"""How values are displayed: a metric with its axis, a mean over seeds, the name of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isnan
from pathlib import Path
from statistics import fmean, stdev
from typing import Self

from gdpfed.errors import LearningError
from gdpfed.learning.labels import METRICS
from gdpfed.runs.round_log import RoundLogEntry

STEP_PERCENT = 5
ABSENT = "–"
NOT_EVALUATED = "not evaluated"
TOO_FEW = "too few"
"""In place of a figure of fewer examples than one is shown of."""
DATASETS = {
    "breast_cancer": "Breast cancer",
    "cifar10": "CIFAR-10",
    "cifar10-hog": "CIFAR-10 (JPEG), HOG",
    "cifar10-jpeg": "CIFAR-10 (JPEG)",
    "cifar10-prior": "CIFAR-10 (JPEG), random prior",
    "digits": "Digits",
    "fmnist": "FMNIST",
    "heart_disease": "Heart disease",
    "shakespeare": "Shakespeare",
    "svhn": "SVHN",
    "tinyshakespeare": "Tiny Shakespeare",
    "tinyshakespeare-ngram": "Tiny Shakespeare, 3-gram",
}
OWN_DATA = {"csv": "table", "image_folder": "pictures", "npz": "data", "python": "data"}


@dataclass(frozen=True)
class Spread:
    """Mean over ``count`` values; ``stddev`` divides by count - 1 and is None for a single value."""

    mean: float
    stddev: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Compute the spread of one value or more."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def text(self, form: str = ".1f") -> str:
        """``mean ± stddev``, or the value alone; that nothing is known where a value is no number."""
        if isnan(self.mean):
            return NOT_EVALUATED
        spread = "" if self.stddev is None else f" ± {self.stddev:{form}}"
        return f"{self.mean:{form}}{spread}"


@dataclass(frozen=True)
class MetricDisplay:
    """How a metric is shown: its words, unit and scale.

    `words`: what it is called. `percent`: whether its figure is shown in percent.
    """

    words: str
    percent: bool

    @classmethod
    def of(cls, name: str) -> Self:
        """How the metric of this name is shown."""
        try:
            metric = METRICS.get(name)
        except LearningError:
            return cls(name, percent=False)
        return cls(metric.words, metric.percent)

    @property
    def heading(self) -> str:
        """The words for a column heading or an axis label."""
        return f"test {self.words}{' (%)' if self.percent else ''}"

    @property
    def form(self) -> str:
        """The format of a figure on the scale of :meth:`scaled`."""
        return ".1f" if self.percent else ".4g"

    def scaled(self, value: float) -> float:
        """The figure on the scale that it is shown on."""
        return 100 * value if self.percent else value

    def text(self, value: float | None) -> str:
        """The figure in print, with its unit."""
        if value is None or isnan(value):
            return ABSENT
        return f"{self.scaled(value):{self.form}}{' %' if self.percent else ''}"

    def axis(self, figures: Sequence[float]) -> tuple[float, float]:
        """The limits of an axis that shows these scaled figures.

        Of percents multiples of five within 0 and 100, all of it for no figures; else a margin around them.
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
    """The metric of a round in words, as in ``accuracy 86.9 %``; `NOT_EVALUATED` where there is none."""
    if not record.evaluated:
        return NOT_EVALUATED
    name, value = record.shown
    shown = MetricDisplay.of(name)
    return f"{shown.words} {shown.text(value)}"


def dataset_label(name: str, path: str | None = None) -> str:
    """The printed name of a data set; for your own data also its file or folder."""
    if name in OWN_DATA:
        place = "" if path is None else f" in {Path(path).name}"
        return f"own {OWN_DATA[name]}{place}"
    return DATASETS.get(name, name)
