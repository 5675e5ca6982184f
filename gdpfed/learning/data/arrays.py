"""Makes data sets of arrays, from ``.npz`` files or from memory, after checking and converting them."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, words_of
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.source import DataSource
from gdpfed.learning.data.unpacked import refuse_unpacked

Array = npt.NDArray[Any]
MOST_TIMES = 500
"""As large as its file arrays may be; zlib packs zeros to a thousandth."""
# Of what numpy raises for a file that is damaged, encrypted or larger than memory.
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, MemoryError, BadZipFile, zlib.error)


def read_npz(path: Path, keys: Sequence[str], name: str, optional: Sequence[str] = ()) -> dict[str, Array]:
    """Read the arrays with these names from an ``.npz`` file.

    `name`: what errors call the file. `optional`: arrays that need not be there.

    Raises LearningError: no ``.npz`` file, one that cannot be read, or one without these arrays.
    """
    try:
        with path.open("rb") as file:
            if not is_zipfile(file):
                raise LearningError(
                    f"{name} cannot be read as .npz: it is not an archive of arrays; write one with np.savez"
                )
            with ZipFile(file) as archive_of:
                size = sum(each.file_size for each in archive_of.infolist())
            refuse_unpacked(name, path.stat().st_size, size, MOST_TIMES)
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                missing = [key for key in keys if key not in archive]
                if missing:
                    raise LearningError(
                        f"{name} lacks the arrays {', '.join(missing)}; it needs {', '.join(keys)}"
                    )
                return {key: archive[key] for key in (*keys, *optional) if key in archive}
    except LearningError:
        raise
    except UNREADABLE as error:
        raise LearningError(f"{name} cannot be read as .npz: {words_of(error)}") from None


def as_numbers(
    values: Array, dtype: npt.DTypeLike, name: str, *, finite: bool = True, copy: bool = True
) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
    """Convert an array to ``dtype`` (float32 or int64), after checking that all values are real numbers.

    `name`: what errors call it. `finite`: whether all must be finite. `copy`: whether the array itself is not
    given back where it has the type already.

    Raises LearningError: text, complex or other values that are not real numbers, or not finite ones.
    """
    if values.dtype.kind not in "biuf":
        raise LearningError(f"{name} holds values of type {values.dtype}; it must hold real numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        numbers: npt.NDArray[np.float32] | npt.NDArray[np.int64] = values.astype(dtype, copy=copy)
    if finite and not np.isfinite(numbers).all():
        raise LearningError(
            f"{name} holds values that are not finite as {np.dtype(dtype)}: give finite numbers"
        )
    return numbers


NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
TEXT_KEYS = ("x_train", "x_test")


def load(source: DataSource) -> Dataset:
    """Load an ``.npz`` file of arrays that the user has already scaled and split into training and test data.

    With ``vocabulary`` inputs are texts, tokens from 0 to one less. Then labels may be missing: a text's last
    token is what is predicted from those before it.

    Raises LearningError: no such file, arrays missing, or of a shape or type that cannot be used.
    """
    source.allow("path", "vocabulary")
    path = Path(source.path or "").expanduser()
    if not path.is_file():
        fault = " is not set" if source.path is None else f"={source.path} is not a file"
        raise LearningError(f"dataset.path{fault}: name the .npz file that holds the data")
    place, vocabulary = str(path), source.vocabulary
    if vocabulary is None:
        return dataset_of_arrays(read_npz(path, NPZ_KEYS, place), place)
    arrays = read_npz(path, TEXT_KEYS, place, optional=("y_train", "y_test"))
    for key in TEXT_KEYS:
        x = arrays[key]
        if x.ndim != 2 or x.dtype.kind not in "iu" or not x.size or x.shape[1] < 2:
            raise LearningError(
                f"{place}: {key} has shape {x.shape} and type {x.dtype}; with dataset.vocabulary it holds "
                "texts of one length, whole numbers of shape (N, L)"
            )
        if x.min() < 0 or x.max() >= vocabulary:
            raise LearningError(
                f"{place}: {key} holds tokens from {x.min()} to {x.max()}; dataset.vocabulary={vocabulary} "
                f"has those from 0 to {vocabulary - 1}"
            )

    if len(arrays) == len(TEXT_KEYS):
        # Without labels the last token is the label.
        texts = [arrays[key].astype(np.int64) for key in TEXT_KEYS]
        return Dataset(*_alike(place, *(Split(each[:, :-1], each[:, -1]) for each in texts)), vocabulary)
    arrays = read_npz(path, NPZ_KEYS, place)
    parts = [_checked_split(place, arrays, part, np.int64) for part in ("train", "test")]
    return replace(_labelled(place, *parts), vocabulary=vocabulary)


def dataset_of_arrays(arrays: Mapping[str, Array], place: str) -> Dataset:
    """Make a data set from x_train, y_train, x_test and y_test; errors name the arrays' origin, `place`.

    Raises LearningError: arrays of a shape or type that cannot be used.
    """
    return _labelled(place, *(_checked_split(place, arrays, part) for part in ("train", "test")))


def _labelled(path: str, train: Split, test: Split) -> Dataset:
    """Make a data set from training and test examples; find the kind of labels by their shape and type."""
    labels = np.concatenate([each.y for each in _alike(path, train, test)])
    if labels.ndim == 2:
        if labels.max() > 1 or labels.shape[1] < 2:
            raise LearningError(
                f"{path}: y_train and y_test of shape (N, {labels.shape[1]}) hold {labels.max()} at most; a "
                "set has two labels or more, each 0 or 1. For one class a record give the shape (N,)"
            )
        for number, label in enumerate(labels.T):
            if (label == label[0]).all():
                raise LearningError(
                    f"{path}: label {number} is {label[0]} in all rows, and nothing is learnt of it: leave "
                    "it out"
                )
        return Dataset(train, test, int(labels.shape[1]), label_kind="label_sets")

    if labels.dtype.kind == "f":
        return Dataset(train, test, num_classes=1)

    # Classes are numbered from 0 without gaps.
    classes = np.unique(labels)
    if len(classes) < 2:
        raise LearningError(
            f"{path}: all labels are {classes[0]}, and with one class there is nothing to learn"
        )
    if classes[-1] >= len(classes):
        raise LearningError(
            f"{path}: y_train and y_test hold {len(classes)} classes, numbered from {classes[0]} to "
            f"{classes[-1]}; number them from 0 to {len(classes) - 1}, as np.unique(labels, "
            "return_inverse=True) does"
        )
    kind = "classes" if labels.ndim == 1 else "pixels"
    return Dataset(train, test, len(classes), label_kind=kind)


def _alike(path: str, train: Split, test: Split) -> tuple[Split, Split]:
    if train.x.shape[1:] != test.x.shape[1:]:
        raise LearningError(
            f"{path}: examples of shape {train.x.shape[1:]} in x_train but {test.x.shape[1:]} in x_test"
        )
    if train.y.shape[1:] != test.y.shape[1:] or train.y.dtype != test.y.dtype:
        raise LearningError(
            f"{path}: labels of shape {train.y.shape[1:]} and type {train.y.dtype} in y_train but "
            f"{test.y.shape[1:]} and {test.y.dtype} in y_test"
        )
    return train, test


def _checked_split(
    path: str, arrays: Mapping[str, Array], part: str, dtype: npt.DTypeLike = np.float32
) -> Split:
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if x.ndim < 2 or y.shape[:1] != x.shape[:1] or not y.size:
        raise LearningError(
            f"{path}: x_{part} has shape {x.shape} and y_{part} {y.shape}; they must be "
            "(N, ...) and (N,), (N, labels) or (N, ..., ...) with N > 0"
        )
    inputs = as_numbers(x, dtype, f"{path}: x_{part}")
    if y.ndim == 1 and y.dtype.kind == "f" and (y != y.round()).any():
        numbers = as_numbers(y, np.float32, f"{path}: y_{part}")
        if np.abs(numbers).max() > 1:
            raise LearningError(
                f"{path}: y_{part} holds numbers beyond -1 and 1: scale them by a range that is known "
                "without the data, or give class numbers 0, 1, 2, ... as integers"
            )
        return Split(inputs, numbers.astype(np.float32))
    if y.dtype.kind not in "biu" or y.min() < 0:
        raise LearningError(f"{path}: y_{part} must hold class numbers 0, 1, 2, ... as integers")
    return Split(inputs, y.astype(np.int64))
