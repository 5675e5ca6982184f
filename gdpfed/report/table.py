"""One table, three ways to show it: on the terminal, in Markdown, as comma-separated values."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import rich.table

from gdpfed.report.console import Fitted


@dataclass(frozen=True)
class Table:
    """Text cells under headings; the first column names the row, the others are figures.

    Attributes:
        title: what it shows, one line.
        headings: one a column, units included.
        rows: as many cells each as there are headings.
        note: what must be known to read it.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def to_rich(self) -> Fitted:
        """Return the table in its form for the terminal."""
        table = rich.table.Table(
            title=self.title,
            caption=self.note or None,
            title_justify="left",
            caption_justify="left",
            show_lines=any("\n" in cell for row in self.rows for cell in row),
        )
        table.add_column(self.headings[0])
        for heading in self.headings[1:]:
            table.add_column(heading, justify="right")
        for row in self.rows:
            table.add_row(*row)
        return Fitted(table)

    def to_markdown(self) -> str:
        """Title, pipes and note, with an empty line between them."""
        lines = [_piped(self.headings), _piped(["---", *["---:"] * (len(self.headings) - 1)])]
        lines += [_piped(row) for row in self.rows]
        parts = [f"**{self.title}**", "\n".join(lines), self.note]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_csv(self) -> str:
        """Headings and rows; RFC 4180 but for the line ends."""
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.headings, *self.rows])
        return text.getvalue()


def _piped(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells)
    return f"| {' | '.join(escaped)} |"
