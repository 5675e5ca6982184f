"""Reads all kinds of tables, a few thousand rows at a time: CSV, Parquet, Excel, and answers to SQL queries.

Whoever checks, trains, predicts or declares reads with `open_table`, so that all see the same rows. Rows
are counted in two ways: by the parser (Arrow), and of CSV by lines and quotes
(`gdpfed.learning.data.csv_records`), of Parquet by what the file says of itself. Where both do not agree, the
file is refused. Nothing of a value is changed or guessed here: of CSV every value is a text, of Parquet what
its column holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, words_of
from gdpfed.late_import import late_import
from gdpfed.learning.data.csv_head import LOOKED_AT, all_names, look_at_head
from gdpfed.learning.data.csv_records import IsRow, RecordReader, Records
from gdpfed.learning.data.faults import shortened
from gdpfed.learning.data.file_form import (
    ENDINGS_IN_WORDS,
    FILES_FILE,
    FIRST,
    LAST,
    QUERY,
    WORKBOOKS,
    FileForm,
    Found,
    is_table,
    kind_of,
)
from gdpfed.learning.data.pipes import refuse_pipe
from gdpfed.learning.data.text_files import encoded_blocks
from gdpfed.learning.data.unpacked import refuse_unpacked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import compute, csv, parquet
else:
    pa = late_import("pyarrow")
    compute = late_import("pyarrow.compute")
    csv = late_import("pyarrow.csv")
    parquet = late_import("pyarrow.parquet")

MOST_COLUMNS = 10_000
TABLE_REMEDY = "write the table into a file, and name it"
PARQUET_ROWS = 2**15
BYTES_A_CELL, MOST_TIMES = 8, 1000
"""Of a value, and as large as its Parquet file a table may be: a column may repeat a lot."""
OTHERS = {
    **dict.fromkeys(
        (".xls", ".xlsb", ".ods"), "another kind of workbook: save it as .xlsx, or its sheet as CSV"
    ),
    ".zip": "an archive: unpack it",
    **dict.fromkeys((".dta", ".sav", ".sas7bdat", ".rds"), "of a statistics program: write it as CSV"),
}
"""What people give as tables and no reader is there for."""
Uneven = Callable[[int, int], None]
"""Takes the line of a row and how many values it has, where the header has another number."""


@dataclass(frozen=True)
class TableForm:
    """How to read a table file: what the declaration and the data owner state about its format.

    Attributes:
        own: what the site says of it.
        separator, encoding: what is tried first in CSV, and for lines that are not UTF-8.
        wanted: columns by whose names the line of names is known.
        numbers: those of them that are read as numbers or days; all others are texts.
        decimal: the decimal mark of numbers among texts.
        row_test: from the names of columns to a function that says whether fields read as a row; by default
            all do that are as many as columns.
    """

    own: FileForm = field(default_factory=FileForm)
    separator: str = ","
    encoding: str = "utf-8"
    wanted: tuple[str, ...] = ()
    numbers: frozenset[str] = frozenset()
    decimal: str = "."
    row_test: Callable[[Sequence[str]], IsRow] = field(default=lambda _: lambda _: True)


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive rows of a table, stored by column, with each row's number and its line in the file.

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
    """An open table file, whose rows can be read once, in batches.

    Attributes:
        place: what errors call it.
        names: of its columns, in order.
        own: what the site says of it.
        found: what was found in it; more is while it is read.
        of_lines: whether the names are a line of the file.
    """

    place: str
    names: Sequence[str]
    own: FileForm
    found: Found
    _read: Callable[[Sequence[int], Uneven | None], Iterator[Batch]]
    of_lines: bool = True

    def batches(self, names: Sequence[str], uneven: Uneven | None = None) -> Iterator[Batch]:
        """Yield all rows of the table in order, in batches, with only the named columns.

        `uneven`: told of rows with more or fewer values than there are columns, which are left out then;
        where it is None they are refused.

        Raises LearningError: the file lacks a column or has it twice, or cannot be read on.
        """
        for name in names:
            if (count := list(self.names).count(name)) != 1:
                fault = "has twice" if count else "lacks"
                has = listed([each or "one without a name" for each in self.names])
                nothing = self.of_lines and not {*names} & {*self.names}
                hint = f". Is line 1 a row? Say header: [a, b] in {FILES_FILE}" if nothing else ""
                hint = ": rename one" if count else hint
                raise LearningError(f"{self.place} {fault} the column '{name}'; it has {has}{hint}")
        return self._read([self.names.index(name) for name in names], uneven)


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join the first ``most`` names with commas for an error message; "..." stands for the others."""
    return ", ".join(map(shortened, names[:most])) + (" ..." if len(names) > most else "")


