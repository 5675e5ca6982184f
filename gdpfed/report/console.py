"""Standard output and its width; tables for terminals, Markdown, LaTeX and CSV."""

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column

WIDTH = 100
"""Columns of output that is not a terminal, where $COLUMNS says nothing else."""
FIGURE_WIDTH = 16
"""Cells up to this wide are figures and names, which stay on one line; wider ones are text."""


NOTEBOOK = "JPY_PARENT_PID"
"""The environment variable of programs that a notebook's kernel starts, whose terminal is a cell."""


def in_notebook() -> bool:
    """Whether output appears in a notebook cell, where printed text cannot be changed later."""
    return NOTEBOOK in os.environ


class OutputConsole(Console):
    """A console for standard output, as wide as the terminal or $COLUMNS, else :data:`WIDTH` columns.

    In a notebook it is text, as everywhere, without codes for a terminal: the cell keeps each of them.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        plain = in_notebook()
        super().__init__(
            force_jupyter=False,
            stderr=stderr,
            force_terminal=False if plain else None,
            no_color=plain or None,
        )
        if not self.is_terminal and "COLUMNS" not in self._environ:
            self.width = WIDTH

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError when the reader of the output has gone; ``gdpfed`` then ends quietly."""
        raise BrokenPipeError


def rich_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Sequence[str] = (),
    **how: Any,
) -> rich.table.Table:
    """Return a table for the terminal, with right-aligned cells except in the columns of ``left``."""
    table = rich.table.Table(title=title, **{"title_justify": "left", **how})
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        table.add_row(*row)
    return table


class Fitted:
    """A table for the terminal that never cuts a number, however narrow the output is.

    Where the table is too wide, headings and text go on several lines, then cells lose their margins. Where
    that is not enough, the last columns follow in a further table, which begins with the first column again.
    """

    def __init__(self, table: rich.table.Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [_Needed.of(column) for column in self.table.columns]
        margin = 1 if _sum_of_least(columns, 1) <= options.max_width else 0
        bands = list(_bands(columns, margin, options.max_width))
        for number, band in enumerate(bands):
            # The first part has the title, and the last one the caption.
            part = rich.table.Table(
                title=self.table.title if number == 0 else None,
                caption=self.table.caption if number == len(bands) - 1 else None,
                title_justify=self.table.title_justify,
                caption_justify=self.table.caption_justify,
                show_lines=self.table.show_lines,
            )
            part.padding = (0, margin)
            for each, given in zip(
                band, _widths(band, options.max_width - _frame(len(band), margin)), strict=True
            ):
                column = each.column
                part.add_column(column.header, justify=column.justify, width=given, overflow="fold")
            for row in zip(*(each.column.cells for each in band), strict=True):
                part.add_row(*row)
            yield part


@dataclass(frozen=True)
class _Needed:
    """A column with the smallest width it can have, and the width at which no cell needs to wrap."""

    column: Column
    least: int
    whole: int

    @classmethod
    def of(cls, column: Column) -> "_Needed":
        heading = str(column.header)
        lines = [line for cell in column.cells for line in str(cell).splitlines()]
        widest = max(map(cell_len, lines), default=0)
        unbroken = lines if widest <= FIGURE_WIDTH else [word for line in lines for word in line.split()]
        least = max(map(cell_len, [*heading.split(), *unbroken]), default=0)
        return cls(column, least, max(widest, cell_len(heading)))


def _frame(columns: int, margin: int) -> int:
    """Return the width of borders and margins in a table with this number of columns."""
    return 1 + columns * (1 + 2 * margin)


def _sum_of_least(columns: Sequence[_Needed], margin: int) -> int:
    return sum(column.least for column in columns) + _frame(len(columns), margin)


def _bands(columns: Sequence[_Needed], margin: int, width: int) -> Iterator[list[_Needed]]:
    """Split a wide table into several that fit the output; each repeats the first column."""
    band = [columns[0]]
    for each in columns[1:]:
        if len(band) > 1 and _sum_of_least([*band, each], margin) > width:
            yield band
            band = [columns[0]]
        band.append(each)
    yield band


def _widths(band: Sequence[_Needed], room: int) -> list[int]:
    """Return column widths: minimums, then spare room, first for columns that need least to show all text."""
    widths = [each.least for each in band]
    left = room - sum(widths)
    for index in sorted(range(len(band)), key=lambda index: band[index].whole - widths[index]):
        more = max(0, min(left, band[index].whole - widths[index]))
        widths[index] += more
        left -= more
    return widths


@dataclass(frozen=True)
class Table:
    """A table of texts with headings; the first column names each row, and the other columns hold values.

    `title`: what it shows, one line. `headings`: one a column, units included. `rows`: as many cells each as
    there are headings. `note`: what must be known to read it.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def to_rich(self) -> Fitted:
        """Return the table for a terminal."""
        table = rich_table(
            self.title,
            self.headings,
            self.rows,
            left=self.headings[:1],
            caption=self.note or None,
            caption_justify="left",
            show_lines=any("\n" in cell for row in self.rows for cell in row),
        )
        return Fitted(table)

    def to_markdown(self) -> str:
        """Return the table in Markdown: title, rows and note."""
        lines = [_piped(self.headings), _piped(["---", *["---:"] * (len(self.headings) - 1)])]
        lines += [_piped(row) for row in self.rows]
        parts = [f"**{self.title}**", "\n".join(lines), self.note]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_latex(self) -> str:
        """Return the table in LaTeX, with rules of the package booktabs."""
        lines = [" & ".join(map(_in_latex, cells)) + r" \\" for cells in (self.headings, *self.rows)]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_in_latex(self.title)}. {_in_latex(self.note)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def to_csv(self) -> str:
        """Return headings and rows as CSV (RFC 4180), with plain line feeds."""
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.headings, *self.rows])
        return text.getvalue()


_LATEX = str.maketrans(
    {
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"±": r"$\pm$", "²": "$^2$", "–": "--", "Λ": r"$\Lambda$", "\n": " "},
        **{each: f"\\{each}" for each in "&%$#_{}"},
    }
)


def _in_latex(text: str) -> str:
    return text.translate(_LATEX)


def _piped(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells)
    return f"| {' | '.join(escaped)} |"
