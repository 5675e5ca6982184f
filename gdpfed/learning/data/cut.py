"""Counts and describes the values that are clipped and the rows that are left out when a data set is read.

A number beyond its declared range counts as the range's end, and rows may be left out as declared. The counts
are of the data: a run keeps them where it is, for its owner, and a node says its own in its log alone.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from gdpfed.learning.data.columns import PERSON_ROWS, Columns
from gdpfed.learning.data.dataset import Dataset
from gdpfed.learning.data.persons import beyond_person_words, rows_beyond
from gdpfed.learning.data.table_check import mark_warnings
from gdpfed.learning.data.table_rows import read_rows


@dataclass(frozen=True)
class Cut:
    """How many values of a data set were clipped to their declared ranges, and how many rows were left out.

    Attributes:
        rows_left_out: rows that a declaration leaves out.
        rows_beyond_person: rows to train on beyond those that are kept of one person.
        numbers_cut: numbers in columns that lie beyond their declared range, and count as its end.
        labels_cut: the same of labels to train on.
        test_labels_beyond: labels to test on that lie beyond it, and stay as they are.
        not_read: what lies beside the data and is not read, one line each.
    """

    rows_left_out: int = 0
    rows_beyond_person: int = 0
    numbers_cut: int = 0
    labels_cut: int = 0
    test_labels_beyond: int = 0
    not_read: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Dataset) -> Self:
        """Count a data set's clipped numbers, left-out rows, and test labels outside their declared range."""
        beyond = int(data.beyond_range.sum())
        left_out = data.left_out, data.beyond_person_rows
        return cls(*left_out, data.cut_inputs, data.cut_labels, beyond, data.notes)

    @classmethod
    def of_own(cls, path: Path, columns: Columns, *, held_out: bool = False) -> Self:
        """Count the clipped numbers and labels, and the left-out rows, of a node's own table.

        `columns`: what the node declares of it. `held_out`: whether none of its rows is trained on.

        Raises LearningError: as `gdpfed.learning.data.tabular.own_table`.
        """
        rows = read_rows(path, columns, f"data={path}", shared_out=False)
        labels = 0 if columns.label_range is None else int((np.abs(rows.y) > 1).sum())
        beyond = 0
        if rows.persons is not None and not held_out:
            trained = rows.persons if rows.for_testing is None else rows.persons[~rows.for_testing]
            beyond = rows_beyond(trained, None, columns.person_rows)
        return cls(rows.left_out, beyond, rows.cut_inputs, labels)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as a dictionary that can be written as JSON."""
        return asdict(self)

    def words(self, columns: Columns | None) -> Iterator[str]:
        """Yield notes on left-out rows and clipped numbers, one line each.

        `columns`: those that the site declares, so that `gdpfed check` can tell of them; None if it does not.
        """
        if self.rows_left_out:
            left_out = "row of the table is" if self.rows_left_out == 1 else "rows of the table are"
            yield f"{self.rows_left_out} {left_out} left out, as columns.yaml declares"
        if self.rows_beyond_person:
            most_rows = PERSON_ROWS if columns is None else columns.person_rows
            yield beyond_person_words(self.rows_beyond_person, most_rows)
        if self.numbers_cut:
            lie = "number in columns lies beyond its declared range, and counts as its end"
            if self.numbers_cut > 1:
                lie = "numbers in columns lie beyond their declared ranges, and count as their ends"
            checked = "" if columns is None else ": gdpfed check says in which columns"
            yield f"{self.numbers_cut} {lie}{checked}"


def cut_warnings(data: Dataset) -> Iterator[str]:
    """Yield notes on clipped numbers and left-out rows, and warnings about likely mistakes in columns."""
    cut = Cut.of(data)
    yield from cut.words(data.columns)
    if data.columns is not None:
        yield from mark_warnings(data.columns)
    if (cut.labels_cut or cut.test_labels_beyond) and data.target_range is not None:
        low, high = data.target_range
        yield (
            f"{cut.labels_cut} of {len(data.train)} labels to train on and {cut.test_labels_beyond} of "
            f"{len(data.test)} to test on lie beyond their range, {low:g} to {high:g}: training takes its "
            "end, and errors are against the labels as they are. Is the range in their unit?"
        )
