"""Reads a client's own examples, and converts them to the inputs and labels that the model takes."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.learning.data.arrays import as_numbers
from gdpfed.learning.data.columns import PERSON_ROWS
from gdpfed.learning.data.dataset import ExampleForm, Split
from gdpfed.learning.data.features import transform_of
from gdpfed.learning.data.file_form import FILES_FILE, QUERY, is_table, kind_of
from gdpfed.learning.data.own_files import declares_pictures, own_examples, taken_as
from gdpfed.learning.data.persons import grouped, refuse_shared
from gdpfed.learning.data.picture_form import read_picture_form
from gdpfed.learning.data.tabular import own_columns

logger = logging.getLogger(__name__)

Chooser = Callable[[Split], npt.NDArray[np.bool_]]
MOST_KEPT = 4
"""Transformed files of a process, such as what a node trains on and what it holds out."""
_kept: dict[tuple[object, ...], npt.NDArray[np.float32]] = {}


@dataclass(frozen=True)
class OwnData:
    """Where a client's own examples are, and which of them are held out from training.

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
        """SHA-256, in hexadecimal, of the settings that decide which examples are held out.

        Raises LearningError: a table without a declaration.
        """
        columns = own_columns(self.path) if is_table(self.path) else None
        chosen = ("by the bytes of the examples as they lie in the file",) * bool(self.held_out_share)
        if columns is not None and (columns.test is not None or self.held_out_share):
            # Before, names were compared as numbers, so other rows could be held out.
            chosen = (*chosen, "names are texts", *_ways_to_read(self.path))
        elif self.held_out_share and declares_pictures(self.path):
            chosen = (*chosen, read_picture_form(self.path).digest)
        said = (str(self.held_out_path), self.held_out_share, columns.digest if columns else "", *chosen)
        return sha256(repr(said).encode()).hexdigest()

    @property
    def person_parties(self) -> int:
        """How many data owners may have rows of one person, as declared; 0 if no persons are declared.

        Raises LearningError: a table without a declaration.
        """
        columns = own_columns(self.path) if is_table(self.path) else None
        return 0 if columns is None or columns.person is None else columns.person_parties


def _ways_to_read(table: Path) -> list[str]:
    """Return SHA-256 of what a site says of a table's file, and of a query; none where there is neither.

    Another one reads other values, and so other rows may be held out.
    """
    said = [table.with_name(FILES_FILE), *([table] if kind_of(table) == QUERY else [])]
    return [sha256(each.read_bytes()).hexdigest() for each in said if each.is_file()]


def check_own(own: OwnData) -> tuple[Split, ...]:
    """Check a client's own examples; return those for training and those held out.

    What is checked is the same whatever a run asks for: it is for the client's operator to mend, and no
    message has a say in it. After them come those that are held out, where these are in another file or by a
    table's declaration.

    Raises LearningError: as in `own_examples`, for numbers that are not finite, and for persons of whom some
    rows are held out and others not.
    """
    every, elsewhere = own_examples(own.path), own.held_out_path
    share = own.held_out_share
    train = every.take(np.flatnonzero(~held_out_rows(every, share))) if share else every
    if elsewhere is None and is_table(own.path) and own_columns(own.path).test is not None:
        elsewhere = own.path
    held_out = () if elsewhere is None else (own_examples(elsewhere, for_testing=True),)
    for test in held_out:
        refuse_shared(train, test, f"data={own.path}")
    for path, part in ((own.path, every), *((elsewhere, test) for test in held_out)):
        for name, values in (("x_train", part.x), ("y_train", part.y)):
            as_numbers(values, np.float32, f"data={path}: {name}", copy=False)
    if train.persons is not None:
        # As in a round, so that a lack of memory shows before anything is charged.
        _by_person(train, own.path)
    return (train, *held_out)


def own_held_out(own: OwnData, form: ExampleForm) -> Split:
    """Return a client's held-out examples as model inputs and labels; there may be none.

    Raises LearningError: as in `own_examples` and `taken_as`.
    """
    if own.held_out_path is not None:
        return _as_taken(own.held_out_path, form, for_testing=True)
    if own.held_out_share:
        return _as_taken(own.path, form, lambda every: held_out_rows(every, own.held_out_share))
    if is_table(own.path) and own_columns(own.path).test is not None:
        return _as_taken(own.path, form, for_testing=True)
    return blank_example(form).take(np.zeros(0, dtype=np.int64))


def blank_example(form: ExampleForm) -> Split:
    """Return a single example of zeros."""
    x = np.zeros((1, *form.input_shape), form.input_dtype)
    y = np.zeros((1, *form.label_shape), form.labels.dtype)
    row = Split(x, y, persons=np.zeros(1, np.int64) if form.by_person else None)
    return grouped(row) if form.by_person else row