def open_table(path: Path, place: str, form: TableForm) -> TableFile:
    """Open a table and read the names of its columns.

    Raises LearningError: no such file, another ending, or a file that is not a table, with the cause.
    """
    if path.is_dir():
        raise LearningError(f"{place} is a folder, and one table is needed: name a file in it")
    refuse_pipe(path, place, TABLE_REMEDY)
    if not is_table(path):
        other = f": this is {OTHERS[kind]}" if (kind := path.suffix.lower()) in OTHERS else ""
        raise LearningError(f"{place} must end in {ENDINGS_IN_WORDS}{other}")
    # These two read tables by what is here.
    if kind_of(path) in WORKBOOKS:
        from gdpfed.learning.data.workbook_file import open_workbook

        return open_workbook(path, place, form)
    if kind_of(path) == QUERY:
        from gdpfed.learning.data.query_file import open_query

        return open_query(path, place, form)
    return (_open_parquet if kind_of(path) == ".parquet" else _open_csv)(path, place, form)


def check_width(place: str, columns: int) -> None:
    """Raise LearningError if a table has too many columns."""
    if columns > MOST_COLUMNS:
        raise LearningError(
            f"{place} has {columns:,} columns or more, and a table may have {MOST_COLUMNS:,}: leave out "
            "those that no model is to learn of"
        )


