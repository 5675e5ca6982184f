"""Columns of numbers and dates: decimal numbers as people write them, and days, as float64."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdpfed.decimal_numbers import NUMBER, decimal_number
from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data.columns import ALWAYS_MISSING, Columns, DatedAs, Numeric
from gdpfed.learning.data.text_cells import Mask, TextCells, is_text, texts_of, without

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


@dataclass(frozen=True, eq=False)
class NumberCells:
    """A column of numbers.

    Attributes:
        numbers: float64[N]; NaN where one is missing or wrong.
        wrong: which cells hold something else, bool[N].
        words: what is wrong with those.
        shown: the cells as texts, a column of Arrow, of which the wrong ones are shown.
    """

    numbers: npt.NDArray[np.float64]
    wrong: Mask
    words: str
    shown: Any

    @property
    def missing(self) -> Mask:
        return np.isnan(self.numbers) & ~self.wrong

    def text(self, at: int) -> str:
        return "" if self.shown[at].as_py() is None else str(self.shown[at].as_py()).strip()

    def taken(self, at: npt.NDArray[np.int64]) -> "NumberCells":
        return NumberCells(self.numbers[at], self.wrong[at], self.words, self.shown.take(pa.array(at)))


def no_numbers(count: int) -> NumberCells:
    """A column of numbers that are missing."""
    return NumberCells(np.full(count, np.nan), np.zeros(count, np.bool_), "", pa.nulls(count))


def numbers_of(
    values: "pa.Array", column: Numeric, columns: Columns, place: str, *, written: bool
) -> NumberCells:
    kind = values.type
    marks = columns.marks(column.name)
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), values.type.value_type
    if column.dated is not None:
        return _dates(values, column.dated, {*columns.missing, *ALWAYS_MISSING, *marks}, column.name, place)
    general = [mark for mark in columns.missing if not _lies_in(mark, column)]
    all_marks = {*general, *ALWAYS_MISSING, *marks}
    words = "which is no number"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
        wrong = np.isinf(found)
        return _marked(found, wrong, all_marks, words, values.cast(pa.string()))
    texts = values if is_text(kind) else _plain_texts(texts_of(values, column.name, place))
    fast = _cast(texts) if columns.decimal == "." else None
    if fast is not None and np.isfinite(fast).all():
        return _marked(fast, np.zeros(len(fast), np.bool_), all_marks, words, texts)
    stripped = compute.utf8_trim_whitespace(texts.cast(pa.string())).fill_null("")
    gone = compute.is_in(stripped, value_set=pa.array(sorted(all_marks)))
    decimal = _with_points(stripped, columns.decimal, written=written)
    good = compute.and_not(compute.match_substring_regex(decimal, IN_FULL), gone)
    found = _cast(compute.if_else(good, decimal, None))
    if found is None:
        raise LearningError(f"{place}: column '{column.name}' cannot be read as numbers")
    finite = np.isfinite(found)
    wrong = ~(finite | gone.to_numpy(zero_copy_only=False))
    return _marked(np.where(finite, found, np.nan), wrong, all_marks, words, stripped)


def _plain_texts(cells: TextCells) -> "pa.Array":
    return pa.array(cells.texts, pa.string())


def _cast(texts: "pa.Array") -> npt.NDArray[np.float64] | None:
    """Texts as numbers, float64[N], NaN for nothing; None where Arrow does not read some."""
    try:
        found = compute.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        return None
    numbers: npt.NDArray[np.float64] = found.to_numpy(zero_copy_only=False)
    return numbers


def _with_points(texts: "pa.Array", decimal: str, *, written: bool) -> "pa.Array":
    """Numbers with a full stop; one that is written where a comma is declared is none."""
    if decimal == ".":
        return texts
    points = compute.match_substring(texts, ".")
    replaced = compute.replace_substring(texts, decimal, ".")
    return compute.if_else(points, "no number", replaced) if written else replaced


def _marked(
    numbers: npt.NDArray[np.float64], wrong: Mask, marks: Iterable[str], words: str, shown: Any
) -> NumberCells:
    """The same without the numbers that mean that a value is missing."""
    said = [decimal_number(mark) for mark in marks if re.fullmatch(NUMBER, mark)]
    gone = wrong | np.isin(numbers, said) if said else wrong
    return NumberCells(np.where(gone, np.nan, numbers), wrong, words, shown)


def _lies_in(mark: str, column: Numeric) -> bool:
    """Whether a mark is a number in a column's range, and so a value of it."""
    return bool(re.fullmatch(NUMBER, mark)) and column.low <= decimal_number(mark) <= column.high


def marks_that_are_numbers(columns: Columns) -> list[tuple[str, str]]:
    """The marks of missing values that lie in the range of a column, and are numbers there, each with it."""
    label = columns.number(columns.label)
    measured = (*columns.numeric, *(() if label is None else (label,)))
    return [
        (mark, each.name)
        for each in measured
        if each.dated is None
        for mark in columns.missing
        if _lies_in(mark, each) and mark not in columns.marks(each.name)
    ]


def _dates(values: "pa.Array", dated: DatedAs, marks: set[str], name: str, place: str) -> NumberCells:
    words = f"which is no date of the form {dated.form or 'ISO 8601'}"
    if has_days(values.type):
        return _days(values, dated)
    cells = without(texts_of(values, name, place), frozenset(marks))
    numbers = [date_number(text, dated) if text else np.nan for text in cells.distinct]
    wrong = [bool(text) and np.isnan(number) for text, number in zip(cells.distinct, numbers, strict=True)]
    return NumberCells(cells.of(numbers, np.float64), cells.of(wrong, bool), words, _plain_texts(cells))


def has_days(kind: Any) -> bool:
    """Whether a type of Arrow is one of days, or of days with times."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _days(values: "pa.Array", dated: DatedAs) -> NumberCells:
    """Days and times of Arrow as numbers; those beyond the years 1 to 9999 are wrong."""
    kind = values.type
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind):
        local = values if kind.tz is None else compute.local_timestamp(values)
        ticks = local.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        days = ticks // A_DAY[kind.unit]
    else:
        days = values.cast(pa.date32()).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    since = days.astype(np.float64) - (dated.day.toordinal() - EPOCH)
    wrong = valid & ((days < FIRST_DAY) | (days > LAST_DAY))
    numbers = np.where(valid & ~wrong, dated.of_days(since), np.nan)
    shown = pa.array([f"day {day} since 1970" if bad else "" for day, bad in zip(days, wrong, strict=True)])
    return NumberCells(numbers, wrong, "which is a day beyond the years 1 to 9999", shown)


@lru_cache(maxsize=2**16)
def date_number(text: str, dated: DatedAs) -> float:
    """The number of a date; NaN of a text that is none."""
    try:
        return dated.number(text)
    except (ValueError, OverflowError):
        return float("nan")
