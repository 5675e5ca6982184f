"""Converts columns of numbers and dates, written in any common form, to float64."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdpfed.decimal_numbers import NUMBER, decimal_number
from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data.columns import ALWAYS_MISSING, Columns, DatedAs, Numeric
from gdpfed.learning.data.file_form import MARKS, FileForm, Found
from gdpfed.learning.data.text_cells import Mask, TextCells, is_text, texts_of, without
from gdpfed.learning.data.written_dates import UNCLEAR as UNCLEAR_DATE
from gdpfed.learning.data.written_dates import UnclearError as UnclearDateError
from gdpfed.learning.data.written_dates import written_date
from gdpfed.learning.data.written_numbers import (
    COMMA,
    COMMA_IS_UNCLEAR,
    GROUPED,
    MARKED,
    POINT_IS_UNCLEAR,
    TRUTH,
    written_number,
)
from gdpfed.learning.data.written_numbers import UNCLEAR as UNCLEAR_NUMBER
from gdpfed.learning.data.written_numbers import UnclearError as UnclearNumberError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import compute
else:
    pa = late_import("pyarrow")
    compute = late_import("pyarrow.compute")

EPOCH = date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = 1 - EPOCH, date.max.toordinal() - EPOCH
A_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
IN_FULL = f"^({NUMBER})$"
NO_NUMBER = "which is not a number"
MARK, UNCLEAR, WRONG = "mark", "unclear", "wrong"
"""What a cell is that is not a number."""


@dataclass(frozen=True, eq=False)
class NumberCells:
    """A column read as numbers, and which of its cells are not numbers.

    Attributes:
        numbers: float64[N]; NaN where one is missing or wrong.
        wrong: which cells hold something else, bool[N].
        words: what is wrong with those.
        shown: the cells as texts, a column of Arrow, of which the wrong ones are shown.
        unclear: which of the wrong ones may be two numbers, bool[N]; None where none are.
        unclear_words: what is wrong with those.
    """

    numbers: npt.NDArray[np.float64]
    wrong: Mask
    words: str
    shown: Any
    unclear: Mask | None = None
    unclear_words: str = ""

    @property
    def missing(self) -> Mask:
        return np.isnan(self.numbers) & ~self.wrong

    def text(self, at: int) -> str:
        return "" if self.shown[at].as_py() is None else str(self.shown[at].as_py()).strip()

    def taken(self, at: npt.NDArray[np.int64]) -> "NumberCells":
        unclear = None if self.unclear is None else self.unclear[at]
        shown = self.shown.take(pa.array(at))
        return NumberCells(self.numbers[at], self.wrong[at], self.words, shown, unclear, self.unclear_words)


def no_numbers(count: int) -> NumberCells:
    """Return a column of `count` numbers that are all missing."""
    return NumberCells(np.full(count, np.nan), np.zeros(count, np.bool_), "", pa.nulls(count))


def numbers_of(
    values: "pa.Array", column: Numeric, columns: Columns, own: FileForm, found: Found, place: str
) -> NumberCells:
    """Convert a declared column to numbers; add its notation (such as decimal commas) to ``found``.

    `own`: what the site says of the file.

    Raises LearningError: values of a type that is neither a text, a number nor a date.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind, name = values.type, column.name
    marks = {*columns.marks(name), *own.marks(name)}
    if column.dated is not None:
        marks |= {*columns.missing, *own.missing, *ALWAYS_MISSING}
        return _dates(values, column, marks, own, found, place)
    marks |= {
        *ALWAYS_MISSING,
        *(each for each in (*columns.missing, *own.missing) if not _lies_in(each, column)),
    }
    if pa.types.is_duration(kind):
        raise LearningError(
            f"{place}: column '{name}' holds {kind}, whose unit is not declared: write numbers in the unit "
            "of its range"
        )
    if pa.types.is_boolean(kind):
        values, kind = values.cast(pa.uint8()), pa.uint8()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
        return _marked(numbers, np.isinf(numbers), marks, values)
    texts = values if is_text(kind) else _plain_texts(texts_of(values, name, place))
    likely = own.decimal or columns.decimal
    fast = _cast(texts) if likely == "." else None
    if fast is not None and np.isfinite(fast).all():
        return _marked(fast, np.zeros(len(fast), np.bool_), marks, texts)
    stripped = compute.utf8_trim_whitespace(texts.cast(pa.string())).fill_null("")
    gone = compute.is_in(stripped, value_set=pa.array(sorted(marks)))
    numbers = _clear_numbers(stripped, gone, own.decimal, likely, name, found)
    rest = np.flatnonzero(~np.isfinite(numbers) & ~gone.to_numpy(zero_copy_only=False))
    wrong, unclear = (np.zeros(len(numbers), np.bool_) for _ in range(2))
    if len(rest):
        cells = texts_of(stripped.take(pa.array(rest)), name, place)
        numbers[rest], wrong[rest], unclear[rest] = _unusual_numbers(cells, own.decimal, likely, name, found)
    return _marked(numbers, wrong, marks, stripped, unclear)


