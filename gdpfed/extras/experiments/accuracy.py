"""Accuracy tables of an experiment beside published values, and pictures over rounds and traffic."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import isnan
from pathlib import Path

from matplotlib.axes import Axes

from gdpfed.extras.experiments.definitions import Choice, Experiment
from gdpfed.extras.experiments.presentation import Footnotes
from gdpfed.extras.experiments.runs import Outcome
from gdpfed.report.comparison import Line
from gdpfed.report.comparison_tables import differences_table
from gdpfed.report.console import Table
from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.metric_display import ABSENT, Spread, dataset_label
from gdpfed.report.plots import (
    Dots,
    draw_curves,
    draw_dots,
    error_bars,
    height_inches,
    method_styles,
    new_figure,
    new_panels,
    save,
    shared_legend,
    styled,
)

FIGURE_HEADINGS = (
    "dataset",
    "row",
    "column",
    "accuracy_percent",
    "stddev_percent",
    "seeds",
    "published_percent",
    "missing",
)
PANEL_WIDTH_INCHES = 3.4
PANEL_HEIGHT_INCHES = 2.7
PANELS_A_ROW = 2
ACCURACY = "test accuracy (%)"
DODGE = 0.03

Lines = Mapping[tuple[str, str, str], Outcome]
DrawPanel = Callable[[Axes, Experiment, str, Lines], None]


def accuracy_tables(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome]
) -> list[Table]:
    """Return tables of test accuracy: one for each data set, or one table with data sets as its columns.

    Tables of differences follow, where the experiment compares with a row or with a column.
    """
    tables = []
    if experiment.columns:
        for name in datasets:
            headings = {
                (name, column): f"{experiment.column_heading} {choice.label}"
                for column, choice in experiment.columns.items()
            }
            title = f"{experiment.title}, {dataset_label(name)}"
            tables.append(_table(experiment, title, headings, outcomes))
    else:
        headings = {(name, ""): dataset_label(name) for name in datasets}
        tables.append(_table(experiment, experiment.title, headings, outcomes))
    rows = _best_differences if experiment.best_of_columns else _differences
    return [*tables, *rows(experiment, outcomes), *_column_differences(experiment, outcomes)]


def _differences(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[Table]:
    """Return tables of each row's accuracy difference from the reference row, if both have several seeds."""
    tables = []
    for reference in outcomes:
        dataset, row, column = reference.cell.place
        if row != experiment.compared_with or reference.line is None:
            continue
        beside = [
            each for each in outcomes if each is not reference and each.cell.place[::2] == (dataset, column)
        ]
        table = differences_table(
            [
                Line(experiment.rows[each.cell.row].label, each.line.runs)
                for each in (reference, *beside)
                if each.line is not None
            ]
        )
        if table is not None:
            where = ", ".join(
                filter(None, [dataset_label(dataset), column and experiment.columns[column].label])
            )
            tables.append(replace(table, title=f"{table.title}, {where}"))
    return tables


