"""Convert rows of a table to model inputs and labels, as the declaration of its columns says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, not_known
from gdpfed.learning.data.cells import Cells, Table, row_test, table_of
from gdpfed.learning.data.columns import ALWAYS_MISSING, DROP, Columns, Named, Numeric
from gdpfed.learning.data.faults import Where
from gdpfed.learning.data.file_form import FILES_FILE, MARKS, FileForm, own_form
from gdpfed.learning.data.number_cells import NumberCells
from gdpfed.learning.data.table_file import TableFile, TableForm, listed, open_table
from gdpfed.learning.data.text_cells import TextCells, numbered
from gdpfed.learning.data.times_to_event import TimesToEvent
from gdpfed.learning.labels import Labels


@dataclass(frozen=True, eq=False)
class Rows:
    """Records of a table, converted to inputs and labels.

    Attributes:
        x: inputs, shape (N, inputs), float32.
        y: class numbers, int64, or numbers of which -1 and 1 are the ends of the declared range, float32,
            shape (N,); of sets 0 and 1, int64, shape (N, labels); of times to an event as `TimesToEvent` has
            them, float32, shape (N, 2). Numbers beyond their range are as they are.
        parties: the number of each one's party, shape (N,), int64; None where none is declared or asked for.
        groups: the number of each one's group of records, shape (N,), int64; None where none is declared.
        for_testing: which of them are declared to be for testing, shape (N,), bool; None where nothing is.
        persons: what stands for the person of each, shape (N,), int64; None where none is declared.
        left_out: how many rows of the table are left out, as declared.
        cut_inputs: how many numbers of the others lie beyond their column's range, and count as its end.
    """

    x: npt.NDArray[np.float32]
    y: Labels
    parties: npt.NDArray[np.int64] | None
    groups: npt.NDArray[np.int64] | None
    for_testing: npt.NDArray[np.bool_] | None
    persons: npt.NDArray[np.int64] | None = None
    left_out: int = 0
    cut_inputs: int = 0

    def __len__(self) -> int:
        return len(self.y)

    def taken(self, at: npt.NDArray[np.int64]) -> "Rows":
        """Return the rows at these positions."""
        more: dict[str, Any] = {
            name: None if (each := getattr(self, name)) is None else each[at] for name in OF_ROWS
        }
        return Rows(self.x[at], self.y[at], **more)


NO_PARTY = (
    "so the row's party is not known: fill it in, or declare missing_parties: drop to leave such rows out"
)
NO_TIME = "and it must say when the event happened, or until when nothing had"
NO_PERSON = frozenset(text.casefold() for text in (*ALWAYS_MISSING, *MARKS))
"""Texts that name no person, in small letters: the rows of all who are missing would be those of one."""
OF_ROWS = ("parties", "groups", "for_testing", "persons")


def open_declared(path: Path, columns: Columns, place: str) -> TableFile:
    """Open a table whose columns are declared; `place` names the table in errors.

    Raises LearningError: ``files.yaml`` names a column that is not declared, or as in
    :func:`gdpfed.learning.data.table_file.open_table`.
    """
    own = own_form(path)
    _check_columns(own, columns, path.parent / FILES_FILE)
    # Not the column of parties: a node's table lacks it, so a row could name more than the line of names.
    wanted = tuple(columns.names(for_training=True))
    numbers = frozenset(name for name in wanted if columns.number(name) is not None)
    decimal, test = own.decimal or columns.decimal, row_test(columns, own)
    form = TableForm(own, columns.separator, columns.encoding, wanted, numbers, decimal, test)
    return open_table(path, place, form)


def _check_columns(own: FileForm, columns: Columns, file: Path) -> None:
    """Raise LearningError if ``files.yaml`` names a column or a value that is not declared."""
    known = tuple(columns.names())
    for key, named in (("missing", own.missing_in), ("values", own.values_in)):
        for name, _ in named:
            if name not in known:
                raise LearningError(not_known(f"{file}: {key}: column '{name}'", known))
    for name, _ in own.values_in:
        declared = columns.values(name)
        if not declared:
            raise LearningError(
                f"{file}: values: column '{name}' has no declared values for which texts could stand: leave "
                "it out"
            )
        for text, value in own.values(name).items():
            if value not in declared:
                raise LearningError(
                    f"{file}: values: column '{name}': '{text}' stands for '{value}', which is not one of "
                    f"{listed(declared)}: name a declared value"
                )


def read_rows(path: Path, columns: Columns, place: str, *, shared_out: bool) -> Rows:
    """Read the records of a table file (CSV, Parquet, Excel or SQL query); undeclared columns are ignored.

    `place`: what errors call it. `shared_out`: whether parties share the table; else it is one party's own.

    Raises LearningError: no such file, one that cannot be read, that lacks a column or has it twice, or as in
    :func:`rows_of`.
    """
    return read_table(open_declared(path, columns, place), columns, shared_out=shared_out)


def read_table(table: TableFile, columns: Columns, *, shared_out: bool) -> Rows:
    """Read all records of an open table, as model inputs and labels."""
    batches = table.batches(columns.names(for_training=not shared_out))
    parts = [
        _rows(
            table_of(batch.cells, columns, table.place, own=table.own, found=table.found),
            columns,
            Where(table.place, batch.rows),
            shared_out=shared_out,
        )
        for batch in batches
    ]
    return joined_rows(parts, table.place)


def joined_rows(parts: list[Rows], place: str) -> Rows:
    """Join the records of all parts; the list of parts is emptied meanwhile, to save memory.

    Raises LearningError: there are none.
    """
    left_out, cut_inputs = sum(each.left_out for each in parts), sum(each.cut_inputs for each in parts)
    count = sum(map(len, parts))
    if not count:
        raise LearningError(f"{place} has no rows with data: name a table with rows")
    if len(parts) == 1:
        return parts.pop()
    parts.reverse()
    columns: dict[str, list[npt.NDArray[np.generic]]] = {name: [] for name in ("y", *OF_ROWS)}
    x, filled = np.empty((count, parts[0].x.shape[1]), dtype=np.float32), 0
    while parts:
        part = parts.pop()
        x[filled : filled + len(part)] = part.x
        filled += len(part)
        for name, found in columns.items():
            found += [] if getattr(part, name) is None else [getattr(part, name)]
    more: dict[str, Any] = {name: np.concatenate(found) if found else None for name, found in columns.items()}
    return Rows(x, **more, left_out=left_out, cut_inputs=cut_inputs)


def rows_of(table: Table, columns: Columns, place: str, *, shared_out: bool) -> Rows:
    """Convert the cells of a table to model inputs and labels.

    Args:
        table: every declared column; with ``shared_out`` that of the party, too.
        place: what errors call it.
        shared_out: whether parties share the table; else it is one party's own.

    Raises LearningError: a value that is not a number, not declared or missing, or no rows; names column and
    row.
    """
    count = num_rows(table)
    rows = _rows(table, columns, Where(place, np.arange(1, count + 1)), shared_out=shared_out)
    return joined_rows([rows], place)


def num_rows(table: Table) -> int:
    """The number of rows of a table."""
    return len(next(iter(table.values())).missing)


def _rows(table: Table, columns: Columns, where: Where, *, shared_out: bool) -> Rows:
    for name in columns.label_names if columns.missing_labels != DROP else ():
        if len(without := np.flatnonzero(table[name].missing)):
            raise LearningError(
                f"{where.place}: row {where.rows[without[0]]} has no label in the column '{name}': "
                "declare missing_labels: drop to leave such rows out"
            )
    kept = kept_rows(table, columns, shared_out=shared_out)
    return checked_rows(table, columns, where, kept, shared_out=shared_out)


def kept_rows(table: Table, columns: Columns, *, shared_out: bool) -> npt.NDArray[np.int64]:
    """Return the positions of all rows except those that the declaration drops for missing values.

    `shared_out`: whether parties share the table.
    """
    present: npt.NDArray[np.bool_] = np.ones(num_rows(table), dtype=np.bool_)
    needed = columns.label_names if columns.missing_labels == DROP else []
    if shared_out and columns.party is not None and columns.missing_parties == DROP:
        needed = [*needed, columns.party.name]
    if columns.incomplete_rows == DROP:
        needed = [*needed, *columns.inputs]
    for name in needed:
        if name in table:
            present &= ~table[name].missing
    return np.flatnonzero(present)


def checked_rows(
    table: Table, columns: Columns, where: Where, kept: npt.NDArray[np.int64], *, shared_out: bool
) -> Rows:
    """Convert the rows at positions ``kept`` to inputs and labels; report wrong values to ``where``."""
    count = num_rows(table)
    if len(kept) < count:
        table = {name: cells.taken(kept) for name, cells in table.items()}
        where = Where(where.place, where.rows[kept], where.found)
    x = inputs_of(table, columns, where)
    y: Labels
    if columns.label_set:
        y = np.stack([_places(table, each, where) for each in columns.label_set], axis=1)
    elif columns.times is not None:
        y = times_in(table, columns, columns.times, where)
    elif (label := columns.number(columns.label)) is not None:
        targets = _to_unit(numbers_in(table, label, where), label)
        most = float(np.finfo(np.float32).max)
        y = np.clip(targets, -most, most).astype(np.float32)
    else:
        classes = {value: number for number, values in enumerate(columns.classes) for value in values}
        y = _looked_up(table, columns.label, classes, where)

    parties = groups = for_testing = persons = None
    if shared_out and columns.party:
        party, cells = columns.party, as_texts(table[columns.party.name])
        where.refuse(party.name, cells, cells.missing, NO_PARTY)
        numbers = numbered(cells, {value: number for number, value in enumerate(party.values)})
        where.refuse(party.name, cells, (numbers < 0) & ~cells.missing, _undeclared(party.values))
        parties = np.maximum(numbers, 0)
    if columns.record_group:
        groups = _places(table, columns.record_group, where)
    if columns.test:
        cells = as_texts(table[columns.test.name])
        for_testing = numbered(cells, dict.fromkeys(columns.test.values, 1)) == 1
    if columns.person is not None:
        # 63 bits of a hash of the text: the same number in every table.
        cells = as_texts(table[columns.person])
        persons = cells.of(
            [
                -1
                if text.casefold() in NO_PERSON
                else int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1
                for text in cells.distinct
            ],
            np.int64,
        )
        unknown = "so the row's person is not known: fill it in"
        where.refuse(columns.person, cells, persons < 0, unknown)
    return Rows(
        x=x,
        y=y,
        parties=parties,
        groups=groups,
        for_testing=for_testing,
        persons=persons,
        left_out=count - len(kept),
        cut_inputs=sum(beyond_range(as_numbers(table[each.name]).numbers, each) for each in columns.numeric),
    )


def beyond_range(numbers: npt.NDArray[np.float64], column: Numeric) -> int:
    """Count the numbers outside a column's range; missing numbers do not count."""
    return int(((numbers < column.low) | (numbers > column.high)).sum())


