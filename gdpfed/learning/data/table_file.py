"""The one reader of tables: CSV and Parquet files, some thousand rows at a time, for all who read tables.

Whoever checks, trains, predicts or declares reads with `open_table`, so that all see the same rows. Rows
are counted in two ways: by the parser (Arrow), and of CSV by lines and quotes
(`gdpfed.learning.data.csv_records`), of Parquet by what the file says of itself. Where both do not agree, the
file is refused. Nothing of a value is changed or guessed here: of CSV every value is a text, of Parquet what
its column holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data.csv_records import IsRow, RecordReader, Records, encoded_blocks
from gdpfed.learning.data.unpacked import refuse_unpacked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv, parquet
else:
    pa = late_import("pyarrow")
    csv = late_import("pyarrow.csv")
    parquet = late_import("pyarrow.parquet")

ENDINGS = (".csv", ".parquet")
MOST_COLUMNS = 10_000
PARQUET_ROWS = 2**15
BYTES_A_CELL, MOST_TIMES = 8, 1000
"""Of a value, and as large as its Parquet file a table may be: a column may repeat a lot."""
LOOKED_AT = 10
"""Lines below the first one that may be the header in its place."""
SEP = "sep="
"""How the first line begins where Excel is told the separator."""
Uneven = Callable[[int, int], None]
"""Takes the line of a row and how many values it has, where the header has another number."""


@dataclass(frozen=True)
class TableForm:
    """How a file is read.

    Attributes:
        separator, encoding: of CSV.
        wanted: columns by whose names the line of names is known.
        row_test: from the names of columns to a function that says whether fields read as a row; by default
            all do that are as many as columns.
    """

    separator: str = ","
    encoding: str = "utf-8"
    wanted: tuple[str, ...] = ()
    row_test: Callable[[Sequence[str]], IsRow] = field(default=lambda _: lambda _: True)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a table.

    Attributes:
        cells: what the columns hold, by name; of CSV texts.
        rows: their numbers in the table, from 1, shape (N,).
        lines: of the file in which they begin, from 1, shape (N,); of Parquet the same as `rows`.
    """

    cells: Mapping[str, "pa.Array"]
    rows: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TableFile:
    """A table that is open for one reading.

    Attributes:
        place: what errors call it.
        names: of its columns, in order.
        written: whether all of its values are texts, as in CSV.
        notes: what was passed over.
    """

    place: str
    names: Sequence[str]
    written: bool
    notes: Sequence[str]
    _read: Callable[[Sequence[int], Uneven | None], Iterator[Batch]]

    def batches(self, names: Sequence[str], uneven: Uneven | None = None) -> Iterator[Batch]:
        """All rows, in order, with the named columns alone.

        `uneven`: told of rows with more or fewer values than there are columns, which are left out then;
        where it is None they are refused.

        Raises LearningError: the file lacks a column or has it twice, or cannot be read on.
        """
        for name in names:
            if (count := list(self.names).count(name)) != 1:
                fault = "has twice" if count else "lacks"
                raise LearningError(f"{self.place} {fault} the column '{name}'; it has {listed(self.names)}")
        return self._read([self.names.index(name) for name in names], uneven)


