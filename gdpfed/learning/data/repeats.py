"""Looks for signs that a person has several rows in a table: repeated rows, or repeated id values.

Where a person has several rows and no ``person`` is declared, one row is protected and not the person. No
program can know it, so the owner of the table is told what looks like it. Where one is declared, the owner is
told how many rows are left out because their person has too many.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import Columns
from gdpfed.learning.data.persons import (
    PERSON,
    REPEATED_PERSONS,
    beyond_party_words,
    beyond_person_words,
    rows_beyond,
)
from gdpfed.learning.data.table_rows import Rows
from gdpfed.learning.data.text_cells import texts_of

if TYPE_CHECKING:
    import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

MOST_COLUMNS = 50
"""Of those that are not declared, how many are looked at."""
CODE = re.compile(
    r"[A-Za-z]{0,6}[-_/ ]?[0-9]{3,}([-_/][0-9A-Za-z]+)*|(?=[a-f-]*[0-9])[0-9a-f-]{8,}",
    re.ASCII | re.IGNORECASE,
)
"""A number of a person or a case, or a hash."""
MOST_ROWS = 20
"""Of one number on average: a column with more is none of persons, but of wards, years or sites."""
SEEN_FIRST = 1000
"""Of the different values of a column, how many say whether it looks like numbers of persons."""
FEW = 20
"""Different values; a column of fewer is one of categories."""


@dataclass
class Repeats:
    """Finds repeated rows, and repeated values of undeclared columns, while a table is read.

    Attributes:
        looked_at: undeclared columns that may say which person a row is about, each with its texts so far.
    """

    columns: Columns
    looked_at: dict[str, list[Hashes]] = field(default_factory=dict)
    _rows: list[Hashes] = field(default_factory=list)
    _persons: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _factors: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    _counts: dict[str, int] = field(default_factory=dict)

    def look_at(self, names: Sequence[str]) -> list[str]:
        """Select undeclared columns to watch for repeated values, and return their names."""
        others = [each for each in names if each and each not in self.columns.names()]
        once = [each for each in others if names.count(each) == 1]
        self.looked_at = {each: [] for each in once[:MOST_COLUMNS]}
        return [*self.looked_at]

    def rows(self, rows: Rows, readable: npt.NDArray[np.bool_]) -> None:
        """Store each row's person, and one hash of the row's inputs, label and data owner together.

        `readable`: which rows have no fault, shape (N,). What a fault leaves blank makes no rows alike.
        """
        if not len(rows):
            return
        if rows.persons is not None:
            owners = np.zeros_like(rows.persons) if rows.parties is None else rows.parties
            known = (rows.persons >= 0) & (owners >= 0)
            if rows.for_testing is not None:
                known &= ~rows.for_testing
            self._persons.append(np.stack([rows.persons, owners])[:, known])
        parts = [np.ascontiguousarray(rows.x).view(np.uint32), _as_numbers(rows.y)]
        if rows.parties is not None:
            parts.append(_as_numbers(rows.parties))
        numbers = np.concatenate([part.reshape(len(rows), -1).astype(np.uint64) for part in parts], axis=1)
        if len(self._factors) != numbers.shape[1]:
            drawn = np.random.default_rng(0).integers(0, 2**64, numbers.shape[1], np.uint64, endpoint=False)
            self._factors = drawn | np.uint64(1)
        with np.errstate(over="ignore"):
            mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
            hashes = ((mixed ^ (mixed >> np.uint64(29))) * self._factors).sum(axis=1, dtype=np.uint64)
        self._rows.append(hashes[readable])

    def cells(self, cells: Mapping[str, "pa.Array"], place: str) -> None:
        """Store hashes of the watched columns' texts; stop watching a column that cannot hold person ids."""
        for name, texts in [*self.looked_at.items()]:
            try:
                found = texts_of(cells[name], name, place, exact=False)
            except LearningError:
                # A column that nobody reads may hold anything, lists or bytes.
                del self.looked_at[name]
                continue
            if not texts and not PERSON.fullmatch(name):
                some = [text for text in found.distinct[:SEEN_FIRST] if text]
                if not some or not all(map(CODE.fullmatch, some)):
                    del self.looked_at[name]
                    continue
            self._counts[name] = self._counts.get(name, 0) + int((~found.missing).sum())
            hashes = np.array([hash(text) for text in found.distinct if text], dtype=np.int64)
            texts.append(hashes.view(np.uint64))

    @property
    def persons(self) -> npt.NDArray[np.int64]:
        """The person and data owner of each training row for which both are known, as ids, shape (2, N)."""
        return np.concatenate([np.zeros((2, 0), np.int64), *self._persons], axis=1)

    def notes(self) -> Iterator[str]:
        """Yield notes on repeated rows and on columns that look like ids of persons, one line each."""
        rows = np.concatenate(self._rows) if self._rows else np.zeros(0, np.uint64)
        repeated = len(rows) - len(np.unique(rows))
        if self.columns.person is not None:
            yield from self._notes_on_persons()
            return
        # Where most rows are like others, columns say too little to tell records apart.
        if 0 < repeated < len(rows) / 2:
            repeat, are = ("repeats", "is it a copy") if repeated == 1 else ("repeat", "are they copies")
            yield (
                f"{repeated} of {len(rows)} rows {repeat} another row in all declared columns: {are}, or has "
                "a person several rows? Each row is protected by itself; leave copies out, or declare person"
            )
        for name, texts in self.looked_at.items():
            count, distinct = self._counts.get(name, 0), len(np.unique(np.concatenate([*texts, rows[:0]])))
            if distinct == count:
                continue
            if PERSON.fullmatch(name):
                yield REPEATED_PERSONS.format(name)
            elif distinct > FEW and count <= MOST_ROWS * distinct:
                yield (
                    f"column '{name}' looks like an id: {distinct} different ones in {count} rows. If it "
                    f"says which person a row is about, declare person: {name} to protect persons"
                )
        for name in self.columns.inputs:
            if PERSON.fullmatch(name):
                yield (
                    f"column '{name}' looks like an id and is an input: a model learns nothing of a number "
                    f"that names; declare person: {name} if rows of one person repeat, or leave it out"
                )

    def _notes_on_persons(self) -> Iterator[str]:
        persons = self.persons
        most_rows = self.columns.person_rows
        if count := rows_beyond(persons[0], persons[1], most_rows):
            yield beyond_person_words(count, most_rows)
        if shared := beyond_party_words(persons, self.columns):
            yield shared


def _as_numbers(values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint32]:
    """Convert labels or data owners to uint32 to hash rows: floats keep their bits, integers their value."""
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return values.astype(np.uint32)
