"""Find all faults of a table at once, by line number, each with its likely cause.

What is a fault is decided by the code that reads tables for a training: it hands over all that it finds here,
where else it raises the first. What is found stays on the machine of the table's owner.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.cells import table_of
from gdpfed.learning.data.columns import Columns, Numeric, nearest_column, without_tests
from gdpfed.learning.data.faults import Fault, Where, held, invisible, shortened, uneven_words
from gdpfed.learning.data.file_form import FILES_FILE, SEPARATORS
from gdpfed.learning.data.number_cells import marks_that_are_numbers, no_numbers
from gdpfed.learning.data.repeats import Repeats
from gdpfed.learning.data.table_file import Batch, TableFile
from gdpfed.learning.data.table_rows import (
    beyond_range,
    checked_rows,
    kept_rows,
    open_declared,
)
from gdpfed.learning.data.text_cells import TextCells
from gdpfed.learning.data.times_to_event import Followed
from gdpfed.learning.data.written_dates import names_no_day

MOST_TEXTS, MOST_NUMBERS = 50, 5
"""Of the different wrong values of a column, and of one of numbers or days, that are shown; of others their
number is said."""
NARROWEST = 0.01
"""Of a range: what all values of a column lie within, where the range is surely too wide."""
NEARLY_ALL, ENOUGH_NUMBERS = 0.9, 10
"""Of a column's numbers beyond its range, to be a fault; of fewer numbers than these it is none."""
MARKS = frozenset(
    ("?", "-", "--", ".", "n/a", "null", "none", "missing", "unknown", "-9", "999", "9999", "#n/a")
)
"""Texts that often mean that a value is missing."""
DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}", re.ASCII)
RENAME = "rename it in the file if it means the same, in the same unit if it has one"
LIMIT = re.compile(r"[<>≤≥]=?\s*\d[\d.,]*", re.ASCII)
"""What a laboratory writes for a value below or above what it can measure."""
WITH_UNIT = re.compile(r"[-+]?\d[\d.,]*\s*(%|°?[a-zµμ]+(/[a-zµμ]+)?)", re.ASCII | re.IGNORECASE)
SERIAL = re.compile(r"[1-9]\d{4}(\.\d+)?", re.ASCII)
"""How Excel counts days: 45000 is in the year 2023."""


@dataclass(frozen=True)
class Finding:
    """A fault or oddity of a table, with the lines where it occurs.

    Attributes:
        lines: of the file, from 1; none where it is about the whole file.
        words: what it is.
        is_fault: whether a training refuses the table for it, or learns nothing of a column.
    """

    lines: tuple[int, ...]
    words: str
    is_fault: bool = True


def check_table(
    path: Path, columns: Columns, persons: list[npt.NDArray[np.int64]] | None = None
) -> tuple[int, list[Finding]]:
    """Return the number of rows of a table, and its faults and oddities by line.

    `persons`: a list that gets the ids of the table's persons, each once, where a folder has a table a party.

    Raises LearningError: there is no such file.
    """
    if not path.exists():
        raise LearningError(f"{path} does not exist: name a CSV or Parquet file, or a folder of them")
    try:
        return _rows_and_findings(path, columns, [] if persons is None else persons)
    except LearningError as error:
        words = str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")
        return 0, [Finding((), words)]