def _clear_numbers(
    texts: "pa.Array", gone: "pa.Array", decimal: str | None, likely: str, name: str, found: Found
) -> npt.NDArray[np.float64]:
    """Convert cells with an unambiguous decimal mark to numbers, float64[N]; other cells become NaN."""
    comma = compute.match_substring_regex(texts, MARKED)
    if decimal is None and likely == ".":
        comma = compute.and_not(comma, compute.match_substring_regex(texts, COMMA_IS_UNCLEAR))
    plain = compute.match_substring_regex(texts, IN_FULL)
    if decimal == ",":
        plain = compute.and_not(plain, compute.match_substring(texts, "."))
    elif likely == ",":
        plain = compute.and_not(plain, compute.match_substring_regex(texts, POINT_IS_UNCLEAR))
    elif decimal == ".":
        comma = compute.and_not(comma, comma)
    comma, plain = compute.and_not(comma, gone), compute.and_not(plain, gone)
    if count := compute.sum(comma).as_py():
        found.commas[name] += count
    pointed = compute.if_else(
        comma, compute.replace_substring(texts, ",", "."), compute.if_else(plain, texts, None)
    )
    numbers = _cast(pointed)
    return np.full(len(texts), np.nan) if numbers is None else np.where(np.isfinite(numbers), numbers, np.nan)


def _unusual_numbers(
    cells: TextCells, decimal: str | None, likely: str, name: str, found: Found
) -> tuple[npt.NDArray[np.float64], Mask, Mask]:
    """Convert unusual number cells one by one; return numbers, and masks of wrong and of ambiguous cells."""
    read = list[tuple[float, str]]()
    for text in cells.distinct:
        try:
            read.append((np.nan, MARK) if text in MARKS else written_number(text, decimal, likely))
        except UnclearNumberError:
            read.append((np.nan, UNCLEAR))
        except ValueError:
            read.append((np.nan, WRONG))
    counts = np.bincount(cells.which, minlength=len(read)).tolist()
    for text, (_, how), count in zip(cells.distinct, read, counts, strict=True):
        if how == MARK:
            found.marks[name, text] += count
        elif how in (COMMA, GROUPED, TRUTH):
            {COMMA: found.commas, GROUPED: found.grouped, TRUTH: found.truths}[how][name] += count
    wrong, unclear = ([how in kinds for _, how in read] for kinds in ((WRONG, UNCLEAR), (UNCLEAR,)))
    return (
        cells.of([number for number, _ in read], np.float64),
        cells.of(wrong, bool),
        cells.of(unclear, bool),
    )


def with_unclear_wrong(cells: NumberCells) -> NumberCells:
    """Mark cells such as 1.234 as wrong: in a table with decimal commas, the point may group thousands."""
    if not is_text(cells.shown.type):
        return cells
    points = compute.match_substring_regex(cells.shown, POINT_IS_UNCLEAR)
    points = compute.is_in(points, value_set=pa.array([True]))
    unclear = points.to_numpy(zero_copy_only=False) & np.isfinite(cells.numbers)
    if not unclear.any():
        return cells
    numbers, wrong = np.where(unclear, np.nan, cells.numbers), cells.wrong | unclear
    both = unclear if cells.unclear is None else unclear | cells.unclear
    return NumberCells(numbers, wrong, cells.words, cells.shown, both, UNCLEAR_NUMBER)


def _plain_texts(cells: TextCells) -> "pa.Array":
    return pa.array(cells.texts, pa.string())


