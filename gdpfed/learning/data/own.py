"""A client's own examples, in the form that the model of a data set takes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.arrays import as_numbers, read_npz
from gdpfed.learning.data.dataset import Dataset, Labels, Split
from gdpfed.learning.data.features import transform_of
from gdpfed.learning.data.table_rows import KINDS as TABLE_KINDS
from gdpfed.learning.data.tabular import own_digest, own_table
from gdpfed.registry import Registry

logger = logging.getLogger(__name__)

OWN_KEYS = ("x_train", "y_train")
INPUT_DTYPES = ("float32", "int64")
LABEL_DTYPES = ("int64", "float32")

Reader = Callable[[Path], tuple[npt.NDArray[np.generic], ...]]
"""From a path to inputs of shape (N, ...), scaled as the model takes them, labels of shape (N,) and, where
records have budgets of their own, the number of each one's group, shape (N,)."""

READERS: Registry[Reader] = Registry("kind of file", "gdpfed.own_data", error=LearningError)


@dataclass(frozen=True)
class ExampleForm:
    """The form of an example, from which the model can be built without the data set.

    Attributes:
        input_shape: of one example.
        input_dtype: float32, or int64 for positions in a vocabulary.
        num_classes: labels run from 0 to one less; 1 where a label is a number in [-1, 1].
        columns: what names the declaration of the run's table; None where it has no table.
        features: the transform that pictures go through; None where there is none.
        picture_shape: of a picture before it.
    """

    input_shape: tuple[int, ...]
    input_dtype: str
    num_classes: int
    columns: str | None = None
    features: str | None = None
    picture_shape: tuple[int, ...] | None = None

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of an example as a client has it, before any transform."""
        return self.picture_shape or self.input_shape

    @property
    def label_dtype(self) -> str:
        """int64 where labels are class numbers, float32 where they are numbers."""
        return "float32" if self.num_classes == 1 else "int64"

    def blank(self) -> Split:
        """One example of zeros."""
        x = np.zeros((1, *self.input_shape), self.input_dtype)
        return Split(x, np.zeros(1, self.label_dtype))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "ExampleForm":
        """The form whose values JSON has carried.

        Raises:
            TypeError, KeyError: they are those of no form.
        """
        picture = values["picture_shape"] and tuple(values["picture_shape"])
        return cls(**{**values, "input_shape": tuple(values["input_shape"]), "picture_shape": picture})

    @classmethod
    def of(cls, data: Dataset) -> "ExampleForm":
        """The form of a data set's examples."""
        return cls(
            data.input_shape,
            str(data.input_dtype),
            data.num_classes,
            None if data.columns is None else data.columns.digest,
            data.features,
            data.picture_shape,
        )


def read_own(path: Path) -> tuple[npt.NDArray[np.generic], ...]:
    """Inputs, labels and perhaps groups as they lie in the client's file.

    Raises:
        LearningError: no such file, of a kind without a reader, or one that cannot be read.
    """
    if not path.exists():
        raise LearningError(f"data={path} does not exist: name the file with this client's own examples")
    return READERS.get(path.suffix.removeprefix(".") or "folder")(path)


def own_arrays(
    path: Path,
    input_shape: Sequence[int],
    input_dtype: str,
    label_dtype: str = "int64",
    columns: str | None = None,
) -> Split:
    """The client's own examples, if inputs and labels are of the kind that the model takes.

    Args:
        path: of the client's file.
        input_shape: of one example.
        input_dtype, label_dtype, columns: as in `ExampleForm`.

    Returns:
        The examples, whose labels may still be of no class.

    Raises:
        LearningError: as in `read_own`, and for arrays of another kind or shape.
    """
    if columns is not None and path.suffix in TABLE_KINDS and own_digest(path) != columns:
        raise LearningError(
            f"data={path}: the columns.yaml beside it declares other columns than this training's: take that"
        )
    x, y, *groups = read_own(path)
    if x.shape[1:] != tuple(input_shape) or y.shape != (len(x),):
        raise LearningError(
            f"data={path}: x_train has shape {x.shape} and y_train {y.shape}; this training takes "
            f"(N, {', '.join(map(str, input_shape))}) and (N,)"
        )
    if label_dtype == "float32":
        labels: Labels = as_numbers(y, np.float32, f"data={path}: y_train").astype(np.float32)
    elif np.issubdtype(y.dtype, np.integer):
        labels = y.astype(np.int64)
    else:
        raise LearningError(f"data={path}: y_train is {y.dtype}; it must hold class numbers, from 0")
    wanted = np.dtype(input_dtype)
    if x.dtype.kind not in ("iu" if wanted.kind == "i" else "biuf"):
        raise LearningError(f"data={path}: x_train is {x.dtype}; this training takes {wanted}")
    inputs = as_numbers(x, wanted, f"data={path}: x_train")
    return Split(inputs, labels, groups[0].astype(np.int64) if groups else None)


def own_split(path: Path, form: ExampleForm) -> Split:
    """The client's own examples as the model takes them.

    An example with a label of no class, or with a token that is not in the vocabulary, counts as a blank
    one, all zeros. The server says how many classes there are: an error, or one example less, would tell it
    of a single label, whatever the noise.

    Raises:
        LearningError: as in `own_arrays`.
    """
    own = own_arrays(path, form.own_shape, form.input_dtype, form.label_dtype, form.columns)
    blank = _unusable(own, form)
    if blank.any():
        logger.error("data=%s: %d of %d examples do not fit, and count as blank", path, blank.sum(), len(own))
        own.x[blank], own.y[blank] = 0, 0
    if form.features is None:
        return own
    return Split(transform_of(form.features)(own.x.astype(np.float32)), own.y, own.groups)


def _unusable(own: Split, form: ExampleForm) -> npt.NDArray[np.bool_]:
    """Which examples have a label of no class or a token that is not in the vocabulary, shape (N,)."""
    low, high = (-1, 1) if form.num_classes == 1 else (0, form.num_classes - 1)
    unusable = ~((own.y >= low) & (own.y <= high))
    if np.dtype(form.input_dtype).kind == "i":
        tokens = own.x.reshape(len(own), -1)
        unusable |= ((tokens < 0) | (tokens >= form.num_classes)).any(axis=1)
    return unusable


def _npz(path: Path) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    arrays = read_npz(path, OWN_KEYS, f"data={path}")
    return arrays["x_train"], arrays["y_train"]


READERS.register("csv", own_table)
READERS.register("npz", _npz)
READERS.register("parquet", own_table)
