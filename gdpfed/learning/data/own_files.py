"""Reads the file of a client's own examples, and checks that they have the model's shapes and types."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.arrays import as_numbers, read_npz
from gdpfed.learning.data.dataset import Split
from gdpfed.learning.data.file_form import ENDINGS, is_table, kind_of
from gdpfed.learning.data.image_folder import own_pictures
from gdpfed.learning.data.picture_form import PICTURES_FILE, read_picture_form
from gdpfed.learning.data.tabular import own_columns, own_table
from gdpfed.learning.labels import Labels
from gdpfed.registry import Registry

FOLDER = "folder"
"""The reader of a package for folders."""
OWN_KEYS = ("x_train", "y_train")
INPUT_DTYPES = ("float32", "int64")
LABEL_DTYPES = ("int64", "float32")

Arrays = tuple[npt.NDArray[np.generic] | None, ...]
Reader = Callable[[Path], Arrays]
"""From a path to inputs of shape (N, ...), scaled as the model takes them, labels of shape (N, ...) and,
where records have budgets of their own, the number of each one's group, shape (N,), or None; then, where rows
are about persons, what stands for each one's."""

READERS: Registry[Reader] = Registry("kind of file", "gdpfed.own_data", error=LearningError)


def read_own(path: Path, *, for_testing: bool = False) -> Arrays:
    """Read inputs, labels and, where there are any, groups and persons from the client's file, unchanged.

    `path`: of the file. `for_testing`: of a table, whether those records are read that its declaration says
    are for testing, or all where it says nothing.

    Raises LearningError: no such file, of a kind without a reader, or one that cannot be read.
    """
    if not path.exists():
        raise LearningError(f"data={path} does not exist: name the file with this client's own examples")
    if for_testing and is_table(path):
        return own_table(path, for_testing=True)
    if not path.is_dir():
        reader = kind_of(path).removeprefix(".")
    elif declares_pictures(path):
        reader = "pictures"
    elif FOLDER in READERS.names():
        reader = FOLDER
    else:
        raise LearningError(
            f"data={path} is a folder without {PICTURES_FILE}: declare the pictures there as the run does, "
            "or name one file"
        )
    return READERS.get(reader)(path)


def declares_pictures(path: Path) -> bool:
    """Whether a client's data is a folder of pictures with the declaration ``pictures.yaml``."""
    return path.is_dir() and (path / PICTURES_FILE).is_file()


def own_examples(path: Path, *, for_testing: bool = False) -> Split:
    """Read a client's own examples as they are in the file, of any shape and type.

    `path`, `for_testing`: as in `read_own`.

    Raises LearningError: as in `read_own`, and for a file without inputs or labels, or with more of one.
    """
    x, y, groups, persons = (*read_own(path, for_testing=for_testing), None, None)[:4]
    if x is None or y is None:
        raise LearningError(f"data={path} holds no inputs and labels: write x_train and y_train into it")
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise LearningError(
            f"data={path}: x_train has shape {x.shape} and y_train {y.shape}; give each example one label"
        )
    more = (None if each is None else each.astype(np.int64) for each in (groups, persons))
    # Of any type until `taken_as`.
    every: Any = (x, y)
    return Split(*every, *more)


def taken_as(
    own: Split,
    path: Path,
    input_shape: Sequence[int],
    input_dtype: str,
    label_dtype: str = "int64",
    columns: str | None = None,
    label_shape: Sequence[int] = (),
) -> Split:
    """Check that a client's examples have the model's shapes and types; return them.

    What decides is the shape and the type of all of them, and a declaration: of what a single example holds
    nothing does. It may still have a label of no class, or numbers that are not finite. What has the types
    already is not copied.

    Args:
        own: as `own_examples` has them.
        path: of the client's file.
        input_shape: of one example.
        input_dtype, columns, label_shape: as in `ExampleForm`.
        label_dtype: int64, or float32 where labels are numbers.

    Raises LearningError: arrays of another kind or shape.
    """
    if columns is not None and is_table(path) and own_columns(path).digest != columns:
        raise LearningError(
            f"data={path}: columns.yaml beside it declares other columns than this run: copy the run's file"
        )
    if columns is not None and declares_pictures(path) and read_picture_form(path).digest != columns:
        raise LearningError(
            f"data={path}: its {PICTURES_FILE} declares other pictures than this run: copy the run's file"
        )
    x, y = own.x, own.y
    if x.shape[1:] != tuple(input_shape) or y.shape != (len(x), *label_shape):
        raise LearningError(
            f"data={path}: x_train has shape {x.shape} and y_train {y.shape}; this training takes "
            f"(N, {', '.join(map(str, input_shape))}) and (N,{' ' * bool(label_shape)}"
            f"{', '.join(map(str, label_shape))})"
        )
    if label_dtype == "float32":
        labels: Labels = as_numbers(y, np.float32, f"data={path}: y_train", finite=False, copy=False)
    elif y.dtype.kind in "biu":
        labels = y.astype(np.int64, copy=False)
    else:
        raise LearningError(f"data={path}: y_train is {y.dtype}; it must hold class numbers, from 0")
    wanted = np.dtype(input_dtype)
    if x.dtype.kind not in ("iu" if wanted.kind == "i" else "biuf"):
        raise LearningError(f"data={path}: x_train is {x.dtype}; this training takes {wanted}")
    inputs = as_numbers(x, wanted, f"data={path}: x_train", finite=False, copy=False)
    return Split(inputs, labels, own.groups, own.persons)


def _npz(path: Path) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    arrays = read_npz(path, OWN_KEYS, f"data={path}")
    return arrays["x_train"], arrays["y_train"]


READERS.register("npz", _npz)
READERS.register("pictures", own_pictures)
for _ending in ENDINGS:
    READERS.register(_ending.removeprefix("."), own_table)