def _cast(texts: "pa.Array") -> npt.NDArray[np.float64] | None:
    """Convert texts to float64[N], with NaN for empty texts; return None if Arrow cannot read every text."""
    try:
        found = compute.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        return None
    numbers: npt.NDArray[np.float64] = found.to_numpy(zero_copy_only=False)
    return numbers


def _marked(
    numbers: npt.NDArray[np.float64],
    wrong: Mask,
    marks: Iterable[str],
    shown: Any,
    unclear: Mask | None = None,
) -> NumberCells:
    """Return a column of numbers; numbers that stand for a missing value (such as -9) become NaN."""
    said = [decimal_number(mark) for mark in marks if re.fullmatch(NUMBER, mark)]
    gone = wrong | np.isin(numbers, said) if said else wrong
    return NumberCells(np.where(gone, np.nan, numbers), wrong, NO_NUMBER, shown, unclear, UNCLEAR_NUMBER)


def _lies_in(mark: str, column: Numeric) -> bool:
    """Whether a text that marks missing values is a number within the column's declared range."""
    return bool(re.fullmatch(NUMBER, mark)) and column.low <= decimal_number(mark) <= column.high


def marks_that_are_numbers(columns: Columns) -> list[tuple[str, str]]:
    """Return pairs (mark, column): the mark means a missing value, and is a number in the column's range."""
    label = columns.number(columns.label)
    measured = (*columns.numeric, *(() if label is None else (label,)))
    return [
        (mark, each.name)
        for each in measured
        if each.dated is None
        for mark in columns.missing
        if _lies_in(mark, each) and mark not in columns.marks(each.name)
    ]


def _dates(
    values: "pa.Array", column: Numeric, marks: set[str], own: FileForm, found: Found, place: str
) -> NumberCells:
    dated, name = column.dated, column.name
    if dated is None:
        return no_numbers(len(values))
    if has_days(values.type):
        return _arrow_dates(values, dated, name, place)
    cells = without(texts_of(values, name, place), frozenset(marks))
    read = list[tuple[float, str]]()
    for text in cells.distinct:
        try:
            read.append((np.nan, MARK) if text in MARKS or not text else written_date(text, dated, own.dates))
        except UnclearDateError:
            read.append((np.nan, UNCLEAR))
        except (ValueError, OverflowError):
            read.append((np.nan, WRONG))
    counts = np.bincount(cells.which, minlength=len(read)).tolist()
    for text, (_, how), count in zip(cells.distinct, read, counts, strict=True):
        if how == MARK and text:
            found.marks[name, text] += count
        elif how not in ("", MARK, UNCLEAR, WRONG):
            found.dates[name, how] += count
    wrong, unclear = ([how in kinds for _, how in read] for kinds in ((WRONG, UNCLEAR), (UNCLEAR,)))
    words = f"which is not a date of the form {own.dates or dated.form or 'ISO 8601'}"
    return NumberCells(
        cells.of([number for number, _ in read], np.float64),
        cells.of(wrong, bool),
        words,
        _plain_texts(cells),
        cells.of(unclear, bool),
        UNCLEAR_DATE,
    )


def has_days(kind: Any) -> bool:
    """Whether an Arrow type holds dates, or dates with times."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _arrow_dates(values: "pa.Array", dated: DatedAs, name: str, place: str) -> NumberCells:
    """Convert dates and times of an Arrow column to numbers; years outside 1 to 9999 count as wrong."""
    kind = values.type
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind):
        try:
            local = values if kind.tz is None else compute.local_timestamp(values)
        except pa.ArrowInvalid:
            raise LearningError(
                f"{place}: column '{name}' is in the time zone {kind.tz!r}, which is not known: write days"
            ) from None
        ticks = local.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        days = ticks // A_DAY[kind.unit]
    else:
        days = values.cast(pa.date32()).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    since = days.astype(np.float64) - (dated.day.toordinal() - EPOCH)
    wrong = valid & ((days < FIRST_DAY) | (days > LAST_DAY))
    numbers = np.where(valid & ~wrong, dated.of_days(since), np.nan)
    shown = pa.array([f"day {day} since 1970" if bad else None for day, bad in zip(days, wrong, strict=True)])
    return NumberCells(numbers, wrong, "which is a day beyond the years 1 to 9999", shown)
