"""A client's own examples, in the form that the model of a data set takes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.arrays import as_numbers, read_npz
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.encoded import Encoder
from gdpfed.learning.data.features import transform_of
from gdpfed.learning.data.persons import grouped
from gdpfed.learning.data.table_file import is_table
from gdpfed.learning.data.tabular import own_columns, own_table
from gdpfed.learning.labels import LabelKind, Labels, labels_of
from gdpfed.registry import Registry

logger = logging.getLogger(__name__)

OWN_KEYS = ("x_train", "y_train")
INPUT_DTYPES = ("float32", "int64")
LABEL_DTYPES = ("int64", "float32")

Arrays = tuple[npt.NDArray[np.generic] | None, ...]
Reader = Callable[[Path], Arrays]
"""From a path to inputs of shape (N, ...), scaled as the model takes them, labels of shape (N, ...) and,
where records have budgets of their own, the number of each one's group, shape (N,), or None; then, where rows
are about persons, what stands for each one's."""

READERS: Registry[Reader] = Registry("kind of file", "gdpfed.own_data", error=LearningError)

Chooser = Callable[[Split], npt.NDArray[np.bool_]]
MOST_KEPT = 4
"""Transformed files of a process, such as what a node trains on and what it holds out."""
_kept: dict[tuple[object, ...], npt.NDArray[np.float32]] = {}


@dataclass(frozen=True)
class OwnData:
    """Where a client's own examples lie, and which of them it holds out: never trained on, counted on alone.

    Of a table they are also those that the declaration beside it says are for testing.

    Attributes:
        path: the file or folder.
        held_out_path: another one, all of which is held out; None without one.
        held_out_share: the part of ``path`` that is held out.
    """

    path: Path
    held_out_path: Path | None = None
    held_out_share: float = 0.0

    @property
    def rule(self) -> str:
        """SHA-256, in hexadecimal, of what decides which examples are held out, other than they themselves.

        Raises LearningError: a table without a declaration.
        """
        columns = own_columns(self.path) if is_table(self.path) else None
        chosen = ("by the examples as they lie in the file",) * bool(self.held_out_share)
        if columns is not None and (columns.test is not None or self.held_out_share):
            # Before, names were compared as numbers, so other rows could be held out.
            chosen = (*chosen, "names are texts")
        said = (str(self.held_out_path), self.held_out_share, columns.digest if columns else "", *chosen)
        return sha256(repr(said).encode()).hexdigest()

    @property
    def person_parties(self) -> int:
        """At how many parties a person may have rows, by a table's declaration; 0 where none are declared.

        Raises LearningError: a table without a declaration.
        """
        columns = own_columns(self.path) if is_table(self.path) else None
        return 0 if columns is None or columns.person is None else columns.person_parties