def _rows_and_findings(
    path: Path, columns: Columns, persons: list[npt.NDArray[np.int64]]
) -> tuple[int, list[Finding]]:
    """Return a table's number of rows and its faults; raise LearningError if it cannot be read to its end."""
    place = str(path)
    file = open_declared(path, columns, place)
    if not file.names:
        raise LearningError(f"{place} has no columns: write the table again, with one column for each value")
    (first, *others) = file.names
    if not others:
        # Under another separator all names are one.
        separators = [each for each in SEPARATORS if each in first]
        cause = ""
        if separators:
            cause = f"separated by {separators[0]!r}? say separator in {FILES_FILE}"
        elif sum(name in first for name in columns.names()) > 1:
            known = f"{', '.join(map(repr, SEPARATORS[:-1]))} or {SEPARATORS[-1]!r}"
            cause = f"names must be separated by {known}"
        if cause:
            return 0, [Finding((1,), f"there is one column, '{first[:60]}' ({cause})")]

    found = list[Finding]()
    twice = sorted({name for name in file.names if file.names.count(name) > 1} & {*columns.names()})
    found += [Finding((1,), f"the column '{name}' is there twice") for name in twice]
    found += _wrong_columns(file.names, columns)
    check = _Check(columns, [name for name in columns.names() if name in file.names and name not in twice])
    if not check.present:
        return 0, found
    wanted = [*check.present, *check.repeats.look_at(file.names)]
    for batch in file.batches(wanted, lambda line, values: check.uneven(file, line, values)):
        check.batch(file, batch)
    persons.append(np.unique(check.repeats.persons[0]))
    if not check.rows:
        found += [*check.found, Finding((), "there are no rows with data")]
        return 0, sorted(found, key=_faults_first)
    found += [Finding((), words, is_fault=False) for words in file.found.notes()]
    found += [*check.found, *check.grouped(file.own.dates), *check.beyond(), *check.odd()]
    if check.left_out:
        words = f"{check.left_out} of {check.rows} rows are left out, as declared"
        found.append(Finding((), words, is_fault=False))
    return check.rows, sorted(found, key=_faults_first)


def _faults_first(finding: Finding) -> tuple[bool, tuple[int, ...]]:
    return not finding.is_fault, finding.lines[:1]


@dataclass
class _Seen:
    """Facts about one column, collected over all rows: counts, range and examples of values.

    Attributes:
        filled: how many cells are not missing.
        numbers: how many of them are numbers or days.
        beyond: how many numbers lie beyond the range.
        least, most: of its numbers.
        texts: the different texts of a column without numbers, if it has declared values.
    """

    filled: int = 0
    numbers: int = 0
    beyond: int = 0
    least: float = np.inf
    most: float = -np.inf
    texts: set[str] = field(default_factory=set)


