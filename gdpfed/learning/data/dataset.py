"""Data sets: a training split for the clients, a test split, and the shapes and types of an example."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gdpfed.learning.data.columns import Columns
from gdpfed.learning.data.encoded import Encoder
from gdpfed.learning.data.fingerprint import fingerprint
from gdpfed.learning.labels import LabelKind, Labels, labels_of

Inputs = npt.NDArray[np.float32] | npt.NDArray[np.int64]
CHUNK = 4096
"""The number of examples that are hashed at once if `Examples.take` must first make their arrays."""


class Examples(Protocol):
    """Examples stored in a form that saves memory, from which :meth:`take` makes model inputs."""

    @property
    def y(self) -> Labels:
        """Labels of all examples, shape (N, ...)."""

    def __len__(self) -> int: ...

    def take(self, indices: npt.NDArray[np.int64]) -> "Split":
        """Return the examples at these positions, as model inputs and labels."""


@dataclass(frozen=True)
class Split:
    """Inputs and labels of some examples, as arrays that a model takes.

    Attributes:
        x: inputs of shape (N, ...): float32, or int64 for token numbers.
        y: labels of shape (N, ...), by their kind (`gdpfed.learning.labels`): class numbers as int64 of shape
            (N,), numbers in [-1, 1] as float32 of shape (N,), sets of labels, or pictures. For texts that are
            learnt at every position: the token after each position, shape (N, L).
        groups: the number of each record's privacy group, shape (N,), int64; None without such groups.
        persons: a number for each row's person, shape (N,), int64; None if no persons are declared.
    """

    x: Inputs
    y: Labels
    groups: npt.NDArray[np.int64] | None = None
    persons: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: npt.NDArray[np.int64]) -> "Split":
        """Return the examples at these positions."""
        groups = None if self.groups is None else self.groups[indices]
        persons = None if self.persons is None else self.persons[indices]
        return Split(self.x[indices], self.y[indices], groups, persons)


@dataclass(frozen=True)
class Pictures:
    """Pictures as bytes, which take a quarter of the memory of float32.

    `pixels`: shape (N, channels, height, width), uint8. `y`: shape (N,), int64.
    """

    pixels: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: npt.NDArray[np.int64]) -> Split:
        """Return the pictures at these positions, scaled to [-1, 1]."""
        return Split(scaled(self.pixels[indices]), self.y[indices])


def scaled(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Scale pixels for the model: x = pixel / 127.5 - 1, the same for every picture and data set.

    The mean and standard deviation of the training pictures are not used: they tell of the clients' data.
    """
    return pixels.astype(np.float32) / np.float32(127.5) - 1


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: clients train on one split, and the server evaluates on the other.

    Attributes:
        num_classes: the number of classes, or of labels in a set; 1 if a label is a number.
        owners: the number (0, 1, ...) of the data owner of each training example, shape (N,), int64; None
            without owners. The numbers must tell nothing of the owners: clients of one budget are a range.
        test_owners: the data owner of each test example, shape (N,), int64; None if they have no owners.
        owner_names: the data owners' names; empty if they have no names.
        target_range: for labels that are numbers, the numbers for which the labels -1 and 1 stand.
        record_groups: the number of declared privacy groups of records; 0 if no groups are declared.
        columns: the declaration of a table's columns; None if the data is not a table.
        features: the name of the transform of the inputs; None without a transform.
        picture_shape: the shape of an example before the transform.
        encoder: the transform, if it is an encoder from a file.
        by_person: whether a training record is a person with all its rows (`gdpfed.learning.data.persons`).
        vocabulary: the number of tokens, if inputs are tokens and labels are not; else None.
        label_kind: the name of the kind of labels; "" for classes, or for numbers if num_classes is 1.
        class_names: the classes' names, in the order of their numbers; empty if they have no names.
        notes: files beside the data that were not read, one line each.
        picture_form: the hash of the declaration of the pictures; None without a declaration.
        pixels: whether the inputs are features of pictures that are stored as bytes.
        read_as: the fingerprints of the data before the transform; None without a transform.
        cut_labels: how many training labels lie outside their declared range and were set to its end. Test
            labels are not changed.
        left_out: how many rows of a table are left out, by its declaration.
        beyond_person_rows: how many training rows are left out because their person has too many.
        cut_inputs: how many inputs of a table lie outside their declared range and were set to its end.
    """

    train: Examples
    test: Examples
    num_classes: int
    owners: npt.NDArray[np.int64] | None = None
    test_owners: npt.NDArray[np.int64] | None = None
    owner_names: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    record_groups: int = 0
    columns: Columns | None = None
    features: str | None = None
    picture_shape: tuple[int, ...] | None = None
    by_person: bool = False
    vocabulary: int | None = None
    encoder: Encoder | None = None
    label_kind: str = ""
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pixels: bool = False
    read_as: tuple[str, str] | None = None
    cut_labels: int = 0
    left_out: int = 0
    beyond_person_rows: int = 0
    cut_inputs: int = 0
    picture_form: str | None = None

    @property
    def named_classes(self) -> tuple[str, ...]:
        """The names of classes or labels, in the order of model outputs; numbers if they have no names."""
        if self.columns is not None:
            return self.columns.class_names
        numbers = tuple(map(str, range(self.num_classes))) if self.labels.weighed else ()
        return self.class_names or numbers

    @property
    def takes_pixels(self) -> bool:
        """Whether examples are pictures stored as bytes, or features computed from such pictures."""
        return self.pixels or isinstance(self.train, Pictures)

    @cached_property
    def fingerprints(self) -> tuple[str, str]:
        """Hashes of the training split and of the test split; both include the data owners of the examples.

        For transformed examples, these are the hashes before the transform, since the last bits of its result
        may differ between machines.
        """
        if self.read_as is not None:
            return self.read_as
        owned = (self.owners, self.owner_names, self.num_classes, self.class_names, self.target_range)
        return (
            fingerprint(*_content(self.train), *owned),
            fingerprint(*_content(self.test), self.test_owners),
        )

    @property
    def beyond_range(self) -> npt.NDArray[np.bool_]:
        """Which numeric test labels lie outside their declared range, shape (N,)."""
        if self.target_range is None:
            return np.zeros(len(self.test), dtype=np.bool_)
        beyond: npt.NDArray[np.bool_] = np.abs(self.test.y) > 1
        return beyond

    @property
    def labels(self) -> LabelKind:
        """The object for the data set's kind of labels (classes, numbers, ...).

        Raises LearningError: no kind has that name.
        """
        shape = self.test.take(np.zeros(0, dtype=np.int64)).y.shape[1:]
        return labels_of(self.label_kind, self.num_classes, shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example, or of one row if examples are persons with several rows."""
        return self._no_examples().x.shape[2 if self.by_person else 1 :]

    @property
    def input_dtype(self) -> np.dtype[np.float32] | np.dtype[np.int64]:
        """The data type of the inputs."""
        return self._no_examples().x.dtype

    def _no_examples(self) -> Split:
        return self.train.take(np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class ExampleForm:
    """The shapes and types of an example and its label; a model can be built from them without the data set.

    Attributes:
        input_shape: the shape of one example.
        input_dtype: float32, or int64 for token numbers.
        num_classes: the number of classes, or of labels in a set; 1 if a label is a number.
        columns: the hash of the declaration of the run's table; None without a table.
        features: the name of the transform of the inputs; None without a transform.
        picture_shape: the shape of an example before the transform.
        by_person: whether a training record is a person with all its rows.
        vocabulary: the number of tokens, if inputs are tokens and labels are not; else None.
        encoder: the transform, if it is an encoder from a file.
        label_kind: the name of the kind of labels, as in `Dataset`.
        label_shape: the shape of one label; () for one value.
        pictures: the hash of the declaration of the run's pictures; None without a declaration.
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
    pictures: str | None = None

    @property
    def declared(self) -> str | None:
        """The hash of the declared columns or picture format that clients share; None if none is declared."""
        return self.columns or self.pictures

    @property
    def num_tokens(self) -> int:
        """The number of different tokens, if inputs are texts."""
        encoded = None if self.encoder is None else self.encoder.vocabulary
        return self.vocabulary or encoded or self.num_classes

    @property
    def own_dtype(self) -> str:
        """The data type of a client's examples before any feature transform."""
        of_texts = self.encoder is not None and self.encoder.vocabulary is not None
        return "int64" if of_texts else self.input_dtype

    @property
    def labels(self) -> LabelKind:
        """The object for the kind of labels (classes, numbers, ...).

        Raises LearningError: no kind has that name.
        """
        return labels_of(self.label_kind, self.num_classes, self.label_shape)

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of a client's examples before any feature transform."""
        return self.picture_shape or self.input_shape

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "ExampleForm":
        """Make an `ExampleForm` from a dictionary that was read from JSON.

        Raises TypeError, KeyError: an entry is missing, unknown or of a wrong type.
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
        """Return the shapes and types of a data set's examples and labels."""
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
            data.picture_form,
        )


def _content(examples: Examples) -> Iterator[object]:
    """Yield all examples piece by piece, for hashing."""
    held = (
        [getattr(examples, each.name) for each in fields(examples)] if is_dataclass(examples) else [examples]
    )
    if all(each is None or isinstance(each, np.ndarray | int) for each in held):
        yield from held
        return
    for start in range(0, len(examples), CHUNK):
        yield examples.take(np.arange(start, min(start + CHUNK, len(examples))))
