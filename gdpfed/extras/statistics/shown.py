"""Shows statistics on the terminal: rows by column, with each number's interval below it."""

from collections.abc import Iterator

from gdpfed.extras.statistics.curves_shown import survival_note, survival_tables
from gdpfed.extras.statistics.figures import NORMAL_QUANTILE, Figure
from gdpfed.extras.statistics.layout import ABOVE, BELOW, MISSING
from gdpfed.extras.statistics.result import ColumnFigures, CrossTable, Statistics
from gdpfed.report.console import Table

HIDDEN, UNKNOWN = "–", "?"
QUARTILES = ("q0.25", "q0.5", "q0.75")
NUMBER_HEADINGS = ("column", "n", "missing", "mean", "sd", "25 %", "50 %", "75 %")
VALUE_HEADINGS = ("column", "value", "n", "±", "share (%)")
MOST_ACROSS = 9
OFTEN_EMPTY = (BELOW, ABOVE, MISSING)
"""Cells that are left out where nothing is shown of them."""


def heading(found: Statistics) -> str:
    """Say in one line how many records were counted, the noise, and the privacy cost."""
    one, whole = found.counted.removesuffix("s"), _lines(found.n).replace("\n", " ")
    return (
        f"{whole} {found.counted} at {found.clients} parties; it cost each {one} epsilon "
        f"{found.epsilon:.3g} at delta {found.delta:.3g}"
    )


def note(found: Statistics) -> str:
    """Explain in one note how to read statistics and their intervals."""
    if found.curves:
        return survival_note(found)
    off = NORMAL_QUANTILE * found.noise_stddev
    hidden = f"; {HIDDEN}: below {found.minimum_count:g}" if found.minimum_count else ""
    return (
        f"± is what the noise leaves open (95 %): {off:.3g} in each cell of the sum. Numbers beyond a "
        f"column's range count as its end{hidden}; {UNKNOWN}: not known under this noise"
    )


def tables_of(found: Statistics) -> Iterator[Table]:
    """Yield the tables to print: numeric columns, counts of values, pairs of columns, survival curves."""
    numbers, values = list[list[str]](), list[list[str]]()
    for each in found.columns:
        if each.edges:
            figures = [each.figures[name] for name in ("mean", "sd", *QUARTILES)]
            missing = HIDDEN if each.missing is None else _above(each.missing, digits=0)
            numbers.append([named(each), _above(each.n, digits=0), missing, *map(_above, figures)])
            continue
        whole, off = each.n.value or 0.0, f"{NORMAL_QUANTILE * each.noise_stddev:.2g}"
        for number, (name, count) in enumerate(zip(each.cells, each.counts, strict=True)):
            if name in OFTEN_EMPTY and count is None:
                continue
            has_share = each.missing is None or number < len(each.cells) - 1
            share = f"{100 * count / whole:.1f}" if count is not None and whole > 0 and has_share else HIDDEN
            values.append([named(each), name, _count(count), HIDDEN if count is None else off, share])
    if numbers:
        yield Table("Columns of numbers", NUMBER_HEADINGS, numbers)
    if values:
        yield Table("Columns of values", VALUE_HEADINGS, values)
    for table in found.tables:
        yield from crossed(table)
    yield from survival_tables(found)


def named(column: ColumnFigures) -> str:
    """Return a column's name and, if the column was counted within one group, the group's name."""
    return column.name if column.group is None else f"{column.name}, {column.group}"


def crossed(table: CrossTable) -> Iterator[Table]:
    """Yield the table of a pair of columns, in several parts if it is wide."""
    for start in range(0, len(table.column_cells), MOST_ACROSS):
        across = table.column_cells[start : start + MOST_ACROSS]
        rows = [
            [name, *map(_count, row[start : start + MOST_ACROSS])]
            for name, row in zip(table.row_cells, table.counts, strict=True)
            if not (name in OFTEN_EMPTY and all(count is None for count in row))
        ]
        yield Table(f"{table.rows} by {table.columns}", (table.rows, *across), rows)


def _count(count: float | None) -> str:
    return HIDDEN if count is None else f"{count:.0f}"


def half_width(figure: Figure) -> float:
    """Return the larger distance from a number to an end of its interval."""
    if figure.value is None or figure.low is None or figure.high is None:
        return 0.0
    return max(figure.value - figure.low, figure.high - figure.value)


def _above(figure: Figure, digits: int | None = None) -> str:
    """Format a number for a table, with the half-width of its interval on the line below."""
    if figure.value is None:
        return UNKNOWN if digits is None else HIDDEN
    form = ".4g" if digits is None else f".{digits}f"
    return f"{figure.value:{form}}\n±{half_width(figure):.2g}" if digits is None else _lines(figure)


def _lines(figure: Figure) -> str:
    return f"{figure.value:.0f}\n±{half_width(figure):.0f}"
