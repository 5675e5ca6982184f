"""Finds, at the head of a CSV file, its separator and the line with the column names.

They say nothing of a record: names of columns are public. So what is found here may be for all rows.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gdpfed.errors import LearningError
from gdpfed.learning.data.csv_records import IsRow, split
from gdpfed.learning.data.file_form import FILES_FILE, FIRST, LAST, SEPARATORS, FileForm, Found, table_name
from gdpfed.learning.data.written_numbers import MARKED

LOOKED_AT = 11
"""Lines, of which one may have the names."""
LOOKED_AT_BYTES = 2**20
SEP = re.compile(rb'\s*"?sep=([,;|\t])"?\s*$', re.IGNORECASE)
FEWEST = 3
"""Rows that show an index of another form."""
SHOWN = 60
"""Letters of a row, in an error."""
RowTest = Callable[[Sequence[str]], IsRow]


@dataclass(frozen=True)
class Head:
    """The position of the line of column names in a CSV file, and the file's separator.

    Attributes:
        separator: of the fields.
        skipped: how many bytes are before that line.
        line: its number in the file, from 1.
    """

    separator: str
    skipped: int
    line: int


def look_at_head(
    data: bytes, own: FileForm, declared: str, wanted: Sequence[str], found: Found, place: str
) -> Head:
    """Find the separator and the line of column names: by declared names, else the first non-empty line.

    `data`: the beginning of the file. `own`: what the site says. `declared`: the separator that is preferred.
    `wanted`: the declared names. `found`: told what is passed over, and of another separator.

    Raises LearningError: Excel's line of the separator and the site say two.
    """
    lines = data[:LOOKED_AT_BYTES].splitlines(keepends=True)
    number = next((at for at, line in enumerate(lines[:LOOKED_AT]) if line.strip()), 0)
    # In a first line such as sep=; Excel is told the separator. Where the site gives the names, it is a row.
    excel = None if own.header or not lines else SEP.match(lines[number])
    told = excel[1].decode() if excel else ""
    if told:
        if own.separator not in (None, told):
            raise LearningError(
                f"{place}: line {number + 1} is Excel's sep={told}, and {FILES_FILE} says separator: "
                f"'{own.separator}': leave one out"
            )
        found.head.append(f"line {number + 1} is Excel's sep={told}: it is passed over")
        number += 1

    likely = told or declared
    others = (each for each in SEPARATORS if each != likely)
    separators = (own.separator,) if own.separator else (likely, *others)
    scores = {
        (at, separator): len({*wanted} & {*map(str.strip, fields)})
        for separator in separators
        for at, fields in _records(lines, number, separator)
    }
    scores = dict(sorted(scores.items(), key=lambda each: each[0][0]))
    first = [key for key in scores if key[0] == number]
    at, separator = max(scores, key=lambda key: scores[key], default=(number, separators[0]))
    if own.header:
        # The first line is a row, and says nothing of the others.
        at, separator = number, separators[0]
    elif not scores or not scores[at, separator]:
        # No name is known: the separator that the first line has most of.
        text = lines[number].decode(errors="replace") if number < len(lines) else ""
        at, separator = number, max(separators, key=lambda each: len(split(text, each)))
    elif scores[at, separator] == max(scores[key] for key in first):
        at, separator = max(first, key=lambda key: scores[key])
    if at > number:
        above = f"lines {number + 1} to {at} are" if at > number + 1 else f"line {at} is"
        found.head.append(f"{above} above the names of the columns, and passed over")
    if separator not in (likely, own.separator) and at < len(lines):
        found.head.append(f"separated by {separator!r}")
    return Head(separator, sum(map(len, lines[:at])), at + 1)


def _records(lines: Sequence[bytes], number: int, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line, from 0, and the fields of each record that begins in the first lines, from `number`."""
    reader = csv.reader((line.decode(errors="replace") for line in lines[number:]), delimiter=separator)
    at = number
    with suppress(csv.Error):
        while at < LOOKED_AT and (fields := next(reader, None)) is not None:
            yield at, fields
            at = number + reader.line_num


