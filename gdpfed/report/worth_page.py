"""A picture and an HTML page that compare a run's model with models that data owners could train alone."""

from collections.abc import Sequence
from pathlib import Path

from gdpfed.files import save_whole
from gdpfed.report.class_figures import AREA, Figure
from gdpfed.report.comparison import Line
from gdpfed.report.console import Table
from gdpfed.report.epsilon_picture import EPSILON_PICTURE, cost_points, draw_cost
from gdpfed.report.metric_display import MetricDisplay, Spread
from gdpfed.report.pages import SECTIONS_TEMPLATE, Picture, Section, page_of
from gdpfed.report.rivals import RIVALS
from gdpfed.report.worth import EVERYWHERE, Worth
from gdpfed.report.worth_answer import answer_lines, answer_table, leading, model_of

PAGE = "worth.html"
ABOUT = (
    "Figures on the test rows of all parties. What is compared was trained on the parties' rows without "
    "noise: it is for those who may see them, and no budget covers it."
)
METRICS = {AREA: "auc"}
"""What a figure is called as a metric, where it is called otherwise."""


def draw_worth(compared: Sequence[tuple[Line, Worth]], directory: Path) -> Path | None:
    """Draw accuracy or AUC against epsilon, with a line for each compared model; None if no run has privacy.

    Bars, and the band of each party alone, are the 95 % intervals that follow from the test rows.
    """
    figure = leading(compared)
    found = [worth.figures[model_of(line)][EVERYWHERE][figure] for line, worth in compared]
    points = cost_points(
        [line for line, _ in compared],
        [_spread(each, figure) for each in found],
        [_ends(each, figure) for each in found],
    )
    if not points:
        return None
    first = {name: own[EVERYWHERE][figure] for name, own in compared[0][1].figures.items() if name in RIVALS}
    levels = {name: _spread(each, figure) for name, each in first.items()}
    alone = {name: _ends(each, figure) for name, each in first.items() if name == RIVALS[1]}
    draw_cost(points, levels, _metric(figure), directory / EPSILON_PICTURE, bands=alone)
    return directory / EPSILON_PICTURE


def write_worth_page(
    worth: Worth, compared: Sequence[tuple[Line, Worth]], picture: Path | None, directory: Path
) -> Path:
    """Write an HTML page that compares models in sentences, a picture and tables; return the page's path."""
    sections = [Section(table.title, table=table) for table in worth.tables()]
    if picture is not None:
        title = f"{leading(compared)} against epsilon, beside each party alone and all rows in one place"
        sections.insert(0, Section("What privacy costs", Picture(title, picture.read_bytes())))
    answer: Table | None = answer_table(compared)
    if answer is not None:
        lines = "\n".join(answer_lines(compared))
        sections.insert(0, Section(answer.title, table=answer, note=lines))
    page = page_of(
        SECTIONS_TEMPLATE, title=f"{worth.title}: was it worth it?", about=ABOUT, sections=sections
    )
    save_whole(directory / PAGE, page.encode())
    return directory / PAGE


def _metric(figure: str) -> str:
    return METRICS.get(figure, figure)


def _spread(figure: Figure, name: str) -> Spread:
    scaled = MetricDisplay.of(_metric(name)).scaled
    stddev = None if figure.stddev is None else scaled(figure.stddev)
    return Spread(scaled(figure.value), stddev, 1)


def _ends(figure: Figure, name: str) -> tuple[float, float]:
    scaled = MetricDisplay.of(_metric(name)).scaled
    return scaled(figure.low), scaled(figure.high)
