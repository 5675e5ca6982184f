"""Accuracy over the bytes that a client has received and sent."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from gdpfed.experiments.definitions import Experiment
from gdpfed.experiments.runs import Outcome
from gdpfed.report.metric_display import Spread, dataset_label
from gdpfed.report.style import method_styles, new_figure, new_panels, save, shared_legend, styled

PANEL_WIDTH_INCHES = 3.4
PANEL_HEIGHT_INCHES = 2.7
MEGA = 1e6
AS_SENT = 4.0
"""Bytes a coordinate of an update, where a run does not say what was sent."""


def megabytes(outcome: Outcome) -> list[float]:
    """Return what a client has received and sent after every round, on average over all clients, in MB.

    A round costs a client that takes part the model and an update, and the mean rate of the plan's groups
    says how often that is. One that only takes noise back sends as much as an update.
    """
    run = outcome.finished[0]
    groups = run.plan["groups"]
    clients = sum(group["clients"] for group in groups)
    rate = sum(group["expected_cohort_size"] for group in groups) / clients
    sent = run.upload_bytes if run.upload_bytes is not None else AS_SENT * run.dimension
    corrections = accumulate(record.num_corrections for record in run.records)
    return [
        (number * rate * (run.download_bytes + sent) + taken_back / clients * sent) / MEGA
        for number, taken_back in enumerate(corrections, start=1)
    ]


@styled
def traffic_picture(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome], path: Path
) -> None:
    """Accuracies of finished cells over the megabytes: a panel for each data set and column."""
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
    styles = method_styles([_method(choice.overrides) for choice in experiment.rows.values()])
    for axes, (dataset, column) in zip(panels, shown, strict=True):
        words = f"\n{experiment.column_heading} {columns[column]}" if column else ""
        axes.set_title(f"{dataset_label(dataset)}{words}")
        for style, (row, choice) in zip(styles, experiment.rows.items(), strict=True):
            outcome = finished.get((dataset, row, column))
            if outcome is not None:
                results = zip(*(run.results for run in outcome.finished), strict=True)
                means = [Spread.of(list(each)).mean for each in results]
                axes.plot(megabytes(outcome), means, label=choice.label, **{**style, "marker": ""})
        axes.set_xlabel("received and sent by a client, on average (MB)")
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)


def _method(overrides: Sequence[str]) -> str:
    """The method that a row chooses; an empty name where all rows have one."""
    return next((each.partition("=")[2] for each in overrides if each.startswith("method=")), "")