class _Check:
    """Collects faults and oddities in the rows of a table."""

    def __init__(self, columns: Columns, present: list[str]) -> None:
        self.columns, self.present = columns, present
        self.rows = self.left_out = self.for_testing = 0
        self.found: list[Finding] = []
        self.repeats = Repeats(columns)
        self.followed = None if columns.times is None else Followed(columns.times)
        self._seen = {name: _Seen() for name in present}
        self._lines: dict[tuple[str, str, str], list[int]] = {}
        self._texts: dict[tuple[str, str], int] = {}
        self._more: dict[tuple[str, str], list[int]] = {}

    def uneven(self, file: TableFile, line: int, values: int) -> None:
        """Record a row whose number of values differs from the number of columns."""
        width = len(file.names)
        if values < width:
            cause = "no row of the table, or a line break in a text without quotes? mend it, or take it out"
        elif self.columns.separator == ",":
            cause = "decimal comma? a comma in a text without quotes?"
        else:
            cause = "a separator in a text without quotes? put the text in quotes"
        self.found.append(Finding((line,), f"{uneven_words(values, width)} ({cause})"))

    def batch(self, file: TableFile, batch: Batch) -> None:
        """Check some rows exactly as training reads them."""
        columns, count = self.columns, len(batch.rows)
        self.rows += count
        declared = {name: batch.cells[name] for name in self.present}
        table = table_of(declared, columns, file.place, own=file.own, found=file.found)
        kept = kept_rows(table, columns, shared_out=True)
        self.left_out += count - len(kept)

        readable = np.ones(count, bool)

        def note(fault: Fault) -> None:
            place = fault.row - int(batch.rows[0])
            readable[place] = False
            if fault.column in self._seen:
                self._note(fault, int(batch.lines[place]))

        if count:
            # A column that the table lacks is blank.
            lacking = [name for name in columns.names() if name not in table]
            texts, numbers = TextCells([""], np.zeros(count, np.int64)), no_numbers(count)
            blanks = {name: texts if columns.number(name) is None else numbers for name in lacking}
            where = Where("", batch.rows, note)
            rows = checked_rows({**table, **blanks}, columns, where, kept, shared_out=True)
            self.repeats.rows(rows, readable[kept])
            self.for_testing += 0 if rows.for_testing is None else int(rows.for_testing.sum())
            if self.followed is not None:
                self.followed.note(rows.y)
            self.repeats.cells(batch.cells, file.place)
        for name, cells in table.items():
            seen, taken, column = self._seen[name], cells.taken(kept), columns.number(name)
            seen.filled += int((~taken.missing).sum())
            if isinstance(taken, TextCells):
                if columns.values(name):
                    seen.texts.update({taken.distinct[at] for at in np.unique(taken.which).tolist()} - {""})
                continue
            finite = taken.numbers[np.isfinite(taken.numbers)]
            if column is not None and finite.size:
                seen.numbers += finite.size
                seen.beyond += beyond_range(finite, column)
                seen.least = min(seen.least, float(finite.min()))
                seen.most = max(seen.most, float(finite.max()))

    def _note(self, fault: Fault, line: int) -> None:
        """Record the line of a fault, in one list for all equal faults of the same column."""
        key, kind = (fault.column, fault.text, fault.words), (fault.column, fault.words)
        most = MOST_TEXTS if self.columns.number(fault.column) is None else MOST_NUMBERS
        if key not in self._lines:
            if self._texts.get(kind, 0) >= most:
                self._more.setdefault(kind, []).append(line)
                return
            self._texts[kind] = self._texts.get(kind, 0) + 1
        self._lines.setdefault(key, []).append(line)

    def grouped(self, said: str | None) -> Iterator[Finding]:
        """Yield one finding for each wrong value of a column, with all lines where the value occurs.

        `said`: the form of dates that the site says.
        """
        for (column, text, words), lines in self._lines.items():
            cause = _cause(column, text, words, self.columns, said)
            yield Finding(tuple(lines), f"column '{column}' {held(text)}, {words}{cause}")
        for (column, words), lines in self._more.items():
            yield Finding(tuple(lines), f"column '{column}' holds {len(lines)} more values, each of {words}")

    def beyond(self) -> Iterator[Finding]:
        """Yield a finding for each column whose numbers lie beyond its range, all or nearly all of them."""
        for seen, column in self._measured():
            if _is_mostly_beyond(seen):
                yield Finding((), _beyond_words(seen, column))

    def _measured(self) -> Iterator[tuple[_Seen, Numeric]]:
        """Yield the columns of numbers or days that are not missing in all rows."""
        for name, seen in self._seen.items():
            column = self.columns.number(name)
            if (
                column is not None
                and seen.filled
                and not (self.columns.times and name == self.columns.times.time)
            ):
                yield seen, column

    def odd(self) -> Iterator[Finding]:
        """Yield findings on what may be a mistake in the table, although training accepts it."""
        untested = self.columns.test if self.rows > self.left_out and not self.for_testing else None
        tests = () if untested is None else (without_tests(untested),)
        for words in (*tests, *self._odd_words(), *self.repeats.notes()):
            yield Finding((), words, is_fault=False)

    def _odd_words(self) -> Iterator[str]:
        columns = self.columns
        if self.rows == self.left_out:
            return
        if self.followed is not None:
            yield from self.followed.words()
        for name, seen in self._seen.items():
            if not seen.filled:
                yield f"column '{name}' is missing in all rows"
        for name in columns.label_names if columns.label_set else ():
            if name in self._seen and len(held := self._seen[name].texts) == 1:
                (value,) = held
                yield f"column '{name}' is '{value}' in all rows: of such a label nothing is learnt"
        labels = self._seen[columns.label].texts if columns.label in self._seen else set()
        classes = [found for found in columns.classes if labels & set(found)]
        if columns.classes and len(classes) == 1:
            name = columns.class_names[columns.classes.index(classes[0])]
            yield f"all labels are of the class '{name}': of one class nothing is learnt"
        yield from mark_warnings(columns)
        for seen, column in self._measured():
            yield from _odd_range(seen, column)


def mark_warnings(columns: Columns) -> Iterator[str]:
    """Yield a warning for each mark of missing values that is also a number in a column's range."""
    for mark, name in marks_that_are_numbers(columns):
        yield (
            f"column '{name}': {mark} lies in its range, so it is a number there and not a missing value; "
            f"declare missing_marks: ['{mark}'] of the column if it is missing"
        )


