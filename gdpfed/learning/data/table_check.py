"""All faults of a table at once, by the lines of its file, with what may have caused each.

What is a fault is decided by the code that reads tables for a training: it hands over all that it finds here,
where else it raises the first. What is found stays on the machine of the table's owner.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from io import StringIO
from pathlib import Path

import numpy as np

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import DROP, Columns, Numeric
from gdpfed.learning.data.declaration import SEPARATORS
from gdpfed.learning.data.table_rows import Fault, Table, Where, checked_rows, parsed, read_table, texts_of

NARROWEST = 0.01
"""Of a range: what all values of a column lie within, where the range is surely too wide."""
MARKS = frozenset(
    ("?", "-", "--", ".", "n/a", "null", "none", "missing", "unknown", "-9", "999", "9999", "#n/a")
)
"""Texts that often mean that a value is missing."""
DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}")
WITH_COMMA = re.compile(r"[-+]?[\d.]*\d,\d+")


@dataclass(frozen=True)
class Finding:
    """Something about a table.

    Attributes:
        lines: of the file, from 1; none where it is about the whole file.
        words: what it is.
        refused: whether a training refuses the table for it.
    """

    lines: tuple[int, ...]
    words: str
    refused: bool = True


@dataclass(frozen=True)
class _Read:
    """The rows of a file that have as many values as its header, with their lines."""

    table: Table
    lines: Sequence[int]


def check_table(path: Path, columns: Columns) -> tuple[int, list[Finding]]:
    """How many rows a table has, and everything that is wrong or odd, by line.

    Raises LearningError: there is no such file.
    """
    found: list[Finding] = []
    read = (
        _read_parquet(path, columns, found) if path.suffix == ".parquet" else _read_csv(path, columns, found)
    )
    if read is None:
        return 0, found
    found += _columns_found(read.table, columns)
    rows = len(read.lines)
    if not rows:
        return 0, [*found, Finding((), "there are no rows with data")]
    present = {name for name in columns.names() if name in read.table}
    blank = np.full(rows, "", dtype=object)
    table = {name: read.table.get(name, blank) for name in columns.names()}
    kept = np.ones(rows, dtype=np.bool_)
    for name in columns.label_names if columns.missing_labels == DROP else ():
        kept &= (table[name] != "") | (name not in present)
    if columns.incomplete_rows == DROP:
        kept &= np.all([table[name] != "" for name in columns.inputs if name in present], axis=0)
    faults: list[Fault] = []
    if kept.any():
        taken = {name: texts[kept] for name, texts in table.items()}
        where = Where(str(path), np.flatnonzero(kept) + 1, faults)
        checked_rows(taken, columns, where, shared_out=True)
        found += _grouped([each for each in faults if each.column in present], columns, read.lines)
        found += _odd({name: texts for name, texts in taken.items() if name in present}, columns)
    if not kept.all():
        found.append(
            Finding((), f"{rows - kept.sum()} of {rows} rows are left out, as declared", refused=False)
        )
    return rows, sorted(found, key=lambda each: (not each.refused, each.lines[:1]))


def _read_parquet(path: Path, columns: Columns, found: list[Finding]) -> _Read | None:
    try:
        table = read_table(path, columns, str(path), None)
    except LearningError as error:
        found.append(Finding((), str(error)))
        return None
    return _Read(table, range(1, 1 + len(next(iter(table.values()), []))))


def _read_csv(path: Path, columns: Columns, found: list[Finding]) -> _Read | None:
    text = _decoded(path, columns, found)
    if text is None:
        return None
    reader = csv.reader(StringIO(text, newline=""), delimiter=columns.separator)
    header: list[str] | None = None
    rows, lines, line = list[list[str]](), list[int](), 1
    try:
        for row in reader:
            begins, line = line, reader.line_num + 1
            if not row:
                continue
            if header is None:
                header = row
            elif len(row) == len(header):
                rows.append(row)
                lines.append(begins)
            else:
                comma = columns.separator == "," and len(row) > len(header)
                cause = " (decimal comma? a comma in a text without quotes?)" if comma else ""
                found.append(
                    Finding((begins,), f"{len(row)} values, and the header has {len(header)}{cause}")
                )
    except csv.Error as error:
        found.append(Finding((reader.line_num,), f"it cannot be read from here on: {error}"))
    if header is None:
        found.append(Finding((), "the file is empty"))
        return None
    if len(header) == 1 and (other := [each for each in SEPARATORS if each in header[0]]):
        words = f"there is one column, '{header[0][:60]}' (separated by {other[0]!r}? declare separator)"
        found[:] = [Finding((1,), words)]
        return None
    twice = sorted({name for name in header if header.count(name) > 1} & {*columns.names()})
    found += [Finding((1,), f"the column '{name}' is there twice") for name in twice]
    cells = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    return _Read(texts_of(cells, columns, written=True), lines)


def _decoded(path: Path, columns: Columns, found: list[Finding]) -> str | None:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LearningError(f"{path} cannot be read: {error.strerror}") from None
    encoding = "utf-8-sig" if columns.encoding == "utf-8" else columns.encoding
    if data.startswith(b"PK") or (b"\0" in data[:200] and columns.encoding != "utf-16"):
        likely = (
            "an Excel file? save it as CSV" if data.startswith(b"PK") else "UTF-16? declare encoding: utf-16"
        )
        found.append(Finding((1,), f"this is no text in {columns.encoding} ({likely})"))
        return None
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        words = (
            f"byte 0x{data[error.start]:02x} is no {columns.encoding} (Latin-1? declare encoding: latin-1)"
        )
        found.append(Finding((line,), words))
        return data.decode("latin-1")


def _columns_found(table: Table, columns: Columns) -> Iterator[Finding]:
    """Columns that are missing, and those that nobody declared."""
    others = [name for name in table if name not in columns.names()]
    folded = {name.strip().casefold(): name for name in others}
    party = columns.party.name if columns.party else None
    for name in columns.names():
        if name in table:
            continue
        near = folded.get(name.casefold()) or next(iter(get_close_matches(name, others, n=1)), None)
        hint = f" (did you mean '{near}'?)" if near else ""
        if name == party:
            only = "; a node's own table needs none, one that is shared out does"
            yield Finding((1,), f"there is no column '{name}'{hint or only}", refused=False)
        else:
            yield Finding((1,), f"there is no column '{name}'{hint}")
    if others:
        yield Finding((), f"not declared, and not read: {', '.join(others)}", refused=False)


def _grouped(faults: Sequence[Fault], columns: Columns, lines: Sequence[int]) -> Iterator[Finding]:
    """The faults of values, those of one value of a column together."""
    places: dict[tuple[str, str, str], list[int]] = {}
    for fault in faults:
        places.setdefault((fault.column, fault.text, fault.words), []).append(lines[fault.row - 1])
    for (column, text, words), found in places.items():
        held = f"holds '{text}'" if text else "is empty"
        yield Finding(tuple(found), f"column '{column}' {held}, {words}{_cause(column, text, columns)}")


def _cause(name: str, text: str, columns: Columns) -> str:
    """What may be behind a value that is not as declared; empty where nothing is known."""
    if not text:
        return " (declare missing_labels: drop to leave such rows out)" if name in columns.label_names else ""
    if text.casefold() in MARKS:
        return f" (missing? declare missing: ['{text}'])"
    number = columns.number(name)
    if number is None:
        values = {value.casefold(): value for value in columns.values(name)}
        near = get_close_matches(text.casefold(), [*values], n=1)
        return f" (did you mean '{values[near[0]]}'?)" if near else ""
    if number.dated is None and columns.decimal == "." and WITH_COMMA.fullmatch(text):
        return " (decimal comma? declare decimal: ',')"
    if DATE.fullmatch(text):
        return " (a date? declare age_on or days_since)" if number.dated is None else " (declare its format)"
    return ""


def _odd(table: Table, columns: Columns) -> Iterator[Finding]:
    """What a training takes as it is, and its owner may not have meant."""
    for name in columns.names():
        if name in table and np.all(table[name] == ""):
            yield Finding((), f"column '{name}' is missing in all rows", refused=False)
    for name in columns.label_names if columns.label_set else ():
        if len(held := set(table.get(name, ())) - {""}) == 1:
            words = f"column '{name}' is '{held.pop()}' in all rows: of such a label nothing is learnt"
            yield Finding((), words, refused=False)
    labels = set(table.get(columns.label, ())) - {""}
    classes = [found for found in columns.classes if labels & set(found)]
    if columns.classes and len(classes) == 1:
        name = columns.class_names[columns.classes.index(classes[0])]
        yield Finding(
            (), f"all labels are of the class '{name}': of one class nothing is learnt", refused=False
        )
    for column in columns.numeric:
        if column.name in table:
            yield from _odd_range(table, column, columns.decimal)


def _odd_range(table: Table, column: Numeric, decimal: str) -> Iterator[Finding]:
    nowhere = Where("", np.arange(len(table[column.name])) + 1, [])
    numbers = parsed(table[column.name], column, nowhere, decimal=decimal)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return
    bounds = f"{column.low:g} to {column.high:g}"
    beyond = int(((numbers < column.low) | (numbers > column.high)).sum())
    if beyond:
        words = (
            f"column '{column.name}': {beyond} of {numbers.size} lie beyond {bounds}, and count as its end"
        )
        yield Finding((), words, refused=False)
    spread = float(numbers.max() - numbers.min())
    if 0 < spread < NARROWEST * (column.high - column.low):
        words = f"column '{column.name}': all lie within 1 % of {bounds}: is the range too wide?"
        yield Finding((), words, refused=False)
