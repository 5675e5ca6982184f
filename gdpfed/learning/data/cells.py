"""Reads the cells of a table as numbers, dates or texts, as the YAML declaration of its columns says."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpfed.errors import LearningError, words_of
from gdpfed.late_import import packages_needed
from gdpfed.learning.data.columns import ALWAYS_MISSING, Columns, whole
from gdpfed.learning.data.file_form import MARKS, FileForm, Found
from gdpfed.learning.data.number_cells import NumberCells, numbers_of, with_unclear_wrong
from gdpfed.learning.data.text_cells import TextCells, named, texts_of, without
from gdpfed.learning.data.written_dates import UnclearError as UnclearDateError
from gdpfed.learning.data.written_dates import written_date
from gdpfed.learning.data.written_numbers import UnclearError as UnclearNumberError
from gdpfed.learning.data.written_numbers import written_number

if TYPE_CHECKING:
    import pyarrow as pa

Cells = NumberCells | TextCells
Table = dict[str, Cells]


def table_of(
    cells: Mapping[str, "pa.Array"],
    columns: Columns,
    place: str,
    *,
    own: FileForm | None = None,
    found: Found | None = None,
) -> Table:
    """Convert Arrow columns to numbers or texts, as the table's declaration says; other columns become texts.

    `cells`: of Arrow, by name. `own`: what the site says of their file. `found`: what was found in it
    so far; it takes what these cells show.

    Raises LearningError: values of a type that is neither a text, a number nor a date, or names as numbers in
    which some are one.
    """
    table: Table = {}
    own, found = own or FileForm(), found or Found()
    for name, values in cells.items():
        number = columns.number(name)
        if number is None:
            texts = texts_of(values, name, place)
            if said := own.values(name):
                texts, count = named(texts, said)
                found.named[name] += count
            # A mark stands for a missing value, unless the column declares it as a value.
            declared = {*columns.values(name), *map(whole, columns.values(name))}
            general = {
                mark
                for mark in (*columns.missing, *own.missing, *ALWAYS_MISSING)
                if mark not in declared and whole(mark) not in declared
            }
            if name not in columns.names():
                general = {""}
            elif name == columns.person:
                # Usual marks stay, so that a refusal shows them.
                general = {"", *columns.missing, *own.missing}
            texts = without(texts, frozenset({*general, *columns.marks(name), *own.marks(name)}))
            table[name] = _without_usual_marks(texts, columns, name, found)
        else:
            table[name] = numbers_of(values, number, columns, own, found, place)
    if own.decimal is None and columns.decimal == "." and (found.commas or found.separator == ";"):
        # Beside decimal commas, or in a file separated by semicolons as theirs are, a full stop may group
        # thousands.
        for name, each in table.items():
            if isinstance(each, NumberCells):
                table[name] = with_unclear_wrong(each)
    return table


def arrow_table(data: Any, place: str) -> "pa.Table":
    """Convert a pandas, polars or Arrow table, or columns by name, to Arrow; `place` names it in errors.

    Raises LearningError: no table, or a column that is there twice; InputError: a package that is missing.
    """
    with packages_needed():
        import pyarrow as pa

        try:
            # The index of a data frame is not a column of it.
            table = pa.table(data.reset_index(drop=True) if hasattr(data, "reset_index") else data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise LearningError(f"{place} are not a table: {words_of(error)}") from None
    found = table.column_names
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        raise LearningError(f"{place} have the column '{twice[0]}' twice: rename one")
    return table


def _without_usual_marks(cells: TextCells, columns: Columns, name: str, found: Found) -> TextCells:
    """Treat usual marks (such as N/A) as missing values, except marks that the column declares as values.

    Only label columns change, and categorical columns without a value for undeclared texts (`other`).
    """
    column = next((each for each in columns.categorical if each.name == name), None)
    if name not in columns.label_names and (column is None or column.other is not None):
        return cells
    marks = MARKS & {*cells.distinct} - {*columns.values(name)}
    counts = np.bincount(cells.which, minlength=len(cells.distinct)) if marks else ()
    for text, count in zip(cells.distinct, counts, strict=False):
        if text in marks and count:
            found.marks[name, text] += int(count)
    return without(cells, marks) if marks else cells


def row_test(columns: Columns, own: FileForm) -> Callable[[Sequence[str]], Callable[[list[str]], bool]]:
    """Return a function that makes, from column names, a test whether a line's fields can be a table row.

    They can if there are as many fields as columns, at least half of the fields in declared columns are
    valid or empty, and at least one of these is a valid value. `own`: what the site says of the file.
    """

    def of(names: Sequence[str]) -> Callable[[list[str]], bool]:
        tests = [(at, _cell_test(columns, name, own)) for at, name in enumerate(names)]
        known = [(at, test) for at, test in tests if test is not None]

        def reads(fields: list[str]) -> bool:
            if len(fields) != len(names):
                return False
            said = [(fields[at], test(fields[at])) for at, test in known]
            fit = sum(fits or not text for text, fits in said)
            return not known or (2 * fit >= len(known) and any(fits for _, fits in said))

        return reads

    return of


def _cell_test(columns: Columns, name: str, own: FileForm) -> Callable[[str], bool] | None:
    """Return a test whether a text can be a value of this column; return None if any text is allowed."""
    number, values = columns.number(name), {*columns.values(name), *own.values(name)}
    if number is None:
        return (lambda text: whole(text) in values or text in values) if values else None
    if number.dated is not None:
        dated = number.dated
        return lambda text: _reads(written_date, text, dated)
    return lambda text: _reads(written_number, text, None)


def _reads(read: Callable[..., object], *given: object) -> bool:
    try:
        read(*given)
    except (ValueError, OverflowError) as error:
        return isinstance(error, UnclearDateError | UnclearNumberError)
    return True
