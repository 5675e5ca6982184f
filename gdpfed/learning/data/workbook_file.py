"""Reads Excel workbooks as tables, one sheet each; needs the extra ``excel``.

A number stays a number and a day a day, each as its cell holds it. A formula is the value that was saved with
it. Where a workbook holds what no row of a table can, such as merged cells or formulas that were never
computed, it is refused. What a filter hides is read: it is there.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from gdpfed.errors import LearningError, words_of
from gdpfed.late_import import late_import, packages_needed
from gdpfed.learning.data.csv_head import LOOKED_AT
from gdpfed.learning.data.file_form import FILES_FILE, Found
from gdpfed.learning.data.object_cells import cell_text, column_of
from gdpfed.learning.data.table_file import Batch, TableFile, TableForm, Uneven, check_width, listed
from gdpfed.learning.data.unpacked import refuse_unpacked

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = late_import("pyarrow")
openpyxl = late_import("openpyxl")

ROWS = 2**13
MOST_TIMES = 200
OLD_EXCEL = b"\xd0\xcf\x11\xe0"
MERGED = re.compile(rb"<mergeCell [^>]*ref=\"[A-Z]+(\d+):[A-Z]+(\d+)\"")
CELL = re.compile(rb"<c r=\"[A-Z]+(\d+)\"([^>]*?)(?<!/)>(.*?)</c>", re.DOTALL)
VALUE = re.compile(rb"<v>[^<]")
EMPTY_TEXT = b't="str"'
LOOK_BYTES = 2**20
Row = tuple[Any, ...]


def open_workbook(path: Path, place: str, form: TableForm) -> TableFile:
    """Open the workbook's sheet that has the declared columns, and read the names of its columns.

    Raises:
        LearningError: no workbook, none or several sheets that have them, or what no table holds.
        InputError: the package openpyxl is not installed.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(len(OLD_EXCEL))
        if begins == OLD_EXCEL:
            raise LearningError(f"{place}: an old Excel file, or one with a password: save it as .xlsx")
        with ZipFile(path) as archive:
            size = sum(each.file_size for each in archive.infolist())
    except (OSError, BadZipFile) as error:
        raise LearningError(
            f"{place} cannot be read as a workbook: {words_of(error)}; save it again as .xlsx"
        ) from None
    refuse_unpacked(place, path.stat().st_size, size, MOST_TIMES)

    found = Found()
    with packages_needed(), _book(path, place) as book:
        name, above = _chosen_sheet(book, form, found, place)
        first = next(islice(_rows(book[name]), above, None), ())
    names = list(form.own.header) or [_name(each) for each in _trimmed(first)]
    begin = above + (not form.own.header)
    check_width(place, len(names))

    def read(wanted: Sequence[int], uneven: Uneven | None) -> Iterator[Batch]:
        _refuse_unsaved(path, name, begin, place)
        count = 0
        with _book(path, place) as book:
            lines = islice(enumerate(_rows(book[name]), start=1), begin, None)
            filled = _padded_rows(_to_the_end(lines, place), len(names), uneven, place)
            while part := list(islice(filled, ROWS)):
                numbers = np.array([line for line, _ in part], dtype=np.int64)
                columns = ((names[at], [row[at] for _, row in part]) for at in wanted)
                cells = {name: column_of(values, name, form, place) for name, values in columns}
                yield Batch(cells, np.arange(count + 1, count + len(part) + 1), numbers)
                count += len(part)

    return TableFile(place, names, form.own, found, read)


@contextmanager
def _book(path: Path, place: str) -> Iterator[Any]:
    """Open a workbook for a ``with`` block, with the saved results of formulas as cell values.

    Raises LearningError: a damaged one.
    """
    load = openpyxl.load_workbook  # Where there is no such package, it is this that says so.
    try:
        book = load(path, read_only=True, data_only=True, keep_links=False)
    except Exception as error:  # Of a damaged file openpyxl raises what its parsers do.
        raise LearningError(
            f"{place} cannot be read as a workbook: {words_of(error)}; save it again as .xlsx"
        ) from None
    try:
        yield book
    finally:
        book.close()


