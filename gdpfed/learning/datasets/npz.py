"""The user's own arrays: one ``.npz`` file with x_train, y_train, x_test and y_test."""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.datasets.dataset import Dataset, Split
from gdpfed.learning.datasets.source import DataSource

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
    arrays = _read(path)
    train, test = (_checked_split(path, arrays, part) for part in ("train", "test"))
    if train.x.shape[1:] != test.x.shape[1:]:
        raise LearningError(
            f"{path}: examples of shape {train.x.shape[1:]} in x_train but {test.x.shape[1:]} in x_test"
        )
    return Dataset(train, test, num_classes=1 + int(max(train.y.max(), test.y.max())))


def _read(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [key for key in NPZ_KEYS if key not in archive]
            if missing:
                raise LearningError(
                    f"{path} lacks the arrays {', '.join(missing)}; it needs {', '.join(NPZ_KEYS)}"
                )
            return {key: archive[key] for key in NPZ_KEYS}
    except (OSError, EOFError, ValueError, BadZipFile) as error:
        if isinstance(error, LearningError):
            raise
        raise LearningError(f"{path} cannot be read as .npz: {error}") from None


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
