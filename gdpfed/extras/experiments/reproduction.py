"""Carries out one experiment: trains missing runs or makes plans, and writes all results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from gdpfed.errors import ExperimentError, InputError
from gdpfed.extras.experiments.accuracy import (
    accuracy_figures,
    accuracy_picture,
    accuracy_tables,
    convergence_picture,
    traffic_picture,
)
from gdpfed.extras.experiments.cells import Cell, Setting, cells_of
from gdpfed.extras.experiments.definitions import BENCHMARK, QUANTITIES, Experiment
from gdpfed.extras.experiments.presentation import (
    TRAFFIC_FILE,
    Presentation,
    changes_note,
    planned_entry,
    trained_entry,
    write_experiment,
)
from gdpfed.extras.experiments.run_training import SIMULATION, Launch, Processes, Trainer, train_missing
from gdpfed.extras.experiments.runs import Outcome, distinct, lock_output, outcomes_of, runs_of
from gdpfed.registry import Registry

PLANNED: Registry[Callable[[Experiment, Sequence[str], Sequence[Cell]], Presentation]] = QUANTITIES
PICTURES = {"accuracy": accuracy_picture, "convergence": convergence_picture}

MOST_SEEDS = 1000
ENTRIES = "entries"
"""The folder of what a benchmark has measured of each run."""


@dataclass(frozen=True)
class Reproduction:
    """A call of ``gdpfed reproduce``: an experiment, changes to its settings, and the folder for results.

    Attributes:
        experiment: what to show.
        setting: what to change in every cell.
        num_seeds: runs a cell, with seeds 0, 1, ...
        output: where runs and tables go.
        command: the command line, to say how to continue.
        launch: how runs are trained.
    """

    experiment: Experiment
    setting: Setting
    num_seeds: int
    output: Path
    command: str
    launch: Launch = field(default_factory=Processes)

    def check(self) -> None:
        """Raise ExperimentError if the number of seeds is out of range."""
        if not 1 <= self.num_seeds <= MOST_SEEDS:
            raise ExperimentError(f"--seeds {self.num_seeds} must be from 1 to {MOST_SEEDS}")

    @property
    def directory(self) -> Path:
        """The directory for this experiment's results, next to the runs, which all experiments share."""
        return self.output / self.experiment.name

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets of the experiment that are trained and shown."""
        return self.setting.datasets_of(self.experiment)


def reproduce(request: Reproduction, console: Console, trainer: Trainer = SIMULATION) -> bool:
    """Train or plan an experiment and print its table; return whether every run is finished.

    `request`: what is asked. `console`: for progress and the table. `trainer`: loads data and trains.

    Raises:
        ConfigError, PrivacyError, ExperimentError, ReportError: one line; before anything is trained.
        RunError: nothing is finished, and a training has failed.
        KeyboardInterrupt: with a line that says how to continue; what is finished is written.
    """
    request.check()
    cells = cells_of(request.experiment, request.setting)
    with lock_output(request.output):
        if not request.experiment.trained:
            with console.status(f"planning {len(cells)} cells ..."):
                plan = PLANNED.get(request.experiment.quantity)
                presentation = plan(request.experiment, request.datasets, cells)
            _write(request, cells, presentation, [planned_entry(cell) for cell in cells], console)
            return True
        cell_runs = runs_of(cells, request.num_seeds, request.output)
        runs = distinct(cell_runs)
        try:
            errors, before = train_missing(
                runs,
                trainer,
                request.launch,
                console,
                request.command,
                request.output,
                given=request.setting.overrides,
            )
        except KeyboardInterrupt:
            if any(run.finished for run in runs):
                _write_outcomes(request, outcomes_of(cells, cell_runs, {}), console)
            raise
        outcomes = outcomes_of(cells, cell_runs, errors)
        if not any(outcome.finished for outcome in outcomes):
            error = next(iter(errors.values()))
            if isinstance(error, InputError):
                raise ExperimentError(f"{request.experiment.name} has no run that can start: {error}")
            raise error
        _write_outcomes(request, outcomes, console)
        if before:
            console.print(before, soft_wrap=True)
        return not errors


def _write_outcomes(request: Reproduction, outcomes: Sequence[Outcome], console: Console) -> None:
    entries = [trained_entry(outcome, request.directory) for outcome in outcomes]
    cells = [outcome.cell for outcome in outcomes]
    _write(request, cells, presentation_of(request, outcomes, console), entries, console)


def presentation_of(request: Reproduction, outcomes: Sequence[Outcome], console: Console) -> Presentation:
    """Make tables, numbers and pictures from trained runs.

    Raises ReportError, AuditError, LearningError: a benchmark cannot read a run or its data.
    """
    experiment, datasets = request.experiment, request.datasets
    if experiment.quantity == BENCHMARK:
        # What audits and evaluates a run: tables of accuracies do without.
        from gdpfed.extras.experiments.benchmark import benchmark_presentation
        from gdpfed.extras.experiments.benchmark_entries import entries_of

        runs = [run for outcome in outcomes for run in outcome.runs if run.finished]
        measured = entries_of(runs, request.directory / ENTRIES)
        entries = list(track(measured, "audit", total=len(runs), console=console))
        return benchmark_presentation(experiment, datasets, outcomes, entries)
    traffic = {TRAFFIC_FILE: partial(traffic_picture, experiment, datasets, outcomes)}
    return Presentation(
        tables=accuracy_tables(experiment, datasets, outcomes),
        figures=accuracy_figures(experiment, outcomes),
        draw=partial(PICTURES[experiment.quantity], experiment, datasets, outcomes),
        more=traffic if experiment.traffic else {},
    )


def _write(
    request: Reproduction,
    cells: Sequence[Cell],
    presentation: Presentation,
    entries: Sequence[dict[str, object]],
    console: Console,
) -> None:
    changes = request.setting.changes([cell.config for cell in cells])
    write_experiment(
        request.directory, request.experiment, presentation, entries, changes=changes, command=request.command
    )
    for table in presentation.tables:
        console.print(table.to_rich())
    if changes:
        console.print(changes_note(request.experiment, changes).replace("**", ""))
    console.print(f"Table, picture and configurations are in {request.directory}", soft_wrap=True)
