"""Rows of a table as a model takes them: CSV and Parquet files, read by the declaration of their columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import DROP, Categorical, Columns, Named, Numeric, plain
from gdpfed.learning.data.dataset import Labels

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
        y: class numbers, int64, or numbers scaled to [-1, 1], float32; shape (N,).
        parties: the number of each one's party, shape (N,), int64; None where none is declared or asked for.
        groups: the number of each one's group of records, shape (N,), int64; None where none is declared.
        for_testing: which of them are declared to be for testing, shape (N,), bool; None where nothing is.
    """

    x: npt.NDArray[np.float32]
    y: Labels
    parties: npt.NDArray[np.int64] | None
    groups: npt.NDArray[np.int64] | None
    for_testing: npt.NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.y)


def read_table(path: Path, columns: Columns, place: str, names: Sequence[str]) -> Table:
    """The texts of the named columns of a CSV or Parquet file; a value that is missing is empty.

    Args:
        place: what errors call the file.
        names: of columns; the file may have others.

    Raises:
        LearningError: no such file, one that cannot be read, or that lacks a column or has it twice.
    """
    import pyarrow as pa

    try:
        table = _arrow_table(path, columns)
        found = table.column_names
        for name in names:
            if found.count(name) != 1:
                fault = "lacks" if name not in found else "has twice"
                raise LearningError(f"{place} {fault} the column '{name}'; it has {_listed(found)}")
        return {name: texts_of(table.column(name).to_pylist(), columns.missing) for name in names}
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise LearningError(f"{place} cannot be read as a table: {' '.join(str(error).split())}") from None


def _arrow_table(path: Path, columns: Columns) -> "pyarrow.Table":
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix == ".parquet":
        return parquet.read_table(path)
    parse = csv.ParseOptions(delimiter=columns.separator)
    header = csv.open_csv(path, parse_options=parse).schema.names
    # Text as it stands: a type that is guessed from the rows would depend on other records.
    kinds = {name: pa.string() for name in header}
    convert = csv.ConvertOptions(column_types=kinds, strings_can_be_null=False)
    return csv.read_csv(path, parse_options=parse, convert_options=convert)


def texts_of(values: Sequence[object], missing: Sequence[str]) -> Texts:
    """Values in the form in which they are compared with a declaration; one that is missing is empty.

    Args:
        values: of one column.
        missing: texts that stand for a missing value.
    """
    marks = {"", *map(plain, missing)}
    texts = ["" if value is None else plain(value) for value in values]
    return np.array(["" if text in marks else text for text in texts], dtype=object)


def _listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def rows_of(table: Table, columns: Columns, place: str, *, shared_out: bool) -> Rows:
    """Make records of the texts of a table.

    Args:
        table: every declared column; with ``shared_out`` that of the party, too.
        place: what errors call it.
        shared_out: whether parties share the table; else it is one party's own.

    Raises:
        LearningError: a value that is not a number, not declared or missing, or no rows; names column and
            row.
    """
    kept = _kept(table, columns, place)
    if not kept.any():
        raise LearningError(f"{place} has no rows with data")
    table = {name: texts[kept] for name, texts in table.items()}
    where = _Where(place, np.flatnonzero(kept) + 1)
    inputs = [_scaled(table[each.name], each, where)[:, None] for each in columns.numeric]
    inputs += [_one_hot(table[each.name], each, where) for each in columns.categorical]
    return Rows(
        x=np.concatenate(inputs, axis=1).astype(np.float32),
        y=_labels(table[columns.label], columns, where),
        parties=_numbers(table, columns.party, where) if shared_out and columns.party else None,
        groups=_numbers(table, columns.record_group, where) if columns.record_group else None,
        for_testing=np.isin(table[columns.test.name], columns.test.values) if columns.test else None,
    )


def _kept(table: Table, columns: Columns, place: str) -> npt.NDArray[np.bool_]:
    """All rows but those that are declared to be left out."""
    present: npt.NDArray[np.bool_] = table[columns.label] != ""
    if not present.all() and columns.missing_labels != DROP:
        raise LearningError(
            f"{place}: row {int(np.flatnonzero(~present)[0]) + 1} has no label in the column "
            f"'{columns.label}': declare missing_labels: drop to leave such rows out"
        )
    if columns.incomplete_rows == DROP:
        for name in columns.inputs:
            present = present & (table[name] != "")
    return present


@dataclass(frozen=True, eq=False)
class _Where:
    """The rows that are read, by their numbers in the table from 1, without its header."""

    place: str
    rows: npt.NDArray[np.int64]

    def error(self, name: str, texts: Texts, wrong: npt.NDArray[np.bool_], fault: str) -> LearningError:
        """What is wrong with the first of some values of a column."""
        first = int(np.flatnonzero(wrong)[0])
        held = f"holds '{texts[first]}'" if texts[first] else "is empty"
        return LearningError(f"{self.place}: column '{name}' {held} in row {self.rows[first]}, {fault}")


def _parsed(texts: Texts, name: str, where: _Where) -> npt.NDArray[np.float64]:
    """Numbers, NaN for what is missing."""
    missing = texts == ""
    numbers = np.full(len(texts), np.nan)
    try:
        numbers[~missing] = texts[~missing].astype(np.float64)
        wrong = ~missing & ~np.isfinite(numbers)
    except ValueError:
        wrong = np.array([not _is_number(text) for text in texts]) & ~missing
    if wrong.any():
        raise where.error(name, texts, wrong, "which is no number")
    return numbers


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _to_unit(numbers: npt.NDArray[np.float64], low: float, high: float) -> npt.NDArray[np.float64]:
    scaled: npt.NDArray[np.float64] = 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1
    return scaled


def _scaled(texts: Texts, column: Numeric, where: _Where) -> npt.NDArray[np.float64]:
    numbers = _parsed(texts, column.name, where)
    middle = (column.low + column.high) / 2
    stand_in = middle if column.missing is None else column.missing
    return _to_unit(np.where(np.isnan(numbers), stand_in, numbers), column.low, column.high)


def _one_hot(texts: Texts, column: Categorical, where: _Where) -> npt.NDArray[np.float64]:
    if column.missing is not None:
        texts = np.where(texts == "", column.missing, texts)
    if column.other is not None:
        texts = np.where(np.isin(texts, ("", *column.values)), texts, column.other)
    unknown = ~np.isin(texts, ("", *column.values))
    if unknown.any():
        remedy = "declare it, or other: VALUE for all that is not declared"
        raise where.error(column.name, texts, unknown, f"which is none of {_listed(column.values)}: {remedy}")
    hot: npt.NDArray[np.bool_] = texts[:, None] == np.array(column.values, dtype=object)
    return hot.astype(np.float64)


def _labels(texts: Texts, columns: Columns, where: _Where) -> Labels:
    if columns.label_range is not None:
        return _to_unit(_parsed(texts, columns.label, where), *columns.label_range).astype(np.float32)
    numbers = {value: number for number, values in enumerate(columns.classes) for value in values}
    return _looked_up(texts, columns.label, numbers, where)


def _numbers(table: Table, column: Named, where: _Where) -> npt.NDArray[np.int64]:
    numbers = {value: number for number, value in enumerate(column.values)}
    return _looked_up(table[column.name], column.name, numbers, where)


def _looked_up(texts: Texts, name: str, numbers: dict[str, int], where: _Where) -> npt.NDArray[np.int64]:
    unknown = ~np.isin(texts, list(numbers))
    if unknown.any():
        raise where.error(name, texts, unknown, f"which is none of {_listed(list(numbers))}")
    return np.array([numbers[text] for text in texts], dtype=np.int64)
