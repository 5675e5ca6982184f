"""Experiments on H2FDP's choice of steps and participants, without training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gdpfed.errors import InputError
from gdpfed.extras.experiments.cells import Cell
from gdpfed.extras.experiments.definitions import Experiment
from gdpfed.extras.experiments.presentation import Footnotes, Presentation
from gdpfed.extras.h2fdp.control import solve
from gdpfed.extras.h2fdp.controlled import problem_of, trust_of
from gdpfed.extras.h2fdp.h2fdp import H2FDP
from gdpfed.extras.h2fdp.subnet_mechanisms import mechanism_of
from gdpfed.extras.h2fdp.subnet_sums import Trust
from gdpfed.extras.h2fdp.subnets import sizes_of_subnets
from gdpfed.methods import METHODS
from gdpfed.report.console import Table
from gdpfed.report.metric_display import dataset_label
from gdpfed.report.plots import new_figure, new_panels, save, styled

FIGURE_HEADINGS = ("dataset", "row", "column", "quantity", "value")
PANELS = ("tau", "devices", "energy (J)", "delay (s)")


@dataclass(frozen=True)
class Found:
    """The result of one configuration in an experiment: steps, participants, costs and noise."""

    figures: Mapping[str, float]


Findings = Sequence[tuple[Cell, Found | str]]


def present_control(experiment: Experiment, datasets: Sequence[str], cells: Sequence[Cell]) -> Presentation:
    """Make result tables: local steps, participants, energy, delay and noise of each configuration."""
    findings = [(cell, _found_or_reason(cell)) for cell in cells]
    rows = [
        [cell.dataset, cell.row, cell.column, name, f"{value:.8g}"]
        for cell, found in findings
        if isinstance(found, Found)
        for name, value in found.figures.items()
    ]
    places = [(name, column) for name in datasets for column in [*experiment.columns] or [""]]
    return Presentation(
        tables=[_table(experiment, *place, findings) for place in places],
        figures=Table(experiment.title, FIGURE_HEADINGS, rows),
        draw=partial(_draw, experiment, places[0], findings),
    )


def _found_or_reason(cell: Cell) -> Found | str:
    config = cell.config
    if not issubclass(METHODS.get(config.method.name), H2FDP):
        return f"method={config.method.name} has no subnets under a radio model"
    try:
        problem = problem_of(config)
    except InputError as error:
        return str(error)
    trust = trust_of(config, mechanism_of(config))
    drawn = config.method.participants or sizes_of_subnets(config)
    sizes: dict[Trust, int] = dict(zip(trust, drawn, strict=True))

    # Energy, delay and noise of these steps and participants alone, among which nothing is chosen.
    tau, one_size = config.training.local_steps, {word: [size] for word, size in sizes.items()}
    chosen = solve(replace(problem, local_steps=[tau], sizes=one_size))
    figures: dict[str, float] = {
        "tau": tau,
        "sums a round": problem.windows(tau),
        **{f"s, {word}": size for word, size in sizes.items()},
        "devices": sum(problem.subnets[word] * size for word, size in sizes.items()),
        "rounds": problem.total_steps / tau,
        "energy (J)": chosen.cost.joules,
        "delay (s)": chosen.cost.seconds,
        "nu": chosen.noise,
    }
    return Found(figures)


def _table(experiment: Experiment, dataset: str, column: str, findings: Findings) -> Table:
    footnotes = Footnotes()
    own = [(cell, found) for cell, found in findings if (cell.dataset, cell.column) == (dataset, column)]
    headings: dict[str, None] = {}
    for _, found in own:
        if isinstance(found, Found):
            headings |= dict.fromkeys(found.figures)
    ordered = sorted(headings, key=lambda name: not name.startswith(("tau", "sums", "s, ")))
    rows = []
    for cell, found in own:
        if isinstance(found, str):
            cells = [footnotes.mark(found), *[""] * max(0, len(ordered) - 1)]
        else:
            values = [found.figures.get(name) for name in ordered]
            cells = ["" if value is None else f"{value:.4g}" for value in values]
        rows.append([experiment.rows[cell.row].label, *cells])
    choice = f", {experiment.columns[column].label}" if column else ""
    title = f"{experiment.title}, {dataset_label(dataset)}{choice}"
    return Table(title, [experiment.row_heading, *ordered], rows, footnotes.text())


@styled
def _draw(experiment: Experiment, place: tuple[str, str], findings: Findings, path: Path) -> None:
    """Draw a panel for each quantity, with a bar for each table row."""
    own = [
        (experiment.rows[cell.row].label, found.figures)
        for cell, found in findings
        if (cell.dataset, cell.column) == place and isinstance(found, Found)
    ]
    figure = new_figure(8.0, 1.2 + 0.5 * len(own))
    for axes, name in zip(new_panels(figure, len(PANELS), columns=2), PANELS, strict=True):
        axes.barh([label for label, _ in own], [figures[name] for _, figures in own])
        axes.invert_yaxis()
        axes.set_title(name)
        axes.grid(axis="x", alpha=0.3)
    save(figure, path)