def as_texts(cells: Cells) -> TextCells:
    """Return a column's cells as texts; raise TypeError if they were read as numbers."""
    if not isinstance(cells, TextCells):
        raise TypeError("this column was read as numbers, and texts are needed; read it as texts")
    return cells


def as_numbers(cells: Cells) -> NumberCells:
    """Return a column's cells as numbers; raise TypeError if they were read as texts."""
    if not isinstance(cells, NumberCells):
        raise TypeError("this column was read as texts, and numbers are needed; read it as numbers")
    return cells


def inputs_of(table: Table, columns: Columns, where: Where) -> npt.NDArray[np.float32]:
    """Convert a table's input columns to model inputs, shape (N, inputs).

    Raises LearningError: a value that is not a number or not declared; names column and row.
    """
    x = np.empty((num_rows(table), columns.num_inputs), dtype=np.float32)
    for place, column in enumerate(columns.numeric):
        numbers = numbers_in(table, column, where)
        middle = (column.low + column.high) / 2
        stand_in = middle if column.missing is None else column.missing
        present = np.where(np.isnan(numbers), stand_in, numbers)
        x[:, place] = _to_unit(np.clip(present, column.low, column.high), column)

    place = len(columns.numeric)
    for each in columns.categorical:
        cells, values = as_texts(table[each.name]), each.values
        places, missing = numbered(cells, {value: at for at, value in enumerate(values)}), cells.missing
        if each.missing is not None:
            places = np.where(missing, values.index(each.missing), places)
        if each.other is not None:
            places = np.where((places < 0) & ~missing, values.index(each.other), places)
        remedy = f"correct it, say values in {FILES_FILE}, declare it, or other: VALUE for all others"
        words = f"which is not one of {listed(values)}: {remedy}"
        where.refuse(each.name, cells, (places < 0) & ~missing, words)
        # A 1 at the place of the value, and zeros at the others.
        x[:, place : place + len(values)] = places[:, None] == np.arange(len(values))
        place += len(values)
    return x