def all_names(
    names: Sequence[str],
    below: Sequence[str],
    separator: str,
    own: FileForm,
    reads: RowTest,
    found: Found,
    place: str,
) -> tuple[list[str], bool | None]:
    """Return names for all fields of a row ("" for an unnamed one), and whether the last is filled in each.

    A row may have one field more than there are names: an index before it, or nothing after a last separator.
    The site says which, or the first rows show it. Then each row of the file must have a last field that is
    filled or is empty, as theirs is: so no record changes which of the two the others have.

    `below`: the first records. `own`: what the site says. `reads`: from names to whether fields read as a row
    of them. `place`: what errors call the file.

    Raises LearningError: what may be an index or not.
    """
    rows, names = [split(line, separator) for line in below], [name.strip() for name in names]
    fields = rows[0] if rows else []
    if own.unnamed is not None:
        return (["", *names], None) if own.unnamed == FIRST else ([*names, ""], False)
    if len(fields) == len(names) - 1 and names[-1] == "":
        found.head.append("the line of names ends in a separator, and rows do not")
        return names[:-1], None
    if len(fields) != len(names) + 1:
        return names, None
    first, is_row = [row[0].strip() if row else "" for row in rows], reads(["", *names])
    quoted = all(line.startswith('"') for line in below)
    if all(row and row[-1].strip() == "" for row in rows):
        start = int(first[0]) if re.fullmatch("[0-9]{1,18}", first[0]) else 0
        if (quoted or _count_from(start, first)) and all(map(is_row, rows)):
            raise LearningError(
                f"{place}: line 1 names {len(names)} columns, and rows have {len(fields)} values, of which "
                f"the first may be a running number, and the last is empty: say in {FILES_FILE} which has no "
                f"name, as in {table_name(Path(place.rpartition('=')[2]))}: {{unnamed: {LAST}}}, or {FIRST}"
            )
        found.head.append("rows end in a separator, and the line of names does not")
        return [*names, ""], False
    indexed = all(line.startswith(f'"{number}"') for number, line in enumerate(below, start=1))
    if (
        not indexed
        and len(rows) >= FEWEST
        and all(len(row) == len(names) + 1 and is_row(row) for row in rows)
    ):
        # A decimal comma in rows without an index makes a field more, too. But then no first field of several
        # rows counts 0, 1, 2, or 1, 2, 3, and what stands in quotes is seldom another text in each.
        counts = _count_from(0, first) or _count_from(1, first)
        indexed = counts or (quoted and len({*first}) == len(rows))
    if not indexed:
        return names, None
    if separator == "," and not below[0].startswith('"') and _may_have_decimal_commas(rows, reads(names)):
        raise LearningError(
            f"{place}: line 1 names {len(names)} columns, and rows have {len(fields)} values, as in "
            f"{below[0][:SHOWN]}: a running number, or a decimal comma without quotes? Say unnamed: {FIRST} "
            f"in {FILES_FILE}, or write decimal points"
        )
    found.head.append("rows begin with an index that has no name")
    return ["", *names], True


def _count_from(start: int, texts: Sequence[str]) -> bool:
    return list(texts) == [str(start + at) for at in range(len(texts))]


def _may_have_decimal_commas(rows: Sequence[list[str]], is_row: IsRow) -> bool:
    """Whether every row is valid if two adjacent fields, after the first, are read as one decimal number.

    The running number itself is passed over: as the whole part of a decimal it would count up, row by row.
    """

    def joined(row: list[str], at: int) -> bool:
        number = f"{row[at]},{row[at + 1]}"
        return re.search(MARKED, number) is not None and is_row([*row[:at], number, *row[at + 2 :]])

    return all(any(joined(row, at) for at in range(1, len(row) - 1)) for row in rows)
