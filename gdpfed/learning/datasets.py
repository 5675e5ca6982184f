"""Data sets by name: a training split that clients share out and a test split that no client has.

A loader is a function ``path -> Dataset`` in :data:`LOADERS`; adding a data set is adding one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from gdpfed.learning.errors import LearningError

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Split:
    """Examples ``x`` of shape (N, ...) in float32 and their labels ``y`` of shape (N,) in int64."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: npt.NDArray[np.int64]) -> "Split":
        """The examples at these positions."""
        return Split(self.x[indices], self.y[indices])


@dataclass(frozen=True)
class Dataset:
    """One data set: what clients train on, what the server evaluates on."""

    train: Split
    test: Split
    num_classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.train.x.shape[1:]


def _digits(path: Path | None) -> Dataset:
    """scikit-learn's bundled handwritten digits: 1,797 grey pictures of 8x8 pixels in ten classes."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    if path is not None:
        raise LearningError(f"dataset.path={path}: digits comes with scikit-learn, leave path out")
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels.astype(np.int64), test_size=0.2, random_state=0, stratify=labels
    )
    return Dataset(Split(x_train, y_train), Split(x_test, y_test), num_classes=10)


def _npz(path: Path | None) -> Dataset:
    """The user's own arrays: one ``.npz`` file with x_train, y_train, x_test and y_test."""
    if path is None or not path.is_file():
        raise LearningError(f"dataset.path={path} is no file: name the .npz file that holds the data")
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in NPZ_KEYS if key not in archive]
            if missing:
                raise LearningError(
                    f"{path} lacks the arrays {', '.join(missing)}; it needs {', '.join(NPZ_KEYS)}"
                )
            arrays = {key: archive[key] for key in NPZ_KEYS}
    except (OSError, EOFError, ValueError, BadZipFile) as error:
        if isinstance(error, LearningError):
            raise
        raise LearningError(f"{path} cannot be read as .npz: {error}") from None
    train, test = (_checked_split(path, arrays, part) for part in ("train", "test"))
    if train.x.shape[1:] != test.x.shape[1:]:
        raise LearningError(
            f"{path}: examples of shape {train.x.shape[1:]} in x_train but {test.x.shape[1:]} in x_test"
        )
    return Dataset(train, test, num_classes=1 + int(max(train.y.max(), test.y.max())))


def _checked_split(path: Path, arrays: dict[str, npt.NDArray[np.generic]], part: str) -> Split:
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if x.ndim < 2 or y.shape != (len(x),) or len(x) == 0:
        raise LearningError(
            f"{path}: x_{part} has shape {x.shape} and y_{part} {y.shape}; they must be "
            "(N, ...) and (N,) with N > 0"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise LearningError(f"{path}: y_{part} must hold class numbers 0, 1, 2, ... as integers")
    values = x.astype(np.float32)
    if not np.isfinite(values).all():
        raise LearningError(f"{path}: x_{part} holds values that are not finite")
    return Split(values, y.astype(np.int64))


LOADERS: dict[str, Callable[[Path | None], Dataset]] = {"digits": _digits, "npz": _npz}


@lru_cache(maxsize=4)
def load_dataset(name: str, path: str | None) -> Dataset:
    """Load a data set by name, once a process.

    Raises:
        LearningError: no loader of that name, or a file that cannot be used.
    """
    if name not in LOADERS:
        raise LearningError(
            f"data set '{name}' has settings to plan with but no loader yet: "
            f"train with {' or '.join(LOADERS)}"
        )
    return LOADERS[name](None if path is None else Path(path))