@dataclass(frozen=True)
class ExampleForm:
    """The form of an example, from which the model can be built without the data set.

    Attributes:
        input_shape: of one example.
        input_dtype: float32, or int64 for positions in a vocabulary.
        num_classes: labels run from 0 to one less, or a set has so many; 1 where a label is a number.
        columns: what names the declaration of the run's table; None where it has no table.
        features: the transform that pictures go through; None where there is none.
        picture_shape: of an example before it.
        by_person: whether a training record is a person with all its rows.
        vocabulary: how many tokens there are, where inputs are tokens and labels are not; else None.
        encoder: where the transform is an encoder from a file.
        label_kind: by name, as in `Dataset`.
        label_shape: of one label; () for one value.
    """

    input_shape: tuple[int, ...]
    input_dtype: str
    num_classes: int
    columns: str | None = None
    features: str | None = None
    picture_shape: tuple[int, ...] | None = None
    by_person: bool = False
    vocabulary: int | None = None
    encoder: Encoder | None = None
    label_kind: str = ""
    label_shape: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """From 0 to one less than this, where inputs are tokens."""
        encoded = None if self.encoder is None else self.encoder.vocabulary
        return self.vocabulary or encoded or self.num_classes

    @property
    def own_dtype(self) -> str:
        """The data type of an example as a client has it, before any transform."""
        of_texts = self.encoder is not None and self.encoder.vocabulary is not None
        return "int64" if of_texts else self.input_dtype

    @property
    def labels(self) -> LabelKind:
        """What its label is.

        Raises LearningError: no kind of that name.
        """
        return labels_of(self.label_kind, self.num_classes, self.label_shape)

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of an example as a client has it, before any transform."""
        return self.picture_shape or self.input_shape

    def blank(self) -> Split:
        """One example of zeros."""
        x = np.zeros((1, *self.input_shape), self.input_dtype)
        y = np.zeros((1, *self.label_shape), self.labels.dtype)
        row = Split(x, y, persons=np.zeros(1, np.int64) if self.by_person else None)
        return grouped(row) if self.by_person else row

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "ExampleForm":
        """The form whose values JSON has carried.

        Raises TypeError, KeyError: they are those of no form.
        """
        said = values.get("encoder")
        shapes = {
            name: None if values[name] is None else tuple(values[name])
            for name in ("input_shape", "picture_shape", "label_shape")
            if name in values
        }
        return cls(**{**values, **shapes, "encoder": None if said is None else Encoder.from_values(said)})

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
            data.by_person,
            data.vocabulary,
            data.encoder,
            data.labels.name,
            data.labels.shape,
        )


def read_own(path: Path, *, for_testing: bool = False) -> Arrays:
    """Inputs, labels and perhaps groups as they lie in the client's file.

    `path`: of the file. `for_testing`: of a table, whether those records are read that its declaration says
    are for testing, or all where it says nothing.

    Raises LearningError: no such file, of a kind without a reader, or one that cannot be read.
    """
    if not path.exists():
        raise LearningError(f"data={path} does not exist: name the file with this client's own examples")
    if for_testing and is_table(path):
        return own_table(path, for_testing=True)
    return READERS.get(path.suffix.removeprefix(".").lower() or "folder")(path)


def own_arrays(
    path: Path,
    input_shape: Sequence[int],
    input_dtype: str,
    label_dtype: str = "int64",
    columns: str | None = None,
    *,
    label_shape: Sequence[int] = (),
    for_testing: bool = False,
) -> Split:
    """The client's own examples, if inputs and labels are of the kind that the model takes.

    Args:
        path: of the client's file.
        input_shape: of one example.
        input_dtype, columns, label_shape: as in `ExampleForm`.
        label_dtype: int64, or float32 where labels are numbers.
        for_testing: as in `read_own`.

    Returns:
        The examples, whose labels may still be of no class.

    Raises LearningError: as in `read_own`, and for arrays of another kind or shape.
    """
    if columns is not None and is_table(path) and own_columns(path).digest != columns:
        raise LearningError(
            f"data={path}: the columns.yaml beside it declares other columns than this training's: take that"
        )
    x, y, groups, persons = (*read_own(path, for_testing=for_testing), None, None)[:4]
    if x is None or y is None:
        raise LearningError(f"data={path} holds no inputs and labels")
    if x.shape[1:] != tuple(input_shape) or y.shape != (len(x), *label_shape):
        raise LearningError(
            f"data={path}: x_train has shape {x.shape} and y_train {y.shape}; this training takes "
            f"(N, {', '.join(map(str, input_shape))}) and (N,{' ' * bool(label_shape)}"
            f"{', '.join(map(str, label_shape))})"
        )
    if label_dtype == "float32":
        labels: Labels = as_numbers(y, np.float32, f"data={path}: y_train").astype(np.float32)
    elif y.dtype.kind in "biu":
        labels = y.astype(np.int64)
    else:
        raise LearningError(f"data={path}: y_train is {y.dtype}; it must hold class numbers, from 0")
    wanted = np.dtype(input_dtype)
    if x.dtype.kind not in ("iu" if wanted.kind == "i" else "biuf"):
        raise LearningError(f"data={path}: x_train is {x.dtype}; this training takes {wanted}")
    inputs = as_numbers(x, wanted, f"data={path}: x_train")
    more = (None if each is None else each.astype(np.int64) for each in (groups, persons))
    return Split(inputs, labels, *more)


def own_held_out(own: OwnData, form: ExampleForm) -> Split:
    """The examples that a client holds out, as the model takes them; none where it holds out none.

    Raises LearningError: as in `own_arrays`.
    """
    if own.held_out_path is not None:
        return _as_taken(own.held_out_path, form, for_testing=True)
    if own.held_out_share:
        return _as_taken(own.path, form, lambda every: held_out_rows(every, own.held_out_share))
    if is_table(own.path) and own_columns(own.path).test is not None:
        return _as_taken(own.path, form, for_testing=True)
    return form.blank().take(np.zeros(0, dtype=np.int64))


def held_out_rows(split: Split, share: float) -> npt.NDArray[np.bool_]:
    """Which examples are held out, shape (N,): those whose hash, a number in [0, 1), lies below the share.

    Every example decides for itself, or its person does. So it is held out in every run, wherever it stands
    in the file and whatever the others are, and examples that are alike stay together. It decides as it lies
    in the file: a run says by what it is transformed, and in what number of classes a label is none.
    """
    rows = zip(np.ascontiguousarray(split.x), split.y, strict=True)
    told = [x.tobytes() + y.tobytes() for x, y in rows]
    if split.persons is not None:
        told = [person.tobytes() for person in split.persons]
    heads = [sha256(each).digest()[:8] for each in told]
    limit = int(share * 2**64)
    return np.array([int.from_bytes(head, "big") < limit for head in heads], dtype=np.bool_)


def own_split(path: Path, form: ExampleForm, held_out_share: float = 0.0) -> Split:
    """The client's own examples to train on, as the model takes them: all but the share that it holds out.

    Raises LearningError: as in `own_arrays`.
    """
    trained = (lambda every: ~held_out_rows(every, held_out_share)) if held_out_share else None
    every = _as_taken(path, form, trained)
    if not form.by_person:
        return every
    # Where nobody says whose rows are, each is one's own.
    return grouped(replace(every, persons=np.arange(len(every))) if every.persons is None else every)


def _as_taken(
    path: Path, form: ExampleForm, chosen: Chooser | None = None, *, for_testing: bool = False
) -> Split:
    """Read examples as the model takes them: all, or those that are chosen.

    An example with a label of no class, or with a token that is not in the vocabulary, counts as a blank
    one, all zeros. The server says how many classes there are: an error, or one example less, would tell it
    of a single label, whatever the noise.

    Raises LearningError: as in `own_arrays`.
    """
    kinds, shape = (form.own_dtype, form.labels.dtype, form.columns), form.label_shape
    own = own_arrays(path, form.own_shape, *kinds, label_shape=shape, for_testing=for_testing)
    if chosen is not None:
        own = own.take(np.flatnonzero(chosen(own)))
    blank = _unusable(own, form)
    if blank.any():
        logger.error("data=%s: %d of %d examples do not fit, and count as blank", path, blank.sum(), len(own))
        own.x[blank], own.y[blank] = 0, 0
    if form.features is None:
        return own
    return replace(own, x=_transformed(own.x, form))


def _transformed(x: npt.NDArray[np.generic], form: ExampleForm) -> npt.NDArray[np.float32]:
    """What the form's transform makes of some inputs, computed once a process; nothing is written."""
    transform = transform_of(str(form.features), form.encoder)
    content = sha256(np.ascontiguousarray(x).data).digest()
    key = (form.features, form.encoder, x.dtype.str, x.shape, content)
    made = _kept.get(key)
    if made is None:
        made = transform(x)
        for former in [*_kept][: len(_kept) + 1 - MOST_KEPT]:
            _kept.pop(former, None)
        _kept[key] = made
    return made


def _unusable(own: Split, form: ExampleForm) -> npt.NDArray[np.bool_]:
    """Which examples have a label of no class or a token that is not in the vocabulary, shape (N,)."""
    unusable = form.labels.unfit(own.y)
    if np.dtype(form.own_dtype).kind == "i":
        tokens = own.x.reshape(len(own), -1)
        unusable |= ((tokens < 0) | (tokens >= form.num_tokens)).any(axis=1)
    return unusable


def _npz(path: Path) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    arrays = read_npz(path, OWN_KEYS, f"data={path}")
    return arrays["x_train"], arrays["y_train"]


READERS.register("csv", own_table)
READERS.register("npz", _npz)
READERS.register("parquet", own_table)