def is_table(path: Path) -> bool:
    """Whether a file's name has the ending of a table, in capitals or not."""
    return path.suffix.lower() in ENDINGS


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for an error, of many the first."""
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def open_table(path: Path, place: str, form: TableForm) -> TableFile:
    """Open a table and read the names of its columns.

    Raises LearningError: no such file, another ending, or a file that is no table, with the cause.
    """
    if not is_table(path):
        raise LearningError(f"{place} must end in {' or '.join(ENDINGS)}")
    return (_open_parquet if path.suffix.lower() == ".parquet" else _open_csv)(path, place, form)


def _check_width(place: str, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise LearningError(
            f"{place} has {columns:,} columns or more, and a table may have {MOST_COLUMNS:,}: leave out "
            "those that no model is to learn of"
        )


def _open_csv(path: Path, place: str, form: TableForm) -> TableFile:
    tests: list[IsRow] = []
    blocks = encoded_blocks(path, form.encoding, place)
    reader = RecordReader(blocks, form.separator, place, lambda fields: tests[0](fields))
    notes = list[str]()
    header = reader.first()
    told = "" if header is None else header.data.decode().strip().strip('"')
    if header is not None and told.lower().startswith(SEP) and len(told) == len(SEP) + 1:
        if told[-1] != form.separator:
            raise LearningError(
                f"{place}: line {header.lines[0]} is Excel's {told}, and the declaration's separator is "
                f"{form.separator!r}: declare separator: '{told[-1]}'"
            )
        notes.append(f"line {header.lines[0]} is Excel's {told}: it is passed over")
        header = reader.first()
    if header is None:
        raise LearningError(f"{place} cannot be read as a table: the file is empty")
    # The parser takes a time that grows with their square. Half of the separators may be within quotes.
    _check_width(place, header.data.count(form.separator.encode()) // 2)
    names = _fields(header.data, form.separator, place)
    _check_width(place, len(names))
    _refuse_titles(reader, names, form, place, int(header.lines[0]))
    reader.header = names
    tests.append(form.row_test(names))

    def read(wanted: Sequence[int], uneven: Uneven | None) -> Iterator[Batch]:
        rows = 0
        for records in reader:
            batch = _parsed(records, len(names), form.separator, wanted, place, uneven)
            cells = {names[at]: batch.cells[str(at)] for at in wanted}
            yield Batch(cells, rows + batch.rows, batch.lines)
            rows += len(batch.rows)

    return TableFile(place, names, True, notes, read)


def _refuse_titles(reader: RecordReader, names: list[str], form: TableForm, place: str, line: int) -> None:
    """Refuse a first line of titles or notes, where one of the next lines has the names of columns."""
    known = len({*form.wanted} & {*names})
    for below, fields in enumerate(reader.peek(LOOKED_AT), start=1):
        if len({*form.wanted} & {*fields}) > known:
            raise LearningError(
                f"{place}: line {line + below} has the names of columns, and is not the first line: take out "
                "what is above it"
            )


def _fields(record: bytes, separator: str, place: str) -> list[str]:
    """The values of one record, as texts."""
    record = record.rstrip(b"\r\n") + b"\n"
    try:
        found = _read(record, separator, csv.ReadOptions(autogenerate_column_names=True), {}).column_names
        table = _read(record, separator, csv.ReadOptions(column_names=found), {"include_columns": found})
    except pa.ArrowException as error:
        raise LearningError(f"{place} cannot be read as a table: {one_line(error)}") from None
    return [str(column[0].as_py()) for column in table.columns]


def _read(data: bytes, separator: str, read: Any, convert: dict[str, Any], skip: Any = None) -> "pa.Table":
    """Records as columns of texts; none is taken for a number, a truth, a time or nothing."""
    # One block: Arrow does not look for the ends of rows where blocks are cut, which has had faults.
    read.block_size, read.use_threads = len(data) + 1, False
    parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=skip)
    kinds = dict.fromkeys(convert.get("include_columns", ()), pa.string())
    return csv.read_csv(
        pa.BufferReader(data),
        read,
        parse,
        csv.ConvertOptions(column_types=kinds, strings_can_be_null=False, **convert),
    )


def _parsed(
    records: Records, width: int, separator: str, wanted: Sequence[int], place: str, uneven: Uneven | None
) -> Batch:
    """Whole records as columns of texts, by their numbers; the parser's count is compared with the lines'."""
    odd: list[tuple[int, int]] = []

    def skip(row: Any) -> str:
        odd.append((row.number - 1, row.actual_columns))
        return "skip"

    numbers = [str(number) for number in range(width)]
    kept = [str(at) for at in wanted] or numbers[:1]
    try:
        read = csv.ReadOptions(column_names=numbers)
        table = _read(records.data, separator, read, {"include_columns": kept}, skip)
    except pa.ArrowException as error:
        raise LearningError(f"{place} cannot be read as a table: {one_line(error)}") from None
    lines = records.lines
    if table.num_rows + len(odd) != len(lines):
        raise LearningError(
            f"{place}: the parser finds {table.num_rows + len(odd)} rows in lines {lines[0]} to {lines[-1]}, "
            f"and lines and quotes say {len(lines)}: look for a quote that is not closed there"
        )
    present = np.ones(len(lines), dtype=np.bool_)
    for at, values in odd:
        if uneven is None:
            raise LearningError(f"{place}: line {lines[at]} has {values} values, and the header has {width}")
        uneven(int(lines[at]), values)
        present[at] = False
    cells = {name: table.column(name).combine_chunks() for name in kept}
    return Batch(cells, np.arange(1, table.num_rows + 1), lines[present])


def _open_parquet(path: Path, place: str, form: TableForm) -> TableFile:
    del form
    try:
        file = parquet.ParquetFile(path, pre_buffer=False)
        names = list(file.schema_arrow.names)
    except (OSError, pa.ArrowException) as error:
        raise LearningError(f"{place} cannot be read as a table: {one_line(error)}") from None
    _check_width(place, len(names))
    size = file.metadata.num_rows * len(names) * BYTES_A_CELL
    refuse_unpacked(place, path.stat().st_size, size, MOST_TIMES)

    def read(wanted: Sequence[int], uneven: Uneven | None) -> Iterator[Batch]:
        del uneven
        rows = 0
        try:
            columns = [names[at] for at in wanted]
            for batch in file.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
                cells = {name: batch.column(name) for name in columns}
                numbers = np.arange(rows + 1, rows + batch.num_rows + 1)
                yield Batch(cells, numbers, numbers)
                rows += batch.num_rows
        except (OSError, pa.ArrowException, KeyError) as error:
            raise LearningError(f"{place} cannot be read as a table: {one_line(error)}") from None
        if rows != file.metadata.num_rows:
            raise LearningError(
                f"{place} says that it has {file.metadata.num_rows} rows, and {rows} can be read: write it "
                "anew"
            )

    return TableFile(place, names, False, (), read)


def one_line(error: Exception) -> str:
    """The text of an error without its line ends."""
    return " ".join(str(error).split())
