"""How data sets, rows and columns lie on paper: one panel of all data sets, or one a data set."""

from collections.abc import Sequence
from dataclasses import dataclass

from conf.experiment import Experiment

DATASET_LABELS = {
    "cifar10": "CIFAR-10",
    "digits": "Digits",
    "fmnist": "FMNIST",
    "shakespeare": "Shakespeare",
    "svhn": "SVHN",
}


@dataclass(frozen=True)
class Panel:
    """One table, or one picture's worth of columns.

    Attributes:
        title: the data set, if there is one panel a data set.
        columns: data set and column name of every column.
        headings: their headings.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    headings: tuple[str, ...]

    def titled(self, title: str) -> str:
        """``title``, and whose panel it is."""
        return f"{title}, {self.title}" if self.title else title


def dataset_label(name: str) -> str:
    """A data set's name as papers print it."""
    return DATASET_LABELS.get(name, name)


def panels_of(experiment: Experiment, datasets: Sequence[str]) -> list[Panel]:
    """One panel with the data sets side by side, or one a data set where there are columns."""
    if not experiment.columns:
        return [Panel("", tuple((name, "") for name in datasets), tuple(map(dataset_label, datasets)))]
    headings = tuple(f"{experiment.column_heading} {column.label}" for column in experiment.columns.values())
    return [
        Panel(dataset_label(name), tuple((name, column) for column in experiment.columns), headings)
        for name in datasets
    ]
