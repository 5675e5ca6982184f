"""Rows of a table as a model takes them: CSV and Parquet files, read by the declaration of their columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import ALWAYS_MISSING, DROP, Categorical, Columns, Named, Numeric, plain
from gdpfed.learning.labels import Labels

if TYPE_CHECKING:
    import pyarrow

KINDS = (".csv", ".parquet")
Texts = npt.NDArray[np.object_]
Table = dict[str, Texts]


@dataclass(frozen=True, eq=False)
class Rows:
    """Records of a table.

    Attributes:
        x: inputs, shape (N, inputs), float32.
        y: class numbers, int64, or numbers scaled to [-1, 1], float32, shape (N,); of sets 0 and 1, int64,
            shape (N, labels).
        parties: the number of each one's party, shape (N,), int64; None where none is declared or asked for.
        groups: the number of each one's group of records, shape (N,), int64; None where none is declared.
        for_testing: which of them are declared to be for testing, shape (N,), bool; None where nothing is.
        persons: what stands for the person of each, shape (N,), int64; None where none is declared.
    """

    x: npt.NDArray[np.float32]
    y: Labels
    parties: npt.NDArray[np.int64] | None
    groups: npt.NDArray[np.int64] | None
    for_testing: npt.NDArray[np.bool_] | None
    persons: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)


def read_table(path: Path, columns: Columns, place: str, names: Sequence[str] | None) -> Table:
    """The texts of the named columns of a CSV or Parquet file; a value that is missing is empty.

    `place`: what errors call the file. `names`: of columns; the file may have others. None for all that it
    has.

    Raises LearningError: no such file, one that cannot be read, or that lacks a column or has it twice.
    """
    import pyarrow as pa

    try:
        table = _arrow_table(path, columns)
        found = table.column_names
        for name in found if names is None else names:
            if found.count(name) != 1:
                fault = "lacks" if name not in found else "has twice"
                raise LearningError(f"{place} {fault} the column '{name}'; it has {listed(found)}")
        texts = {name: table.column(name).to_pylist() for name in names or found}
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise LearningError(f"{place} cannot be read as a table: {' '.join(str(error).split())}") from None
    return texts_of(texts, columns, written=path.suffix != ".parquet")


def _arrow_table(path: Path, columns: Columns) -> "pyarrow.Table":
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix == ".parquet":
        return parquet.read_table(path)
    parse = csv.ParseOptions(delimiter=columns.separator)
    read = csv.ReadOptions(encoding=columns.encoding)
    header = csv.open_csv(path, read, parse).schema.names
    # Text as it stands: a type that is guessed from the rows would depend on other records.
    kinds = {name: pa.string() for name in header}
    convert = csv.ConvertOptions(column_types=kinds, strings_can_be_null=False)
    return csv.read_csv(path, read, parse, convert)


def texts_of(table: Mapping[str, Sequence[object]], columns: Columns, *, written: bool) -> Table:
    """Values in the form in which they are compared with a declaration; one that is missing is empty.

    `table`: values by column. `written`: whether numbers are texts with the declared decimal mark, and no
    numbers of a program.
    """
    return {name: _texts(name, values, columns, written=written) for name, values in table.items()}


def _texts(name: str, values: Sequence[object], columns: Columns, *, written: bool) -> Texts:
    shown = ["" if value is None else str(value).strip() for value in values]
    if name not in columns.names():
        return np.array(shown, dtype=object)
    own, column = columns.values(name), columns.number(name)
    marks = {*map(plain, columns.missing), *(mark for mark in ALWAYS_MISSING if mark not in own)}
    if column is None or (column.dated is None and columns.decimal == "."):
        shown = [plain(text) for text in shown]
    elif column.dated is None and not written:
        shown = [text.replace(".", columns.decimal) for text in shown]
    return np.array(["" if text in marks else text for text in shown], dtype=object)


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for an error, of many the first."""
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def rows_of(table: Table, columns: Columns, place: str, *, shared_out: bool) -> Rows:
    """Make records of the texts of a table.

    Args:
        table: every declared column; with ``shared_out`` that of the party, too.
        place: what errors call it.
        shared_out: whether parties share the table; else it is one party's own.

    Raises LearningError: a value that is not a number, not declared or missing, or no rows; names column and
    row.
    """
    kept = _kept(table, columns, place)
    if not kept.any():
        raise LearningError(f"{place} has no rows with data")
    table = {name: texts[kept] for name, texts in table.items()}
    where = Where(place, np.flatnonzero(kept) + 1)
    return checked_rows(table, columns, where, shared_out=shared_out)


def checked_rows(table: Table, columns: Columns, where: "Where", *, shared_out: bool) -> Rows:
    """Records of a table all of whose rows are kept; faults go to ``where``."""
    return Rows(
        x=inputs_of(table, columns, where),
        y=_labels(table, columns, where),
        parties=_numbers(table, columns.party, where) if shared_out and columns.party else None,
        groups=_numbers(table, columns.record_group, where) if columns.record_group else None,
        for_testing=np.isin(table[columns.test.name], columns.test.values) if columns.test else None,
        persons=None if columns.person is None else _persons(table[columns.person], columns.person, where),
    )


def _persons(texts: Texts, name: str, where: "Where") -> npt.NDArray[np.int64]:
    """A number for every person, the same in every table: 63 bits of the hash of its text."""
    where.refuse(name, texts, texts == "", "so nobody knows which person the row is about")
    heads = [sha256(str(text).encode()).digest()[:8] for text in texts]
    return np.array([int.from_bytes(head, "big") >> 1 for head in heads], dtype=np.int64)


