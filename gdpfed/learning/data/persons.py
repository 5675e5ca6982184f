"""Combines each person's rows into one record; its loss is the sum of the rows' losses.

So whatever is done with a record is done with a person: it is drawn into a batch with all its rows, its
gradient is clipped as a whole, and its influence is what a budget is for.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import PERSON_ROWS, Columns
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.table_file import TableFile
from gdpfed.learning.data.text_cells import texts_of
from gdpfed.learning.labels import Labels

NO_ROW = -1
"""The label where a person has fewer rows than others, if labels are classes; NaN if they are numbers."""
PERSON = re.compile(
    r"(unique[ _.-]?)?(patient|person|subject|participant|pat|subj|usubj|client|member|resident)(s|en)?"
    r"([ _.-]?(id|no|nr|num|number|nummer|code|key|pseudonym))?|unique_?pid|p(at)?id|mrn|pseudonym|"
    r"(person_)?key|id",
    re.IGNORECASE,
)
"""Names of columns that say which person a row is about."""
REPEATED_PERSONS = (
    "the column '{0}' repeats and is not declared: if a person has several rows, one row is protected and "
    "not the person; declare person: {0} to protect persons"
)


@dataclass(frozen=True)
class Persons(Split):
    """Persons, each of whom is one record. One person's rows take no memory for others.

    Attributes:
        x, y: all persons' rows, those of one beside each other: shape (rows, ...).
        groups: of each person.
        counts, starts: of each person, how many rows it has and where they begin.
        rows: of each person, as :func:`rows_to_take` has them.
    """

    _: KW_ONLY
    counts: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, indices: npt.NDArray[np.int64]) -> Split:
        """Return the persons at these positions as arrays x and y of shape (persons, rows, ...).

        There are as many rows as are to take of any of them. Who has fewer is filled up by rows without
        influence.
        """
        own = np.arange(self.rows[indices].max(initial=1))
        there = own < self.counts[indices][:, None]
        at = (self.starts[indices][:, None] + own)[there]
        nothing = NO_ROW if self.y.dtype.kind == "i" else np.nan
        x = np.zeros((*there.shape, *self.x.shape[1:]), self.x.dtype)
        y: Labels = np.full((*there.shape, *self.y.shape[1:]), nothing, self.y.dtype)
        x[there], y[there] = self.x[at], self.y[at]
        return Split(x, y, None if self.groups is None else self.groups[indices])

    def padded(self) -> Split:
        """Return all persons as :meth:`take` does."""
        return self.take(np.arange(len(self)))


def grouped(
    split: Split, owners: npt.NDArray[np.int64] | None = None, most_rows: int = PERSON_ROWS
) -> Persons:
    """Put the rows of each person together, who becomes one record.

    Of a person with more than `most_rows` rows the first ones are kept, so that no person decides how much
    memory the others take. Persons are in the order of their first rows. One whose rows are of several groups
    of records is in the first.

    `split`: rows, each with its person. `owners`: of each row; a person of two owners is two persons. None
    where nobody says whose rows are.
    """
    _, first, row_of = _persons(split, owners)
    counts = np.bincount(row_of, minlength=len(first))
    order = np.argsort(row_of, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    order, counts = order[place < most_rows], np.minimum(counts, most_rows)
    groups = None
    if split.groups is not None:
        groups = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(groups, row_of, split.groups)
    starts, rows = np.cumsum(counts) - counts, _rounded_up(counts, most_rows)
    return Persons(split.x[order], split.y[order], groups, counts=counts, starts=starts, rows=rows)


def rows_to_take(persons: Split) -> npt.NDArray[np.int64]:
    """Return each person's number of rows, rounded up to a power of two, and as many as are kept at most.

    So the number follows from the person's own rows alone, and few shapes need buffers.
    `persons`: as :func:`grouped` returns them, or their `take`.
    """
    if isinstance(persons, Persons):
        return persons.rows
    y = persons.y
    there = ~np.isnan(y) if y.dtype.kind == "f" else y != NO_ROW
    counts = there.any(axis=tuple(range(2, y.ndim))).sum(axis=1)
    return _rounded_up(counts, y.shape[1])


def _rounded_up(counts: npt.NDArray[np.int64], most_rows: int) -> npt.NDArray[np.int64]:
    powers = 2 ** np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    return np.minimum(powers, most_rows)


def _persons(
    split: Split, owners: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the keys of persons, the first row of each, and the person to whom each row belongs."""
    if split.persons is None:
        raise LearningError("rows without a person cannot be put together by person")
    keys = np.stack([np.zeros_like(split.persons) if owners is None else owners, split.persons], axis=1)
    found, first, row_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return found[order], first[order], rank[row_of.reshape(-1)]


