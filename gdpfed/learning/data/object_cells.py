"""Makes Arrow columns of the Python values that databases and workbooks hold.

What stands for a cell follows from this cell alone, whatever else is in its column: a person is the same one,
and a category the same one, beside any other rows.
"""

import math
import re
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
    from pyarrow import compute
else:
    pa, compute = late_import("pyarrow"), late_import("pyarrow.compute")

NUMBERS = (bool, int, float, Decimal)
THREE_DIGITS = re.compile(r"\.[0-9]{3}$")


def column_of(values: Sequence[Any], name: str, form: TableForm, place: str) -> "pa.Array":
    """Make a column of numbers or of texts, as the form of the table says; others may hold anything."""
    if name in form.numbers:
        return number_column(values, name, place, form.decimal)
    if name in form.wanted:
        return text_column(values, name, place)
    return pa.array([_any_text(each, name, place) for each in values], pa.string())


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
        if written is None or not isinstance(value, float | Decimal):
            return written
        # The mark of a number groups no thousands, whatever other cells hold.
        return THREE_DIGITS.sub(r"\g<0>0", written).replace(".", decimal)

    return pa.array([text_of(each) for each in values], pa.string())


def key_column(values: Sequence[Any], name: str, place: str) -> "pa.Array":
    """Make a column that tells rows apart, of texts, which are equal for equal values of one kind alone."""

    def key(value: Any) -> str | None:
        if isinstance(value, bytes | memoryview):
            return f"bytes {value.hex()}"
        written = cell_text(value, name, place, exact=False)
        return written if written is None else f"{'text' if isinstance(value, str) else 'value'} {written}"

    return pa.array([key(each) for each in values], pa.string())


def plain_column(values: "pa.Array", name: str, place: str) -> "pa.Array":
    """Make texts of decimals and times of Arrow, as `cell_text` does; other columns stay as they are."""
    if pa.types.is_decimal(values.type):
        return text_column(values.to_pylist(), name, place)
    if not pa.types.is_timestamp(values.type):
        return values
    texts = compute.replace_substring_regex(values.cast(pa.string()), r"\.0*([+-]\d+|Z)?$", r"\1")
    return compute.replace_substring_regex(texts, r" 00:00:00([+-]\d+|Z)?$", "")


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


def _any_text(value: Any, name: str, place: str) -> str | None:
    """Return the text of a cell of an undeclared column. Such a cell may hold anything."""
    try:
        return cell_text(value, name, place, exact=False)
    except LearningError:
        return str(value)