def _best_differences(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[Table]:
    """Return a table for each data set of how each row's best column differs from the reference row's."""
    tables = []
    for dataset in dict.fromkeys(outcome.cell.dataset for outcome in outcomes):
        lines = {}
        for row, choice in experiment.rows.items():
            best = _best(each.line for each in outcomes if each.cell.place[:2] == (dataset, row))
            if best is not None:
                lines[row] = Line(choice.label, best.runs)
        reference = lines.pop(experiment.compared_with, None)
        table = None if reference is None else differences_table([reference, *lines.values()])
        if table is not None:
            heading = experiment.column_heading.removesuffix(" ×")
            which = f"each at its best {heading}, {dataset_label(dataset)}"
            tables.append(replace(table, title=f"{table.title}, {which}"))
    return tables


def _best(lines: Iterable[Line | None]) -> Line | None:
    """Return the line with the best mean: too good, as test data select it; None where no run is finished."""
    finished = (line for line in lines if line is not None)
    return max(finished, key=lambda line: line.final_result.mean, default=None)


def _column_differences(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[Table]:
    """Return tables of each row's accuracy difference between a column and the reference column."""
    lines = {
        each.cell.place: Line(experiment.rows[each.cell.row].label, each.line.runs)
        for each in outcomes
        if each.line is not None
    }
    tables: dict[str, Table] = {}
    for (dataset, row, column), line in lines.items():
        reference = lines.get((dataset, row, experiment.compared_column))
        if reference is None or reference is line:
            continue
        table = differences_table([reference, line])
        if table is not None:
            this, other = (experiment.columns[name].label for name in (column, experiment.compared_column))
            heading = f"{experiment.column_heading} {this}: differences to {other}, by seed"
            title = f"{heading[:1].upper()}{heading[1:]}, {dataset_label(dataset)}"
            before = tables.get(title, replace(table, title=title, rows=[]))
            tables[title] = replace(before, rows=[*before.rows, *table.rows])
    return list(tables.values())


def published_accuracy(experiment: Experiment, dataset: str, row: str, column: str) -> float | None:
    """Return the accuracy that the paper printed, in percent; None if there is none."""
    if column:
        return None
    return experiment.published.accuracy.get(row, {}).get(dataset)


def _table(
    experiment: Experiment, title: str, columns: Mapping[tuple[str, str], str], outcomes: Sequence[Outcome]
) -> Table:
    by_place = {outcome.cell.place: outcome for outcome in outcomes}
    footnotes = Footnotes()
    headings, rows = [experiment.row_heading], [[choice.label] for choice in experiment.rows.values()]
    for (dataset, column), heading in columns.items():
        headings.append(f"{heading} (%)")
        for row, name in zip(rows, experiment.rows, strict=True):
            outcome = by_place[dataset, name, column]
            if outcome.line is None:
                row.append(footnotes.mark(outcome.reason or ""))
            else:
                partly = "" if len(outcome.finished) == len(outcome.runs) else f" [{len(outcome.finished)}]"
                row.append(outcome.line.final_result.text() + partly)
        published = [published_accuracy(experiment, dataset, name, column) for name in experiment.rows]
        if any(published):
            headings.append("paper (%)")
            for row, figure in zip(rows, published, strict=True):
                row.append(ABSENT if figure is None else f"{figure:.2f}")
    if experiment.best_of_columns:
        headings.append("best")
        for row, name in zip(rows, experiment.rows, strict=True):
            best = _best(by_place[dataset, name, column].line for dataset, column in columns)
            row.append(ABSENT if best is None else best.final_result.text())
    seeds = len(outcomes[0].runs)
    over = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ", one seed"
    partial = any(0 < len(outcome.finished) < len(outcome.runs) for outcome in outcomes)
    some = " [k]: over the k seeds that are finished." if partial else ""
    note = filter(None, [f"Test accuracy after the last round{over}.{some}", footnotes.text()])
    return Table(title, headings, rows, "\n".join(note))


def accuracy_figures(experiment: Experiment, outcomes: Sequence[Outcome]) -> Table:
    """Return accuracies as a long table: one row for each data set, row and column of the experiment."""
    rows = []
    for outcome in outcomes:
        dataset, row, column = outcome.cell.place
        spread = outcome.line.final_result if outcome.line else None
        published = published_accuracy(experiment, dataset, row, column)
        rows.append(
            [
                *(dataset, row, column),
                "" if spread is None else f"{spread.mean:.4f}",
                "" if spread is None or spread.stddev is None else f"{spread.stddev:.4f}",
                str(len(outcome.finished)),
                "" if published is None else f"{published:g}",
                outcome.reason or "",
            ]
        )
    return Table(experiment.title, FIGURE_HEADINGS, rows)


def accuracy_picture(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome], path: Path
) -> None:
    """Draw final accuracies beside published ones, with one panel for each data set."""
    if experiment.columns:
        _panels(experiment, datasets, outcomes, path, _over_columns, PANEL_HEIGHT_INCHES)
    else:
        height = height_inches(len(experiment.rows), kinds=2)
        _panels(experiment, datasets, outcomes, path, _dots, height)


def convergence_picture(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome], path: Path
) -> None:
    """Draw accuracy over rounds with a band over seeds, with one panel for each data set."""
    _panels(experiment, datasets, outcomes, path, _curves, PANEL_HEIGHT_INCHES)