def _chosen_sheet(book: Any, form: TableForm, found: Found, place: str) -> tuple[str, int]:
    """Return the sheet with the declared columns, and how many of its rows stand above the column names."""
    titles, said = [each.title for each in book.worksheets], form.own.sheet
    if said is not None and said not in titles:
        raise LearningError(f"{place} has no sheet '{said}', as {FILES_FILE} says; it has {listed(titles)}")
    heads = {
        name: [_trimmed(row) for row in islice(_rows(book[name]), LOOKED_AT)]
        for name in ([said] if said is not None else titles)
    }
    wanted = {*form.wanted}
    # With names of the site's own all rows are records, and none of them chooses the sheet.
    scores = {
        (name, at): 0 if form.own.header else len(wanted & {_name(each) for each in row})
        for name, rows in heads.items()
        for at, row in enumerate(rows)
    }
    having = {name for (name, _), score in scores.items() if score}
    filled = [name for name, rows in heads.items() if any(rows)]
    if len(having) > 1 or (not having and len(filled) != 1):
        raise LearningError(
            f"{place} has the sheets {listed(titles)}, of which {len(having) or 'none'} have the declared "
            f"columns: set sheet in {FILES_FILE}"
        )
    (name,) = having or filled
    first = next((at for at, row in enumerate(heads[name]) if row), 0)
    at = (
        max((at for each, at in scores if each == name), key=lambda at: scores[name, at]) if having else first
    )
    if at > first:
        above = f"lines {first + 1} to {at} are" if at > first + 1 else f"line {at} is"
        found.head.append(f"{above} above the names of the columns, and passed over")
    if len(titles) > 1:
        found.head.append(f"of the sheets {listed(titles)} '{name}' is read")
    return name, at


def _rows(sheet: Any) -> Iterator[Row]:
    """Return an iterator over all rows of a sheet, even if the file states a smaller size of the sheet."""
    sheet.reset_dimensions()
    return iter(sheet.iter_rows(values_only=True))


def _refuse_unsaved(path: Path, name: str, above: int, place: str) -> None:
    """Raise LearningError if the table has merged cells, or formulas saved without their values."""
    with _book(path, place) as book:
        part = book[name]._worksheet_path
    with ZipFile(path) as archive, archive.open(part) as sheet:
        rest = b""
        while block := sheet.read(LOOK_BYTES):
            text = rest + block
            cut = max(text.rfind(b"</c>"), text.rfind(b"<mergeCell "), 0)
            whole = text if b"</worksheet" in block else text[: cut + len(b"</c>")]
            for merged in MERGED.finditer(whole):
                first, last = sorted(map(int, merged.groups()))
                if last > above:
                    raise LearningError(
                        f"{place}: lines {first} to {last} have merged cells: unmerge them, and fill each in"
                    )
            for cell in CELL.finditer(whole) if b"<f" in whole else ():
                if b"<f" in cell[3] and not VALUE.search(cell[3]) and EMPTY_TEXT not in cell[2]:
                    line = cell[1].decode()
                    raise LearningError(
                        f"{place}: a formula in line {line} was saved without its value: open the workbook "
                        "in Excel and save it, or paste values"
                    )
            rest = text[cut:]


def _to_the_end(lines: Iterator[tuple[int, Row]], place: str) -> Iterator[tuple[int, Row]]:
    try:
        yield from lines
    except (OSError, BadZipFile, KeyError, SyntaxError, ValueError) as error:
        raise LearningError(
            f"{place} cannot be read as a workbook: {words_of(error)}; save it again as .xlsx"
        ) from None


def _padded_rows(
    lines: Iterator[tuple[int, Row]], width: int, uneven: Uneven | None, place: str
) -> Iterator[tuple[int, Row]]:
    """Yield each non-empty row with its line number, padded to `width` values; report longer rows."""
    for line, row in lines:
        values = _trimmed(row)
        if len(values) > width:
            if uneven is None:
                raise LearningError(
                    f"{place}: line {line} has {len(values)} values, and the header has {width}: give the "
                    "line as many"
                )
            uneven(line, len(values))
        elif values:
            yield line, (*values, *(None,) * (width - len(values)))


def _trimmed(row: Row) -> Row:
    """Return a row without the empty cells at its end."""
    width = next((at for at in range(len(row), 0, -1) if row[at - 1] not in (None, "")), 0)
    return row[:width]


def _name(value: Any) -> str:
    """Return the name of a column that a cell holds; a duration is a name, too, that no declaration has."""
    named = str(value) if isinstance(value, timedelta) else cell_text(value, "", "", exact=False)
    return (named or "").strip()
