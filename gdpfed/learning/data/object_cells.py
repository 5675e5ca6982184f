"""Makes Arrow columns of the Python values that databases and workbooks hold.

What stands for a cell follows from this cell alone, whatever else is in its column: a person is the same one,
and a category the same one, beside any other rows.
"""

import math
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data.table_file import TableForm
from gdpfed.learning.data.text_cells import EXACT, NOT_UTF8, OTHER_TYPE, float_text
from gdpfed.learning.data.written_dates import DAY

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = late_import("pyarrow")

NUMBERS = (bool, int, float, Decimal)


def column_of(values: Sequence[Any], name: str, form: TableForm, place: str) -> "pa.Array":
    """Make a column of numbers or of texts, as the form of the table says; only declared texts are exact."""
    if name in form.numbers:
        return number_column(values, name, place, form.decimal)
    return text_column(values, name, place, exact=name in form.wanted)


def number_column(values: Sequence[Any], name: str, place: str, decimal: str = ".") -> "pa.Array":
    """Make a column that will be read as numbers or days: of float64, of timestamps, else of texts.

    `decimal`: the decimal mark of the file, with which its texts are read. Raises LearningError as in
    `cell_text`.
    """
    there = [each for each in values if each is not None]
    if all(isinstance(each, NUMBERS) for each in there):
        try:
            return pa.array([None if each is None else float(each) for each in values], pa.float64())
        except (OverflowError, ValueError):
            pass
    if all(isinstance(each, date) for each in there):
        days = [None if each is None else datetime(*each.timetuple()[:6]) for each in values]
        return pa.array(days, pa.timestamp("us"))

    def text_of(value: Any) -> str | None:
        if isinstance(value, date):
            day = value.date() if isinstance(value, datetime) else value
            return f"{DAY}{day.isoformat()}"
        written = cell_text(value, name, place, exact=False)
        is_number = isinstance(value, float | Decimal)
        return written.replace(".", decimal) if written is not None and is_number else written

    return pa.array([text_of(each) for each in values], pa.string())


def key_column(values: Sequence[Any]) -> "pa.Array":
    """Make a column that tells rows apart, of texts: equal for equal values, bytes in hexadecimal."""
    texts = (each.hex() if isinstance(each, bytes | memoryview) else each for each in values)
    return text_column(list(texts), "", "", exact=False)


def text_column(values: Sequence[Any], name: str, place: str, *, exact: bool = True) -> "pa.Array":
    """Make a column of texts, each of which follows from its value alone; arguments as in `cell_text`."""
    return pa.array([cell_text(each, name, place, exact=exact) for each in values], pa.string())


def cell_text(value: Any, name: str, place: str, *, exact: bool = True) -> str | None:
    """Return a cell's value as text, None for a missing one.

    Whole numbers of any type have no fraction, other numbers as few digits as tell them apart, and days
    without a time of day are of the form 2020-03-01. `name`: of the column. `place`: what errors call the
    table. `exact`: whether a float is refused that does not tell whole numbers of its size apart.

    Raises LearningError: such a float, bytes that are not UTF-8, or a value that is not a text, number or
    date.
    """
    if value is None or (isinstance(value, float | Decimal) and math.isnan(value)):
        return None
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise LearningError(f"{place}: column '{name}' {NOT_UTF8}") from None
    if isinstance(value, float):
        return float_text(value, EXACT["double"] if exact else math.inf, name, place)
    if isinstance(value, Decimal):
        # Without zeros at the end, so that 1.50 and 1.5 are one.
        text = f"{value:f}" if value.is_finite() else str(value)
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    if isinstance(value, datetime) and value.time() == time.min:
        return value.date().isoformat()
    if isinstance(value, list | tuple | dict | set | timedelta):
        raise LearningError(f"{place}: column '{name}' holds a {type(value).__name__}, {OTHER_TYPE}")
    return str(value)
