"""The user's own arrays: one ``.npz`` file with x_train, y_train, x_test and y_test."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.arrays import as_numbers, read_npz
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.source import DataSource

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


def load(source: DataSource) -> Dataset:
    """Take the arrays as they are: the user has scaled them and set the test split apart.

    Raises:
        LearningError: no such file, arrays missing, or of a shape or type that cannot be used.
    """
    source.allow("path")
    path = Path(source.path or "").expanduser()
    if not path.is_file():
        raise LearningError(f"dataset.path={source.path} is no file: name the .npz file that holds the data")
    arrays = read_npz(path, NPZ_KEYS, str(path))
    train, test = (_checked_split(path, arrays, part) for part in ("train", "test"))
    if train.x.shape[1:] != test.x.shape[1:]:
        raise LearningError(
            f"{path}: examples of shape {train.x.shape[1:]} in x_train but {test.x.shape[1:]} in x_test"
        )
    return Dataset(train, test, _num_classes(path, np.concatenate([train.y, test.y])))


def _checked_split(path: Path, arrays: dict[str, npt.NDArray[np.generic]], part: str) -> Split:
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if x.ndim < 2 or y.shape != (len(x),) or len(x) == 0:
        raise LearningError(
            f"{path}: x_{part} has shape {x.shape} and y_{part} {y.shape}; they must be "
            "(N, ...) and (N,) with N > 0"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise LearningError(f"{path}: y_{part} must hold class numbers 0, 1, 2, ... as integers")
    return Split(as_numbers(x, np.float32, f"{path}: x_{part}"), y.astype(np.int64))


def _num_classes(path: Path, labels: npt.NDArray[np.int64]) -> int:
    """How many classes there are, which must be two or more, numbered from 0 without gaps.

    Raises:
        LearningError: they are not.
    """
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
    return len(classes)
