"""Examples that a client brings itself, in the form that the model of a data set takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.datasets.arrays import as_numbers, read_npz
from gdpfed.learning.datasets.dataset import Dataset, Split
from gdpfed.registry import Registry

OWN_KEYS = ("x_train", "y_train")
INPUT_DTYPES = ("float32", "int64")

Reader = Callable[[Path], tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]]
"""From a path to inputs of shape (N, ...), scaled as the model takes them, and labels of shape (N,)."""

READERS: Registry[Reader] = Registry("kind of file", "gdpfed.own_data", error=LearningError)


@dataclass(frozen=True)
class ExampleForm:
    """The form of an example, from which the model can be built without the data set.

    Attributes:
        input_shape: of one example.
        input_dtype: float32, or int64 for positions in a vocabulary.
        num_classes: labels run from 0 to one less.
    """

    input_shape: tuple[int, ...]
    input_dtype: str
    num_classes: int

    @classmethod
    def of(cls, data: Dataset) -> "ExampleForm":
        """The form of a data set's examples."""
        return cls(data.input_shape, str(data.input_dtype), data.num_classes)


def read_own(path: Path) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    """Inputs and labels as they lie in the client's file.

    Raises:
        LearningError: no such file, of a kind without a reader, or one that cannot be read.
    """
    if not path.exists():
        raise LearningError(f"data={path} does not exist: name the file with this client's own examples")
    return READERS.get(path.suffix.removeprefix(".") or "folder")(path)


def own_arrays(
    path: Path, input_shape: Sequence[int], input_dtype: str
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The client's own examples, if inputs and labels are of the kind that the model takes.

    Args:
        path: of the client's file.
        input_shape: of one example.
        input_dtype: as in `ExampleForm`.

    Returns:
        Inputs of shape (N, ...) and labels of shape (N,), which may still be of no class.

    Raises:
        LearningError: as in `read_own`, and for arrays of another kind or shape.
    """
    x, y = read_own(path)
    if x.shape[1:] != tuple(input_shape) or y.shape != (len(x),):
        raise LearningError(
            f"data={path}: x_train has shape {x.shape} and y_train {y.shape}; this training takes "
            f"(N, {', '.join(map(str, input_shape))}) and (N,)"
        )
    if not np.issubdtype(y.dtype, np.integer):
        raise LearningError(f"data={path}: y_train is {y.dtype}; it must hold class numbers, from 0")
    wanted = np.dtype(input_dtype)
    if x.dtype.kind not in ("iu" if wanted.kind == "i" else "biuf"):
        raise LearningError(f"data={path}: x_train is {x.dtype}; this training takes {wanted}")
    return as_numbers(x, wanted, f"data={path}: x_train"), y.astype(np.int64)


def own_split(path: Path, form: ExampleForm) -> Split:
    """The client's own examples as the model takes them.

    Raises:
        LearningError: as in `own_arrays`, and for labels that are none of the classes.
    """
    x, y = own_arrays(path, form.input_shape, form.input_dtype)
    if len(y) and not 0 <= y.min() <= y.max() < form.num_classes:
        raise LearningError(f"data={path}: y_train must hold class numbers from 0 to {form.num_classes - 1}")
    return Split(x, y)


def _npz(path: Path) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    arrays = read_npz(path, OWN_KEYS, f"data={path}")
    return arrays["x_train"], arrays["y_train"]


READERS.register("npz", _npz)
