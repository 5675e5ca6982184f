"""Checks a `Dataset` that code outside this project made: a user's program or a package's loader."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.registry import is_ours

if TYPE_CHECKING:
    from gdpfed.learning.data.source import DataSource


def loaded(loader: "Callable[[DataSource], Dataset]", source: "DataSource") -> Dataset:
    """Call a loader, and check its data set unless the loader is this project's.

    Raises LearningError: the parts of the data set contradict each other, or it declares persons.
    """
    data = loader(source)
    if not is_ours(loader):
        check_dataset(data, f"dataset={source.name}")
        person = None if data.columns is None else data.columns.person
        if person is not None or getattr(data.train, "persons", None) is not None:
            raise LearningError(
                f"dataset={source.name}: its loader declares persons ({person or 'of train'}), and of a "
                "package's loader only rows can be protected: declare persons with dataset=csv, or return "
                "rows without persons, each of which is then a record"
            )
    return data


def check_dataset(data: Dataset, place: str) -> None:
    """Raise LearningError if parts of a `Dataset` contradict each other; `place` names it in error texts."""
    if not isinstance(data, Dataset):
        raise LearningError(
            f"{place}: its loader returns a {type(data).__name__}: return a gdpfed.learning.data.Dataset"
        )
    for name, part in (("train", data.train), ("test", data.test)):
        if isinstance(part, Split):
            _check_split(part, name, place)
    train, test = data.train, data.test
    if (
        isinstance(train, Split)
        and isinstance(test, Split)
        and not data.by_person
        and len(train)
        and len(test)
        and train.x.shape[1:] != test.x.shape[1:]
    ):
        raise LearningError(
            f"{place}: examples of train have shape {train.x.shape[1:]}, and those of test "
            f"{test.x.shape[1:]}: give both the same"
        )
    for name, part in (("train", data.train), ("test", data.test)):
        if data.labels.dtype == "int64" and part.y.dtype != np.int64:
            raise LearningError(
                f"{place}: the labels of {name} have type {part.y.dtype}, and labels that are "
                f"{data.labels.words} have type int64: convert them with astype"
            )
        wrong = np.flatnonzero(data.labels.unfit(part.y))
        # Where numbers are tested on, some may lie beyond their range.
        if len(wrong) and not (data.target_range is not None and name == "test"):
            raise LearningError(
                f"{place}: label {wrong[0]} of {name} is {part.y[wrong[0]]}, and the labels are "
                f"{data.labels.words}"
            )
    for name, owners, part in (
        ("owners", data.owners, data.train),
        ("test_owners", data.test_owners, data.test),
    ):
        if owners is not None and np.shape(owners) != (len(part),):
            raise LearningError(
                f"{place}: {name} has shape {np.shape(owners)} for {len(part)} examples: give one for each"
            )


def _check_split(part: Split, name: str, place: str) -> None:
    for letter, values in (("x", part.x), ("y", part.y)):
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
            held = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
            raise LearningError(f"{place}: {letter} of {name} is of type {held}: give an array of numbers")
    if len(part.x) != len(part.y):
        raise LearningError(
            f"{place}: {name} has {len(part.x)} examples and {len(part.y)} labels: give each one label"
        )
    if part.x.dtype.kind == "f" and not np.isfinite(part.x).all():
        raise LearningError(f"{place}: x of {name} holds values that are not finite")