def _wrong_columns(names: Sequence[str], columns: Columns) -> Iterator[Finding]:
    """Yield findings on missing columns and on undeclared columns."""
    others = [name for name in names if name not in columns.names()]
    party = columns.party.name if columns.party else None
    for name in columns.names():
        if name in names:
            continue
        near = nearest_column(name, others)
        hint = f" (did you mean '{near}'? {RENAME})" if near else ""
        if near and (hidden := invisible(near)):
            shown = "".join(each for each in near if each.isprintable())
            hint = f" (there is '{shown}' {hidden}: take it out of the name)"
        if name == party:
            only = "; a node's own table needs none, one that is shared out does"
            yield Finding((1,), f"there is no column '{name}'{hint or only}", is_fault=False)
        else:
            yield Finding((1,), f"there is no column '{name}'{hint}")
    if others:
        shown = ", ".join(shortened(name) or "one without a name" for name in others)
        yield Finding((), f"not declared, and not read: {shown}", is_fault=False)


def _cause(name: str, text: str, words: str, columns: Columns, said: str | None) -> str:
    """Suggest why a value is wrong; return "" if no cause is known or the error text `words` names it.

    `said`: the form of dates that the site says.
    """
    if not text:
        return " (declare missing_labels: drop to leave such rows out)" if name in columns.label_names else ""
    if name == columns.person:
        return ""
    if text.casefold() in MARKS:
        return f" (missing? say missing: ['{text}'] of the file in {FILES_FILE})"
    number = columns.number(name)
    if number is None:
        folded = normalize("NFC", text.casefold())
        values = {normalize("NFC", value.casefold()): value for value in columns.values(name)}
        near = get_close_matches(folded, [*values], n=1)
        if near == [folded] and values[folded].casefold() != text.casefold():
            return f" ('{values[folded]}' is declared in another Unicode form: write both in one)"
        return f" (did you mean '{values[near[0]]}'?)" if near else ""
    return _cause_in_number(text) if number.dated is None else _cause_in_day(text, words, said)


def _cause_in_number(text: str) -> str:
    """Suggest why a text in a column of numbers is none; "" if no cause is known."""
    if DATE.fullmatch(text):
        return " (a date? declare age_on or days_since)"
    if LIMIT.fullmatch(text):
        return " (beyond what can be measured? write the limit as a number, or leave the cell empty)"
    return " (a unit in the cell? write the number alone)" if WITH_UNIT.fullmatch(text) else ""


def _cause_in_day(text: str, words: str, said: str | None) -> str:
    """Suggest why a text in a column of days is none; "" if no cause is known or `words` names it."""
    if names_no_day(text):
        return " (there is no such day)"
    if SERIAL.fullmatch(text):
        return " (Excel's number of a day? give the column the format of a date, and save the file again)"
    asked = said or FILES_FILE in words or not DATE.fullmatch(text)
    return "" if asked else f" (say dates of the file in {FILES_FILE})"


def _is_mostly_beyond(seen: _Seen) -> bool:
    return seen.numbers >= ENOUGH_NUMBERS and seen.beyond >= NEARLY_ALL * seen.numbers


def _beyond_words(seen: _Seen, column: Numeric) -> str:
    count, little = f"all {seen.numbers}", "nothing"
    if seen.beyond < seen.numbers:
        count, little = f"{seen.beyond} of {seen.numbers}", "almost nothing"
    cause = "is it in another unit, or is the range wrong?"
    if column.dated is not None:
        cause = f"is {column.dated.unit}: {column.dated.day} wrong, or the range?"
    return (
        f"column '{column.name}': {count} numbers lie beyond {_bounds(column)}, so the column says {little} "
        f"here: {cause}"
    )


def _bounds(column: Numeric) -> str:
    return f"{column.low:g} to {column.high:g}"


def _odd_range(seen: _Seen, column: Numeric) -> Iterator[str]:
    bounds = _bounds(column)
    if seen.beyond and not _is_mostly_beyond(seen):
        words = f"{seen.beyond} of {seen.filled} lie beyond {bounds}, and count as its end"
        yield f"column '{column.name}': {words}"
    if 0 < seen.most - seen.least < NARROWEST * (column.high - column.low):
        yield f"column '{column.name}': all lie within 1 % of {bounds}: is the range too wide?"