def held_out_rows(split: Split, share: float) -> npt.NDArray[np.bool_]:
    """Return which examples are held out, shape (N,): those whose hash in [0, 1) is below the share.

    Every example decides for itself, or its person does. So it is held out in every run, wherever it stands
    in the file and whatever the others are, and examples that are alike stay together. It decides as it lies
    in the file: a run says of which type its numbers are, by what it is transformed, and in what number of
    classes a label is none.
    """
    told: Iterator[bytes] = (x.tobytes() + y.tobytes() for x, y in zip(split.x, split.y, strict=True))
    if split.persons is not None:
        told = (person.tobytes() for person in split.persons)
    heads, limit = (sha256(each).digest()[:8] for each in told), int(share * 2**64)
    return np.fromiter((int.from_bytes(head, "big") < limit for head in heads), np.bool_, len(split))


def own_split(path: Path, form: ExampleForm, held_out_share: float = 0.0) -> Split:
    """Return a client's own training examples as model inputs and labels, without the held-out ones.

    Raises LearningError: as in `own_examples` and `taken_as`.
    """
    trained = (lambda every: ~held_out_rows(every, held_out_share)) if held_out_share else None
    every = _as_taken(path, form, trained)
    if not form.by_person:
        return every
    # Where nobody says whose rows are, each is one's own.
    if every.persons is None:
        every = replace(every, persons=np.arange(len(every)))
    return _by_person(every, path)


def _by_person(rows: Split, path: Path) -> Split:
    return grouped(rows, most_rows=own_columns(path).person_rows if is_table(path) else PERSON_ROWS)


def _as_taken(
    path: Path, form: ExampleForm, chosen: Chooser | None = None, *, for_testing: bool = False
) -> Split:
    """Read a client's examples, all or only those that `chosen` selects, as model inputs and labels.

    An example with a label of no class, a token that is not in the vocabulary, or a number that is not
    finite counts as a blank one, all zeros. The server says how many classes there are: an error, or one
    example less, would tell it of a single label, whatever the noise.

    Raises LearningError: as in `own_examples` and `taken_as`.
    """
    own = own_examples(path, for_testing=for_testing)
    if chosen is not None:
        own = own.take(np.flatnonzero(chosen(own)))
    kinds = (form.own_dtype, form.labels.dtype, form.declared)
    own = taken_as(own, path, form.own_shape, *kinds, form.label_shape)
    of_one = tuple(range(1, own.x.ndim))
    blank = form.labels.unfit(own.y)
    blank |= ~np.isfinite(own.x).all(axis=of_one)
    if np.dtype(form.own_dtype).kind == "i":
        blank |= ((own.x < 0) | (own.x >= form.num_tokens)).any(axis=of_one)
    if blank.any():
        logger.error("data=%s: %d of %d examples do not fit, and count as blank", path, blank.sum(), len(own))
    # Copied whatever is blank, as a reader's may be its own: no example decides how much memory that takes.
    own = replace(own, x=own.x.copy(), y=own.y.copy())
    own.x[blank], own.y[blank] = 0, 0
    if form.features is None:
        return own
    return replace(own, x=_transformed(own.x, form))


def _transformed(x: npt.NDArray[np.generic], form: ExampleForm) -> npt.NDArray[np.float32]:
    """Apply the run's feature transform to each input separately, and cache the result in this process."""
    transform = transform_of(str(form.features), form.encoder)
    content = sha256(np.ascontiguousarray(x).data).digest()
    key = (form.features, form.encoder, x.dtype.str, x.shape, content)
    made = _kept.get(key)
    if made is None:
        made = one_by_one(x, transform)
        for former in [*_kept][: len(_kept) + 1 - MOST_KEPT]:
            _kept.pop(former, None)
        _kept[key] = made
    return made


def one_by_one(
    records: npt.NDArray[Any], of: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Apply a transform to each record alone, so that rounding in one does not depend on other records.

    In a library's product of many rows, the last bits of a row depend on how many rows there are and on where
    it stands. A hostile model makes answers of these bits, and so a record would change what others count.

    Args:
        records: of shape (N, ...).
        of: from an array of shape (1, ...) to one of shape (1, ...), which is a new one.

    Returns:
        Shape (N, ...): for each record, bit by bit what there is of it alone.
    """
    # Always the same memory: kernels may differ by how an array lies in it.
    alone = np.zeros((1, *records.shape[1:]), records.dtype)
    nothing, found = of(alone)[:0], []
    for record in records:
        alone[0] = record
        found.append(of(alone))
    return np.concatenate([nothing, *found])