@lru_cache(maxsize=4)
def persons_of(data: Dataset) -> Dataset:
    """Return the data set with one training record for each person; test rows are not combined.

    Raises LearningError: it does not say whose rows are.
    """
    if not isinstance(data.train, Split):
        raise LearningError(
            "only tables say which person a row is about: use dataset=csv with declared persons"
        )
    _, first, _ = _persons(data.train, data.owners)
    owners = None if data.owners is None else data.owners[first]
    most_rows = _most_rows(data.columns)
    train = grouped(data.train, data.owners, most_rows).padded()
    beyond = 0 if data.train.persons is None else rows_beyond(data.train.persons, data.owners, most_rows)
    return replace(data, train=train, owners=owners, by_person=True, beyond_person_rows=beyond)


def persons_held_out(
    test: Split, owners: npt.NDArray[np.int64] | None, columns: Columns | None
) -> tuple[Split, npt.NDArray[np.int64] | None]:
    """Combine the test rows of each person into one record; return the records and their data owners.

    `columns`: the declaration, which says how many rows of a person are kept.
    """
    _, first, _ = _persons(test, owners)
    held_out = grouped(test, owners, _most_rows(columns)).padded()
    return held_out, None if owners is None else owners[first]


def _most_rows(columns: Columns | None) -> int:
    return PERSON_ROWS if columns is None else columns.person_rows


def rows_beyond(persons: npt.NDArray[np.int64], owners: npt.NDArray[np.int64] | None, most_rows: int) -> int:
    """Count the rows that `grouped` leaves out: of each person those beyond the first `most_rows`.

    `persons`, `owners`: of each row, shape (N,); no owners where nobody says whose rows are.
    """
    keys = persons[:, None] if owners is None else np.stack([owners, persons], axis=1)
    _, counts = np.unique(keys, axis=0, return_counts=True)
    return int(np.maximum(counts - most_rows, 0).sum())


def beyond_person_words(count: int, most_rows: int) -> str:
    """Return a text that says how many rows beyond the limit for one person are left out.

    `most_rows`: the limit, which is said to be declared where it is not the usual one.
    """
    usual = most_rows == PERSON_ROWS
    limit = f"{PERSON_ROWS}, or person.rows" if usual else f"person.rows={most_rows}"
    beyond, left_out = ("row is", "is") if count == 1 else ("rows are", "are")
    return (
        f"{count} {beyond} beyond the first that are kept of one person ({limit} of columns.yaml), and "
        f"{left_out} left out where persons are protected"
    )


def beyond_parties(data: Dataset) -> str:
    """Return a warning if rows of one person belong to more data owners than declared; "" if they do not."""
    train, columns = data.train, data.columns
    if not isinstance(train, Split) or train.persons is None or data.owners is None or columns is None:
        return ""
    return beyond_party_words(np.stack([train.persons, data.owners]), columns)


def beyond_party_words(persons: npt.NDArray[np.int64], columns: Columns) -> str:
    """Return a text on how many persons have rows at more data owners than declared; "" if none has.

    `persons`: each row's person and its data owner, shape (2, N).
    """
    _, parties = np.unique(np.unique(persons, axis=1)[0], return_counts=True)
    beyond, most = int((parties > columns.person_parties).sum()), int(parties.max(initial=0))
    if not beyond:
        return ""
    return (
        f"{beyond} persons have rows at more parties than are declared, one of them at {most}: epsilon "
        f"is not what is stated of them. Declare this number, as in person: {{column: {columns.person}, "
        f"parties: {most}}}, unless parties use the same numbers for different persons"
    )


def shared_person_words(tables: Sequence[npt.NDArray[np.int64]], columns: Columns) -> str:
    """Return a text on how many persons are in more parties' tables than declared; "" if none is.

    `tables`: of each party, the ids of its persons, each once.
    """
    each = [np.stack([ids, np.full_like(ids, number)]) for number, ids in enumerate(tables)]
    return beyond_party_words(np.concatenate([np.zeros((2, 0), np.int64), *each], axis=1), columns)


def refuse_shared(train: Split, test: Split, place: str) -> None:
    """Raise LearningError if a person has both training and test rows: test results would be too good."""
    if train.persons is None or test.persons is None:
        return
    shared = np.intersect1d(train.persons, test.persons)
    if len(shared):
        raise LearningError(
            f"{place}: {len(shared)} persons have rows to train on and rows for testing: hold out all rows "
            "of a person, or none"
        )


def undeclared_person(opened: Callable[[], TableFile], columns: Columns) -> str:
    """Return the name of an undeclared column that seems to identify persons; "" if there is none."""
    for name in opened().names:
        if not PERSON.fullmatch(name) or name in columns.names():
            continue
        table, before = opened(), set[str]()
        for batch in table.batches([name]):
            cells = texts_of(batch.cells[name], name, table.place, exact=False)
            if len(cells.distinct) < len(cells.which) or not before.isdisjoint(cells.distinct):
                return name
            before.update(cells.distinct)
    return ""