def inputs_of(table: Table, columns: Columns, where: "Where") -> npt.NDArray[np.float32]:
    """What a model sees of a table, shape (N, inputs); the columns that it sees are enough.

    Raises LearningError: a value that is not a number or not declared; names column and row.
    """
    inputs = [_scaled(table[each.name], each, where, columns.decimal)[:, None] for each in columns.numeric]
    inputs += [_one_hot(table[each.name], each, where) for each in columns.categorical]
    return np.concatenate(inputs, axis=1).astype(np.float32)


def _kept(table: Table, columns: Columns, place: str) -> npt.NDArray[np.bool_]:
    """All rows but those that are declared to be left out."""
    present: npt.NDArray[np.bool_] = np.ones(len(table[columns.label_names[0]]), dtype=np.bool_)
    for name in columns.label_names:
        present = present & (table[name] != "")
        if not present.all() and columns.missing_labels != DROP:
            raise LearningError(
                f"{place}: row {int(np.flatnonzero(~present)[0]) + 1} has no label in the column '{name}': "
                "declare missing_labels: drop to leave such rows out"
            )
    if columns.incomplete_rows == DROP:
        for name in columns.inputs:
            present = present & (table[name] != "")
    return present


@dataclass(frozen=True)
class Fault:
    """A value that is not as declared.

    Attributes:
        row: from 1, without the header.
        text: the value; empty where it is missing.
        words: what is wrong with it.
    """

    row: int
    column: str
    text: str
    words: str

    def __str__(self) -> str:
        held = f"holds '{self.text}'" if self.text else "is empty"
        return f"column '{self.column}' {held} in row {self.row}, {self.words}"


@dataclass(frozen=True, eq=False)
class Where:
    """The rows that are read, by their numbers in the table from 1, without its header.

    `found`: takes every fault; None where the first one is raised.
    """

    place: str
    rows: npt.NDArray[np.int64]
    found: list[Fault] | None = None

    def refuse(self, name: str, texts: Texts, wrong: npt.NDArray[np.bool_], words: str) -> None:
        """Say what is wrong with some values of a column; nothing, if none are wrong.

        Raises LearningError: of the first of them, where nobody takes all.
        """
        faults = [Fault(int(self.rows[at]), name, str(texts[at]), words) for at in np.flatnonzero(wrong)]
        if self.found is not None:
            self.found.extend(faults)
        elif faults:
            raise LearningError(f"{self.place}: {faults[0]}")


def parsed(texts: Texts, column: Numeric, where: Where, *, decimal: str = ".") -> npt.NDArray[np.float64]:
    """The numbers of a column, float64[N]; NaN for what is missing. Faults go to ``where``."""
    dated = column.dated
    read: Callable[[str], float]
    if dated is not None:
        read, words = dated.number, f"which is no date of the form {dated.form or 'ISO 8601'}"
    else:
        read, words = float if decimal == "." else _with_comma, "which is no number"
    numbers = np.array([_number(text, read) for text in texts], dtype=np.float64)
    where.refuse(column.name, texts, (texts != "") & np.isnan(numbers), words)
    return numbers


def _with_comma(text: str) -> float:
    """A number with a decimal comma; a full stop, which may stand between thousands, is none of it."""
    if "." in text:
        raise ValueError(text)
    return float(text.replace(",", "."))


def _number(text: str, read: Callable[[str], float]) -> float:
    """A finite number, else NaN."""
    try:
        number = read(text)
    except ValueError:
        return np.nan
    return number if isfinite(number) else np.nan


def _to_unit(numbers: npt.NDArray[np.float64], low: float, high: float) -> npt.NDArray[np.float64]:
    scaled: npt.NDArray[np.float64] = 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1
    return scaled


def _scaled(texts: Texts, column: Numeric, where: Where, decimal: str) -> npt.NDArray[np.float64]:
    numbers = parsed(texts, column, where, decimal=decimal)
    middle = (column.low + column.high) / 2
    stand_in = middle if column.missing is None else column.missing
    return _to_unit(np.where(np.isnan(numbers), stand_in, numbers), column.low, column.high)


def _one_hot(texts: Texts, column: Categorical, where: Where) -> npt.NDArray[np.float64]:
    if column.missing is not None:
        texts = np.where(texts == "", column.missing, texts)
    if column.other is not None:
        texts = np.where(np.isin(texts, ("", *column.values)), texts, column.other)
    words = (
        f"which is none of {listed(column.values)}: declare it, or other: VALUE for all that is not declared"
    )
    where.refuse(column.name, texts, ~np.isin(texts, ("", *column.values)), words)
    hot: npt.NDArray[np.bool_] = texts[:, None] == np.array(column.values, dtype=object)
    return hot.astype(np.float64)


def _labels(table: Table, columns: Columns, where: Where) -> Labels:
    if columns.label_set:
        return np.stack([_numbers(table, each, where) for each in columns.label_set], axis=1)
    texts, label = table[columns.label], columns.number(columns.label)
    if label is not None:
        labels = parsed(texts, label, where, decimal=columns.decimal)
        return _to_unit(labels, label.low, label.high).astype(np.float32)
    numbers = {value: number for number, values in enumerate(columns.classes) for value in values}
    return _looked_up(texts, columns.label, numbers, where)


def _numbers(table: Table, column: Named, where: Where) -> npt.NDArray[np.int64]:
    numbers = {value: number for number, value in enumerate(column.values)}
    return _looked_up(table[column.name], column.name, numbers, where)


def _looked_up(texts: Texts, name: str, numbers: dict[str, int], where: Where) -> npt.NDArray[np.int64]:
    known = list(numbers)
    where.refuse(name, texts, ~np.isin(texts, known), f"which is none of {listed(known)}")
    return np.array([numbers.get(text, 0) for text in texts], dtype=np.int64)
