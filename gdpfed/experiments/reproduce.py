"""One experiment from its file to its table: train what is missing, plan what needs no training, write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from conf.experiment import Experiment
from gdpfed.errors import ExperimentError
from gdpfed.experiments.accuracy import accuracy_figures, accuracy_tables
from gdpfed.experiments.accuracy_pictures import accuracy_picture, convergence_picture
from gdpfed.experiments.cells import Cell, cells_of
from gdpfed.experiments.crew import Crew
from gdpfed.experiments.files import changes_note, planned_entry, trained_entry, write_experiment
from gdpfed.experiments.noise import present_noise
from gdpfed.experiments.outcomes import Outcome, outcomes_of
from gdpfed.experiments.output_lock import the_only_one
from gdpfed.experiments.presentation import Presentation
from gdpfed.experiments.progress import ExperimentProgress
from gdpfed.experiments.rates import present_rates
from gdpfed.experiments.runner import train_missing
from gdpfed.experiments.runs import CellRun, runs_of
from gdpfed.experiments.setting import Setting

PLANNED = {"noise": present_noise, "rates": present_rates}
PICTURES = {"accuracy": accuracy_picture, "convergence": convergence_picture}


@dataclass(frozen=True)
class Reproduction:
    """One call of ``gdpfed reproduce``.

    Attributes:
        experiment: what to show.
        setting: what to change in every cell.
        num_seeds: runs a cell, with seeds 0, 1, ...
        output: where runs and tables go.
        command: the command line, to say how to continue.
    """

    experiment: Experiment
    setting: Setting
    num_seeds: int
    output: Path
    command: str

    @property
    def directory(self) -> Path:
        """Where this experiment's table goes; the runs lie beside it, shared with other experiments."""
        return self.output / self.experiment.name

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets to show."""
        return self.setting.datasets_of(self.experiment)


def reproduce(request: Reproduction, hire: Callable[[int], Crew], console: Console) -> bool:
    """Do what is asked and print the table; returns whether every cell is there.

    Args:
        request: what is asked.
        hire: who trains so many missing runs.
        console: for progress and the table.

    Raises:
        ConfigError, PrivacyError, ExperimentError, ReportError: one line; before anything is trained.
        KeyboardInterrupt: with a line that says how to continue; what is finished is written.
    """
    if request.num_seeds < 1:
        raise ExperimentError(f"--seeds {request.num_seeds} must be at least 1")
    cells = cells_of(request.experiment, request.setting)
    with the_only_one(request.output):
        if request.experiment.trained:
            return _train(request, cells, hire, console)
        _compute(request, cells, console)
        return True


def _compute(request: Reproduction, cells: Sequence[Cell], console: Console) -> None:
    with console.status(f"planning {len(cells)} cells ..."):
        presentation = PLANNED[request.experiment.quantity](request.experiment, request.datasets, cells)
    _write(request, cells, presentation, [planned_entry(cell) for cell in cells], console)


def _train(
    request: Reproduction, cells: Sequence[Cell], hire: Callable[[int], Crew], console: Console
) -> bool:
    runs = runs_of(cells, request.num_seeds, request.output)
    crew = hire(sum(not run.finished for run in runs))
    try:
        with ExperimentProgress(console, request.experiment, runs, crew.num_jobs) as progress:
            reasons = train_missing(runs, crew, progress)
    except KeyboardInterrupt:
        if any(run.finished for run in runs):
            _write_outcomes(request, outcomes_of(cells, runs, {}), console)
        raise KeyboardInterrupt(_how_to_continue(runs, request.command)) from None
    outcomes = outcomes_of(cells, runs, reasons)
    if not any(outcome.finished for outcome in outcomes):
        raise ExperimentError(f"nothing can be run of {request.experiment.name}: {outcomes[0].reason}")
    _write_outcomes(request, outcomes, console)
    return not reasons


def _write_outcomes(request: Reproduction, outcomes: Sequence[Outcome], console: Console) -> None:
    experiment, datasets = request.experiment, request.datasets
    presentation = Presentation(
        tables=accuracy_tables(experiment, datasets, outcomes),
        figures=accuracy_figures(experiment, outcomes),
        draw=partial(PICTURES[experiment.quantity], experiment, datasets, outcomes),
    )
    entries = [trained_entry(outcome, request.directory) for outcome in outcomes]
    _write(request, [outcome.cell for outcome in outcomes], presentation, entries, console)


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
        console.print(changes_note(changes).replace("**", ""))
    console.print(f"Table, picture and configurations are in {request.directory}", soft_wrap=True)


def _how_to_continue(runs: Sequence[CellRun], command: str) -> str:
    finished = sum(run.finished for run in runs)
    return f"interrupted after {finished} of {len(runs)} runs; the same command continues: {command}"