def _open_csv(path: Path, place: str, form: TableForm) -> TableFile:
    own, found, tests = form.own, Found(), list[IsRow]()
    blocks = encoded_blocks(path, own.encoding, form.encoding, place, found)
    declared = "\t" if kind_of(path) == ".tsv" else form.separator
    begins = next(blocks, b"")
    head = look_at_head(begins, own, declared, form.wanted, found, place)
    separator = found.separator = head.separator
    reader = RecordReader(
        chain([begins[head.skipped :]], blocks),
        separator,
        place,
        lambda fields: tests[0](fields),
        line=head.line,
    )
    if own.header:
        names = list(own.header)
        reader.look()
    else:
        header = reader.first()
        if header is None:
            raise LearningError(f"{place} cannot be read as a table: the file is empty")
        # The parser takes a time that grows with their square. Half of the separators may be within quotes.
        check_width(place, header.data.count(separator.encode()) // 2)
        record = header.data.rstrip(b"\r\n") + b"\n"
        try:
            unnamed = csv.ReadOptions(autogenerate_column_names=True)
            fields = _read(record, separator, unnamed, {}).column_names
            named = csv.ReadOptions(column_names=fields)
            table = _read(record, separator, named, {"include_columns": fields})
        except pa.ArrowException as error:
            raise LearningError(f"{place} cannot be read as a table: {words_of(error)}") from None
        names = [str(column[0].as_py()) for column in table.columns]
    check_width(place, len(names))
    below = reader.records_below(LOOKED_AT)
    names, last_filled = all_names(names, below, separator, own, form.row_test, found, place)
    reader.header = names
    tests.append(form.row_test(names))

    def read(wanted: Sequence[int], uneven: Uneven | None) -> Iterator[Batch]:
        rows, last = 0, [] if last_filled is None else [len(names) - 1]
        read = [*dict.fromkeys([*wanted, *last])]
        for records in reader:
            batch = _parsed_batch(records, len(names), separator, read, place, uneven, own.unnamed)
            if last:
                filled = compute.not_equal(compute.utf8_trim_whitespace(batch.cells[str(last[0])]), "")
                if len(odd := np.flatnonzero(filled.to_numpy(zero_copy_only=False) != last_filled)):
                    cause = (
                        "ends in an empty value, and rows begin with an index that has no name: say "
                        f"unnamed: {FIRST} in {FILES_FILE}"
                    )
                    if not last_filled:
                        cause = (
                            "has one value more than the header, and other rows end with a separator: if a "
                            "text in it has a separator, put that text in quotation marks"
                        )
                    raise LearningError(f"{place}: line {batch.lines[odd[0]]} {cause}")
            cells = {names[at]: batch.cells[str(at)] for at in wanted}
            yield Batch(cells, rows + batch.rows, batch.lines)
            rows += len(batch.rows)

    return TableFile(place, names, own, found, read)


def _read(data: bytes, separator: str, read: Any, convert: dict[str, Any], skip: Any = None) -> "pa.Table":
    """Parse CSV records into columns of texts, without converting any value."""
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


def _parsed_batch(
    records: Records,
    width: int,
    separator: str,
    wanted: Sequence[int],
    place: str,
    uneven: Uneven | None,
    unnamed: str | None,
) -> Batch:
    """Parse CSV records into text columns; raise LearningError if Arrow finds more or fewer records."""
    odd: list[tuple[int, int]] = []
    counted = f", with unnamed: {unnamed} of {FILES_FILE}" if unnamed else ""
    more = "" if unnamed else f", or say in {FILES_FILE} unnamed: {FIRST} or {LAST} if each has one more"

    def skip(row: Any) -> str:
        odd.append((row.number - 1, row.actual_columns))
        return "skip"

    numbers = [str(number) for number in range(width)]
    kept = [str(at) for at in wanted] or numbers[:1]
    try:
        read = csv.ReadOptions(column_names=numbers)
        table = _read(records.data, separator, read, {"include_columns": kept}, skip)
    except pa.ArrowException as error:
        raise LearningError(f"{place} cannot be read as a table: {words_of(error)}") from None
    lines = records.lines
    if table.num_rows + len(odd) != len(lines):
        raise LearningError(
            f"{place}: the parser finds {table.num_rows + len(odd)} rows in lines {lines[0]} to {lines[-1]}, "
            f"and lines and quotes say {len(lines)}: look for a quote that is not closed there"
        )
    present = np.ones(len(lines), dtype=np.bool_)
    for at, values in odd:
        if uneven is None:
            raise LearningError(
                f"{place}: line {lines[at]} has {values} values, and the header has {width}{counted}: give "
                f"the line as many{more if values == width + 1 else ''}"
            )
        uneven(int(lines[at]), values)
        present[at] = False
    cells = {name: table.column(name).combine_chunks() for name in kept}
    return Batch(cells, np.arange(1, table.num_rows + 1), lines[present])


def _open_parquet(path: Path, place: str, form: TableForm) -> TableFile:
    try:
        file = parquet.ParquetFile(path, pre_buffer=False)
        written = list(file.schema_arrow.names)
    except (OSError, pa.ArrowException) as error:
        raise LearningError(f"{place} cannot be read as a table: {words_of(error)}") from None
    names = [name.strip() for name in written]
    check_width(place, len(names))
    size = file.metadata.num_rows * len(names) * BYTES_A_CELL
    refuse_unpacked(place, path.stat().st_size, size, MOST_TIMES)

    def read(wanted: Sequence[int], uneven: Uneven | None) -> Iterator[Batch]:
        rows = 0
        try:
            columns = [written[at] for at in wanted]
            for batch in file.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
                cells = {name.strip(): batch.column(name) for name in columns}
                numbers = np.arange(rows + 1, rows + batch.num_rows + 1)
                yield Batch(cells, numbers, numbers)
                rows += batch.num_rows
        except (OSError, pa.ArrowException, KeyError) as error:
            raise LearningError(f"{place} cannot be read as a table: {words_of(error)}") from None
        if rows != file.metadata.num_rows:
            raise LearningError(
                f"{place} says that it has {file.metadata.num_rows} rows, and {rows} can be read: write it "
                "again"
            )

    return TableFile(place, names, form.own, Found(), read, of_lines=False)
