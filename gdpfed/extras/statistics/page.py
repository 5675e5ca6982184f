"""Writes statistics.html: tables, and for each column a bar chart with intervals that show the noise."""

from dataclasses import dataclass
from pathlib import Path

from gdpfed.extras.statistics.curves_shown import picture_of_curves
from gdpfed.extras.statistics.figures import NORMAL_QUANTILE
from gdpfed.extras.statistics.result import ColumnFigures, Statistics
from gdpfed.extras.statistics.shown import heading, named, note, tables_of
from gdpfed.files import save_whole
from gdpfed.report.pages import page_of
from gdpfed.runs.file_formats import STATISTICS_PAGE

TEMPLATE = "statistics_page.html"
WIDTH, ROW, LEFT, TOP = 640, 18, 170, 4
"""Of a picture, in units of SVG: its width, the height of a bar's row, and where bars begin."""
MOST_LETTERS = 24


@dataclass(frozen=True)
class Bar:
    """The bar of one value or bin in a picture: label, position, length, and the ends of its interval."""

    label: str
    count: str
    y: float
    length: float
    low: float
    high: float


@dataclass(frozen=True)
class Picture:
    """The bars of one column, for a picture in SVG."""

    title: str
    bars: list[Bar]
    height: float
    width: float = WIDTH
    left: float = LEFT


def write_page(found: Statistics, directory: Path) -> Path:
    """Write tables and pictures of statistics as one HTML page; return its path."""
    pictures = [picture_of(each) for each in found.columns]
    # A row for each mean and standard deviation, with its noise and its sampling error.
    sampling = list[list[str]]()
    for column in found.columns:
        for name in ("mean", "sd"):
            figure = column.figures.get(name)
            if figure is not None and figure.value is not None and figure.high is not None:
                off = f"{figure.high - figure.value:.3g}"
                sampled = "–" if figure.sampling is None else f"{figure.sampling:.3g}"
                sampling.append([named(column), name, f"{figure.value:.4g}", off, sampled])
    page = page_of(
        TEMPLATE,
        folder=Path(__file__).parent,
        title="Statistics",
        about=heading(found),
        note=note(found),
        pictures=pictures,
        curves=picture_of_curves(found.curves),
        tables=list(tables_of(found)),
        sampling=sampling,
    )
    save_whole(directory / STATISTICS_PAGE, page.encode())
    return directory / STATISTICS_PAGE


def picture_of(column: ColumnFigures) -> Picture:
    """Draw a column's counts as bars, scaled to the largest; counts below the minimum count have no bar."""
    off = NORMAL_QUANTILE * column.noise_stddev
    most = max((count + off for count in column.counts if count is not None), default=1.0)
    scale = (WIDTH - LEFT - 60) / most
    bars = []
    for number, (label, count) in enumerate(zip(column.cells, column.counts, strict=True)):
        shown = 0.0 if count is None else max(0.0, count)
        bars.append(
            Bar(
                label=label if len(label) <= MOST_LETTERS else f"{label[: MOST_LETTERS - 1]}…",
                count="–" if count is None else f"{count:.0f}",
                y=TOP + ROW * number,
                length=round(scale * shown, 1),
                low=round(LEFT + scale * max(0.0, shown - off), 1),
                high=round(LEFT + scale * (shown + off), 1),
            )
        )
    return Picture(named(column), bars, 2 * TOP + ROW * len(bars))
