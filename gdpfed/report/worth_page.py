"""A comparison with parties alone, pooled rows and no privacy, as a picture and as one page."""

from collections.abc import Sequence
from pathlib import Path

from gdpfed.files import save_whole
from gdpfed.learning.labels.classes import DEFAULT
from gdpfed.methods import METHODS
from gdpfed.report.class_figures import Figure
from gdpfed.report.comparison import Line
from gdpfed.report.epsilon_picture import EPSILON_PICTURE, cost_points, draw_cost
from gdpfed.report.metric_display import MetricDisplay, Spread
from gdpfed.report.pages import SECTIONS_TEMPLATE, Picture, Section, page_of
from gdpfed.report.rivals import EVERYWHERE, RIVALS, Worth

PAGE = "worth.html"
ABOUT = (
    "Accuracy on the test rows of all parties. What is compared was trained on the parties' rows without "
    "noise: it is for those who may see them, and no budget covers it."
)


def draw_worth(compared: Sequence[tuple[Line, Worth]], directory: Path) -> Path | None:
    """Draw accuracy against epsilon, with a line for each rival; None where no run promises anything."""
    results = [_spread(_of_run(line, worth)) for line, worth in compared]
    points = cost_points([line for line, _ in compared], results)
    if not points:
        return None
    first = compared[0][1].figures
    levels = {name: _spread(first[name][EVERYWHERE][DEFAULT]) for name in RIVALS if name in first}
    draw_cost(points, levels, DEFAULT, directory / EPSILON_PICTURE)
    return directory / EPSILON_PICTURE


def write_worth_page(worth: Worth, picture: Path | None, directory: Path) -> Path:
    """Write picture and tables as one page that needs no network; returns its path."""
    sections = [Section(table.title, table=table) for table in worth.tables()]
    if picture is not None:
        drawn = Picture(
            "Accuracy against epsilon, beside each party alone and all rows in one place",
            picture.read_bytes(),
        )
        sections.insert(0, Section("What privacy costs", drawn))
    page = page_of(
        SECTIONS_TEMPLATE, title=f"{worth.title}: was it worth it?", about=ABOUT, sections=sections
    )
    save_whole(directory / PAGE, page.encode())
    return directory / PAGE


def _of_run(line: Line, worth: Worth) -> Figure:
    """The accuracy of a run's own model on all test rows."""
    name = str(line.runs[0].settings["method"]["name"])
    return worth.figures[METHODS.get(name).label or name][EVERYWHERE][DEFAULT]


def _spread(figure: Figure) -> Spread:
    scaled = MetricDisplay.of(DEFAULT).scaled
    stddev = None if figure.stddev is None else scaled(figure.stddev)
    return Spread(scaled(figure.value), stddev, 1)
