"""Writes a comparison of runs as files: Markdown, CSV and pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gdpfed.errors import ReportError, printable
from gdpfed.report.comparison import Line
from gdpfed.report.comparison_tables import (
    figure_of,
    kilobytes_down,
    kilobytes_up,
    noise_magnitude,
    one_metric,
    seeds_table,
)
from gdpfed.report.epsilon_picture import EPSILON_PICTURE, cost_points, draw_cost, without_privacy
from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.metric_display import MetricDisplay, Spread
from gdpfed.report.plots import (
    Dots,
    draw_curves,
    draw_dots,
    height_inches,
    method_styles,
    new_figure,
    new_panels,
    save,
    shared_legend,
    styled,
)
from gdpfed.report.report_tables import chance_lines, tables_of
from gdpfed.runs.file_formats import (
    ACCURACY_PICTURE,
)

FINAL_PICTURE = "final_accuracy.png"
BUDGETS_PICTURE = "budgets.png"
COST_PICTURE = "cost.png"


def draw_all(lines: Sequence[Line], directory: Path) -> list[str]:
    """Draw all pictures of a comparison into a directory; return the file names."""
    pictures = {
        ACCURACY_PICTURE: accuracy_picture,
        FINAL_PICTURE: final_picture,
        BUDGETS_PICTURE: budgets_picture,
        COST_PICTURE: cost_picture,
    }
    for name, draw in pictures.items():
        draw(lines, directory / name)
    points = cost_points(lines)
    if points:
        draw_cost(points, without_privacy(lines), one_metric(lines), directory / EPSILON_PICTURE)
    return [*([EPSILON_PICTURE] if points else []), *pictures]


@styled
def accuracy_picture(lines: Sequence[Line], path: Path) -> None:
    """Draw each configuration's metric after every round: the mean, and a band of one standard deviation."""
    figure = new_figure(6.4, 3.8)
    (axes,) = new_panels(figure, 1, columns=1)
    styles = method_styles([line.runs[0].settings["method"]["name"] for line in lines])
    curves = [(style, line.label, line.results()) for style, line in zip(styles, lines, strict=True)]
    draw_curves(axes, curves, one_metric(lines))
    shared_legend(figure, [axes])
    save(figure, path)


@styled
def final_picture(lines: Sequence[Line], path: Path) -> None:
    """Draw the metric of each configuration after the last round."""
    figure = new_figure(6.4, height_inches(len(lines)))
    (axes,) = new_panels(figure, 1, columns=1)
    values = [line.final_result for line in lines]
    bounds = [value.mean + sign * (value.stddev or 0.0) for value in values for sign in (-1, 1)]
    shown = MetricDisplay.of(one_metric(lines))
    low, high = shown.axis(bounds)
    unit = f"{shown.heading} after the last round, axis from {low:.4g} to {high:.4g}"
    draw_dots(axes, _labels(lines), [Dots(shown.words, values)], unit)
    axes.set_xlim(low, high)
    save(figure, path)


@styled
def budgets_picture(lines: Sequence[Line], path: Path) -> None:
    """Draw the spent epsilon of every group next to its budget."""
    names, spent, budgets = [], [], []
    for line in lines:
        for index, group in enumerate(line.runs[0].plan["groups"]):
            names.append(f"{line.label}, group {index}")
            epsilons = [run.records[-1].spent_epsilon[index] for run in line.runs]
            bounded = [epsilon for epsilon in epsilons if epsilon is not None]
            spent.append(Spread.of(bounded) if bounded else None)
            budgets.append(None if group["epsilon"] is None else Spread.of([group["epsilon"]]))
    figure = new_figure(6.4, height_inches(len(names), kinds=2))
    (axes,) = new_panels(figure, 1, columns=1)
    draw_dots(axes, names, [Dots("spent", spent), Dots("budget", budgets, hollow=True)], "epsilon")
    axes.set_xlim(left=0)
    shared_legend(figure, [axes])
    save(figure, path)


@styled
def cost_picture(lines: Sequence[Line], path: Path) -> None:
    """Draw three panels with the noise, the traffic and the time of each configuration."""
    panels: list[tuple[str, dict[str, Callable[[FinishedRun], float | None]]]] = [
        ("noise magnitude Λ", {"Λ": noise_magnitude}),
        ("kB a client and round", {"up": kilobytes_up, "down": kilobytes_down}),
        ("seconds a round", {"time": lambda run: run.seconds_a_round}),
    ]
    figure = new_figure(8.0, height_inches(len(lines), kinds=2))
    axes = new_panels(figure, len(panels), columns=len(panels), sharey=True)
    for panel, (unit, measures) in zip(axes, panels, strict=True):
        dots = [
            Dots(label, [figure_of(line, measure) for line in lines]) for label, measure in measures.items()
        ]
        draw_dots(panel, _labels(lines), dots, unit)
        panel.set_xlim(left=0)
    shared_legend(figure, [axes[1]])
    save(figure, path)


def _labels(lines: Sequence[Line]) -> list[str]:
    return [line.label for line in lines]


REPORT_FILE, SEEDS_FILE = "report.md", "seeds.csv"


def write_report(lines: Sequence[Line], directory: Path) -> Path:
    """Write a comparison's tables and pictures into a directory; return the Markdown file.

    Raises ReportError: the file system refuses.
    """
    tables = tables_of(lines)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            (directory / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8")
        (directory / SEEDS_FILE).write_text(seeds_table(lines).to_csv(), encoding="utf-8")
        pictures = "\n\n".join(f"![{Path(name).stem}]({name})" for name in draw_all(lines, directory))
        named = [(line.label, ", ".join(printable(str(run.path)) for run in line.runs)) for line in lines]
        runs = "\n".join(f"* {label}: {paths}" for label, paths in named)
        texts = "\n".join(table.to_markdown() for table in tables.values())
        at_chance = "".join(f"{line}\n\n" for line in chance_lines(lines))
        text = f"# Comparison of runs\n\n{at_chance}{texts}\n{pictures}\n\nRuns:\n\n{runs}\n"
        (directory / REPORT_FILE).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(
            f"--output {directory} cannot be written: {error.strerror}; name another folder"
        ) from None
    return directory / REPORT_FILE
