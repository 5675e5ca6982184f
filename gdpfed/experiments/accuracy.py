"""Final accuracies as a table, ours beside the published ones."""

from collections.abc import Sequence

from conf.experiment import Experiment
from gdpfed.experiments.footnotes import Footnotes
from gdpfed.experiments.layout import Panel, panels_of
from gdpfed.experiments.outcomes import Outcome
from gdpfed.report.comparison import ABSENT
from gdpfed.report.table import Table

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


def accuracy_tables(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome]
) -> list[Table]:
    """One table a panel: a row a choice, a column a data set or column choice."""
    return [_table(experiment, panel, outcomes) for panel in panels_of(experiment, datasets)]


def published_accuracy(experiment: Experiment, dataset: str, row: str, column: str) -> float | None:
    """What the paper prints there, in percent; it has none by column."""
    if column:
        return None
    return experiment.published.accuracy.get(row, {}).get(dataset)


def _table(experiment: Experiment, panel: Panel, outcomes: Sequence[Outcome]) -> Table:
    by_place = {outcome.cell.place: outcome for outcome in outcomes}
    footnotes = Footnotes()
    headings, rows = [experiment.row_heading], [[choice.label] for choice in experiment.rows.values()]
    for (dataset, column), heading in zip(panel.columns, panel.headings, strict=True):
        headings.append(f"{heading} (%)")
        for row, name in zip(rows, experiment.rows, strict=True):
            row.append(_cell(by_place[dataset, name, column], footnotes))
        published = [published_accuracy(experiment, dataset, name, column) for name in experiment.rows]
        if any(published):
            headings.append("paper (%)")
            for row, figure in zip(rows, published, strict=True):
                row.append(ABSENT if figure is None else f"{figure:.2f}")
    return Table(panel.titled(experiment.title), headings, rows, _note(outcomes, footnotes))


def _cell(outcome: Outcome, footnotes: Footnotes) -> str:
    if outcome.line is None:
        return footnotes.mark(outcome.reason or "")
    some = "" if len(outcome.finished) == len(outcome.runs) else f" [{len(outcome.finished)}]"
    return outcome.line.final_accuracy.text() + some


def _note(outcomes: Sequence[Outcome], footnotes: Footnotes) -> str:
    seeds = len(outcomes[0].runs)
    spread = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ", one seed"
    partial = any(0 < len(outcome.finished) < len(outcome.runs) for outcome in outcomes)
    some = " [k]: over the k seeds that are finished." if partial else ""
    return "\n".join(filter(None, [f"Test accuracy after the last round{spread}.{some}", footnotes.text()]))


def accuracy_figures(experiment: Experiment, outcomes: Sequence[Outcome]) -> Table:
    """One cell a row, to compute with."""
    return Table(experiment.title, FIGURE_HEADINGS, [_figures(experiment, each) for each in outcomes])


def _figures(experiment: Experiment, outcome: Outcome) -> list[str]:
    dataset, row, column = outcome.cell.place
    spread = outcome.line.final_accuracy if outcome.line else None
    published = published_accuracy(experiment, dataset, row, column)
    return [
        *(dataset, row, column),
        "" if spread is None else f"{spread.mean:.4f}",
        "" if spread is None or spread.stddev is None else f"{spread.stddev:.4f}",
        str(len(outcome.finished)),
        "" if published is None else f"{published:g}",
        outcome.reason or "",
    ]