@styled
def _panels(
    experiment: Experiment,
    datasets: Sequence[str],
    outcomes: Sequence[Outcome],
    path: Path,
    draw: DrawPanel,
    height: float,
) -> None:
    """Draw one panel for each data set that has finished runs."""
    shown = [name for name in datasets if any(o.finished for o in outcomes if o.cell.dataset == name)]
    columns = min(PANELS_A_ROW, len(shown))
    width = PANEL_WIDTH_INCHES * max(columns, 1) + (2.4 if columns == 1 else 0.6)
    figure = new_figure(width, height * -(-len(shown) // columns))
    panels = new_panels(figure, len(shown), columns=columns, sharey=draw is _dots)
    by_place = {outcome.cell.place: outcome for outcome in outcomes}
    for axes, name in zip(panels, shown, strict=True):
        axes.set_title(dataset_label(name))
        draw(axes, experiment, name, by_place)
    shared_legend(figure, panels)
    save(figure, path)


def _dots(axes: Axes, experiment: Experiment, dataset: str, outcomes: Lines) -> None:
    ours = [_accuracy(outcomes[dataset, row, ""]) for row in experiment.rows]
    published = [published_accuracy(experiment, dataset, row, "") for row in experiment.rows]
    kinds = [Dots("this code", ours)]
    if any(published):
        printed = [None if figure is None else Spread.of([figure]) for figure in published]
        kinds.append(Dots("paper", printed, hollow=True))
    draw_dots(axes, [choice.label for choice in experiment.rows.values()], kinds, ACCURACY)


def _over_columns(axes: Axes, experiment: Experiment, dataset: str, outcomes: Lines) -> None:
    styles = method_styles([_method(choice) for choice in experiment.rows.values()])
    for index, (row, choice) in enumerate(experiment.rows.items()):
        spreads = [_accuracy(outcomes[dataset, row, column]) for column in experiment.columns]
        shift = DODGE * (index - (len(experiment.rows) - 1) / 2)
        points = [(place + shift, each) for place, each in enumerate(spreads) if each is not None]
        axes.errorbar(
            [place for place, _ in points],
            [spread.mean for _, spread in points],
            yerr=error_bars([spread for _, spread in points]),
            capsize=2,
            elinewidth=0.8,
            label=choice.label,
            **styles[index],
        )
    # Labels of several words would run into each other: what follows the last comma has a line of its own.
    labels = [",\n".join(column.label.rsplit(", ", 1)) for column in experiment.columns.values()]
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel(experiment.column_heading)
    axes.set_ylabel(ACCURACY)
    axes.grid(axis="y", alpha=0.3)


def _curves(axes: Axes, experiment: Experiment, dataset: str, outcomes: Lines) -> None:
    styles = method_styles([_method(choice) for choice in experiment.rows.values()])
    curves = []
    for style, (row, choice) in zip(styles, experiment.rows.items(), strict=True):
        line = outcomes[dataset, row, ""].line
        if line is not None:
            curves.append((style, choice.label, line.results()))
    draw_curves(axes, curves)


def _method(choice: Choice) -> str:
    """Return the method that a table row chooses; "" if it chooses none."""
    chosen = [word.partition("=")[2] for word in choice.overrides if word.startswith("method=")]
    return chosen[-1] if chosen else ""


def _accuracy(outcome: Outcome) -> Spread | None:
    return outcome.line.final_result if outcome.line else None


MEGA = 1e6
AS_SENT = 4.0
"""Bytes a coordinate of an update, where a run does not say what was sent."""


def megabytes(run: FinishedRun) -> list[float]:
    """Return how many MB a client has sent and received by the end of each round, on average over clients.

    A round costs a client that takes part the model and an update, and the mean rate of the plan's groups
    says how often that is. Zeros that fill a sum cost as much, and one that only takes noise back sends as
    much as an update.
    """
    groups = run.plan["groups"]
    clients = sum(group["clients"] for group in groups)
    rate = sum(group["expected_cohort_size"] for group in groups) / clients
    sent = run.upload_bytes if run.upload_bytes is not None else AS_SENT * run.dimension
    both = run.download_bytes + sent
    beside = accumulate(sum(record.filled) * both + record.num_corrections * sent for record in run.records)
    return [(number * rate * both + more / clients) / MEGA for number, more in enumerate(beside, start=1)]


@styled
def traffic_picture(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome], path: Path
) -> None:
    """Draw accuracy over the MB that a client sent and received; one panel for each data set and column."""
    columns = {name: choice.label for name, choice in experiment.columns.items()} or {"": ""}
    finished = {outcome.cell.place: outcome for outcome in outcomes if outcome.finished}
    shown = [
        (dataset, column)
        for dataset in datasets
        for column in columns
        if any(place[0] == dataset and place[2] == column for place in finished)
    ]
    wide = min(len(columns), len(shown))
    size = PANEL_WIDTH_INCHES * wide + 0.6, PANEL_HEIGHT_INCHES * -(-len(shown) // wide)
    figure = new_figure(*size)
    panels = new_panels(figure, len(shown), columns=wide, sharey=False)
    styles = method_styles([_method(choice) for choice in experiment.rows.values()])
    for axes, (dataset, column) in zip(panels, shown, strict=True):
        words = f"\n{experiment.column_heading} {columns[column]}" if column else ""
        axes.set_title(f"{dataset_label(dataset)}{words}")
        for style, (row, choice) in zip(styles, experiment.rows.items(), strict=True):
            outcome = finished.get((dataset, row, column))
            if outcome is not None:
                results = zip(*(run.results for run in outcome.finished), strict=True)
                means = [Spread.of(list(each)).mean for each in results]
                points = zip(megabytes(outcome.finished[0]), means, strict=True)
                evaluated = list(zip(*(each for each in points if not isnan(each[1])), strict=True))
                axes.plot(*evaluated, label=choice.label, **{**style, "marker": ""})
        axes.set_xlabel("received and sent by a client, on average (MB)")
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)
