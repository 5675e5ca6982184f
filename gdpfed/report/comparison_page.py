"""A page that shows runs side by side: comparison, results by party, and seconds per round."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gdpfed.files import save_whole
from gdpfed.report.comparison import Line
from gdpfed.report.console import Table
from gdpfed.report.epsilon_picture import EPSILON_PICTURE, cost_points
from gdpfed.report.pages import SECTIONS_TEMPLATE, Picture, Section, drawn_picture, page_of
from gdpfed.report.report_files import COST_PICTURE, FINAL_PICTURE, write_report
from gdpfed.report.report_tables import chance_lines, tables_of
from gdpfed.report.spending import ADDED_UP, spending_of
from gdpfed.report.spent_picture import MOST_PANELS, draw_spent
from gdpfed.runs.file_formats import ACCURACY_PICTURE, PAGE_FILE


def write_comparison_page(lines: Sequence[Line], directory: Path) -> Path:
    """Write a comparison's files and one HTML page with all of them; return the page's path.

    Raises ReportError: lines that show different metrics, a damaged run, or a directory that cannot be
    written.
    """
    write_report(lines, directory)
    page = page_of(
        SECTIONS_TEMPLATE,
        title="Runs side by side",
        about=", ".join(dict.fromkeys(line.label for line in lines)),
        sections=list(_sections(lines, directory)),
    )
    save_whole(directory / PAGE_FILE, page.encode())
    return directory / PAGE_FILE


def _sections(lines: Sequence[Line], directory: Path) -> Iterator[Section]:
    def picture(name: str, title: str) -> Picture:
        return Picture(title, (directory / name).read_bytes())

    def of(name: str) -> Iterator[Section]:
        if name in tables:
            yield Section(tables[name].title, table=tables[name])

    tables: dict[str, Table] = tables_of(lines)
    if cost_points(lines):
        yield Section("What privacy costs", picture(EPSILON_PICTURE, "The result against epsilon"))
    shown = picture(FINAL_PICTURE, "The result after the last round")
    yield Section(tables["results"].title, shown, tables["results"], "\n".join(chance_lines(lines)))
    yield from (*of("differences"), *of("parts"), *of("budgets"))
    spent = spending_of([run for line in lines for run in line.runs])
    if spent:
        few = "" if len(spent) <= MOST_PANELS else f", the first {MOST_PANELS} of {len(spent)}"
        drawn = drawn_picture(lambda path: draw_spent(spent, path))
        yield Section("Budgets, run after run", Picture(f"Epsilon that was spent{few}", drawn), note=ADDED_UP)
    yield Section("Over the rounds", picture(ACCURACY_PICTURE, "The result after every round"))
    yield Section("Noise, traffic and time", picture(COST_PICTURE, "What runs have cost"))
