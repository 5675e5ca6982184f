"""Reads measured tables from the documents, and converts them to CSV for the paper.

A name is that of the document and the caption, as in ``results-accuracy-on-the-digits``; the second table of
a caption ends in ``-2``.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
MEASURED = re.compile(r"^<!-- measured by:.*?-->\n(.*?)^<!-- end -->", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\*\*(.+)\*\*\n\n((?:\|.*\n)+)", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Measured:
    """One table: its caption, and its headings and rows as they stand in the document."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_csv(self) -> str:
        """Return headings and rows as CSV text: RFC 4180, except that lines end with a line feed only."""
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.headings, *self.rows])
        return text.getvalue()


def measured_tables(project: Path = PROJECT) -> Mapping[str, Measured]:
    """Return, by name, all tables of measured results that a command has written into docs/."""
    tables: dict[str, Measured] = {}
    for path in sorted((project / "docs").glob("*.md")):
        for table in _tables_of(path.read_text(encoding="utf-8")):
            first = name = f"{path.stem}-{_slug(table.caption)}"
            number = 1
            while name in tables:
                number += 1
                name = f"{first}-{number}"
            tables[name] = table
    return tables


def _tables_of(text: str) -> Iterator[Measured]:
    for block in MEASURED.findall(text):
        for caption, lines in TABLE.findall(block):
            headings, _, *rows = (_cells(line) for line in lines.splitlines())
            yield Measured(caption, headings, tuple(rows))


def _cells(line: str) -> tuple[str, ...]:
    return tuple(LINK.sub(r"\1", each.strip()).replace("`", "") for each in line.strip("|").split("|"))


def _slug(caption: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", caption.lower()).strip("-")