def numbers_in(table: Table, column: Numeric, where: Where) -> npt.NDArray[np.float64]:
    """Return a column's numbers, float64[N], NaN for missing ones; report wrong values to ``where``."""
    cells = as_numbers(table[column.name])
    unclear = np.zeros(len(cells.wrong), np.bool_) if cells.unclear is None else cells.unclear
    where.refuse(column.name, cells, unclear, cells.unclear_words)
    where.refuse(column.name, cells, cells.wrong & ~unclear, cells.words)
    return cells.numbers


def _to_unit(numbers: npt.NDArray[np.float64], column: Numeric) -> npt.NDArray[np.float64]:
    """Scale numbers so that the ends of the column's range are -1 and 1."""
    return 2 * (numbers - column.low) / (column.high - column.low) - 1


def times_in(table: Table, columns: Columns, times: TimesToEvent, where: Where) -> npt.NDArray[np.float32]:
    """Return times (counted in time intervals) and events (0 or 1), float32[N,2]; NaN if missing or wrong.

    Faults go to ``where``.
    """
    cells, number = as_numbers(table[times.time]), columns.number(times.time)
    numbers = cells.numbers if number is None else numbers_in(table, number, where)
    where.refuse(times.time, cells, cells.missing, NO_TIME)
    where.refuse(times.time, cells, numbers < 0, "which is below 0, and a time begins at 0")
    happened = _looked_up(table, times.event, times.numbers, where, refused=-1)
    return times.labels(numbers, happened)


def _places(table: Table, column: Named, where: Where) -> npt.NDArray[np.int64]:
    """Return, for every cell, the position of its value among the column's declared values."""
    return _looked_up(
        table, column.name, {value: number for number, value in enumerate(column.values)}, where
    )


def _looked_up(
    table: Table, name: str, values: Mapping[str, int], where: Where, refused: int = 0
) -> npt.NDArray[np.int64]:
    """Return the number that `values` gives to each cell; report other cells, and give them `refused`."""
    cells = as_texts(table[name])
    numbers = numbered(cells, values)
    where.refuse(name, cells, numbers < 0, _undeclared([*values]))
    return np.maximum(numbers, refused)


def _undeclared(values: Sequence[str]) -> str:
    return f"which is not one of {listed(values)}: correct it, or declare it"
