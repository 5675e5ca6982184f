"""Runs of a sweep or an experiment: their directories, their state, and a lock for one process."""

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from conf.schema import Config
from gdpfed.errors import ExperimentError, GDPFedError
from gdpfed.extras.experiments.cells import Cell
from gdpfed.files import holds_files
from gdpfed.report.comparison import Line, computed_settings
from gdpfed.report.finished_run import FinishedRun, read_run, read_settings
from gdpfed.runs.directory import RunDirectory
from gdpfed.runs.file_formats import CHECKPOINT_FILE, CONFIG_FILE, MODEL_FILE

RUNS_DIRECTORY = "runs"
DIGEST_LENGTH = 10
LOCK_FILE = ".lock"
NOT_YET = "not run yet"
NAMED = ("dataset", "method", "run.seed")
"""Overrides of which the name of every run's directory tells."""
MOST_WORDS = 100


@dataclass(frozen=True, eq=False)
class Run:
    """One training run of a sweep or an experiment.

    `label`: what tells it from them. `config`: its configuration. `path`: where its files are or will be; the
    same for the same configuration.
    """

    label: str
    config: Config
    path: Path

    @property
    def finished(self) -> bool:
        """Whether the training has ended."""
        return (self.path / MODEL_FILE).is_file()

    def to_train(self) -> Config:
        """Return the configuration that starts the run, or resumes it from its files.

        Raises ExperimentError, RunError: the directory holds something else, or another process is at it.
        """
        self.check()
        if not (self.path / CONFIG_FILE).exists():
            return self._with(directory=str(self.path))
        if (self.path / CHECKPOINT_FILE).exists():
            return self._with(resume=str(self.path))
        # Stopped before its first round could be charged: nothing to continue, nothing spent.
        with RunDirectory(self.path).held():
            shutil.rmtree(self.path)
        return self._with(directory=str(self.path))

    def check(self) -> None:
        """Raise ExperimentError if the directory contains another run or foreign files.

        Raises:
            ExperimentError: it holds another run, or files that are not of a run.
            ReportError: it holds this run, finished and damaged.
        """
        if not self.path.is_dir() or not holds_files(self.path):
            return
        saved = read_settings(self.path)
        if saved is None:
            raise ExperimentError(
                f"{self.path} holds files that are not of a run: move it away, or choose another --output"
            )
        if computed_settings(saved) != computed_settings(asdict(self.config)):
            raise ExperimentError(
                f"{self.path} holds a run of another configuration: move it away, or choose another --output"
            )
        if self.finished:
            read_run(self.path)

    def _with(self, *, directory: str | None = None, resume: str | None = None) -> Config:
        return replace(self.config, run=replace(self.config.run, directory=directory, resume=resume))


R = TypeVar("R", bound=Run)


@dataclass(frozen=True, eq=False)
class CellRun(Run):
    """A training run of one cell of a table, with one seed."""

    cell: Cell

    @property
    def seed(self) -> int:
        """The seed of the initial model, of the partition of data and of the batches."""
        return self.config.run.seed


def runs_of(cells: Iterable[Cell], num_seeds: int, output: Path) -> list[CellRun]:
    """Return a run for each cell and seed, ordered by seed, so that a first table is ready early."""
    chosen, runs = list(cells), []
    for seed in range(num_seeds):
        for cell in chosen:
            config = replace(cell.config, run=replace(cell.config.run, seed=seed))
            path = output / RUNS_DIRECTORY / run_name(config)
            runs.append(CellRun(f"{cell.label}, seed {seed}", config, path, cell))
    return runs


def run_name(config: Config, differing: Sequence[str] = ()) -> str:
    """Name a run's directory by data set, method, differing settings, a hash of settings, and seed."""
    settings = json.dumps(computed_settings(asdict(config)), sort_keys=True)
    digest = sha256(settings.encode()).hexdigest()[:DIGEST_LENGTH]
    shown = [word for word in differing if word.partition("=")[0] not in NAMED]
    words = re.sub(r"[^\w.=,+-]", "_", "-".join(shown))[:MOST_WORDS]
    names = [config.dataset.name, config.method.name, words, digest, f"seed{config.run.seed}"]
    return "-".join(filter(None, names))


def distinct(runs: Iterable[R]) -> list[R]:
    """Keep only the first run of each directory; runs with equal configurations share a directory."""
    by_path: dict[Path, R] = {}
    for run in runs:
        by_path.setdefault(run.path, run)
    return list(by_path.values())


@dataclass(frozen=True, eq=False)
class Outcome:
    """A cell of an experiment's table with its finished runs, or the reason why there are none.

    `runs`: all runs that belong to it, finished or not. `finished`: those that are. `reason`: why none of
    them is; None if one is.
    """

    cell: Cell
    runs: tuple[CellRun, ...]
    finished: tuple[FinishedRun, ...]
    reason: str | None

    @property
    def line(self) -> Line | None:
        """The finished runs of a table cell, as a row of a comparison table; None if none are finished."""
        return Line(self.cell.row, self.finished) if self.finished else None


def outcomes_of(
    cells: Sequence[Cell], runs: Sequence[CellRun], errors: Mapping[Path, GDPFedError]
) -> list[Outcome]:
    """Return every cell with its finished runs, or with the reason why there are none.

    Raises ReportError: a damaged run; names its directory.
    """
    outcomes = []
    for cell in cells:
        own = tuple(run for run in runs if run.cell is cell)
        finished = tuple(read_run(run.path) for run in own if run.finished)
        reason = None
        if not finished:
            reason = next((str(errors[run.path]) for run in own if run.path in errors), NOT_YET)
        outcomes.append(Outcome(cell, own, finished, reason))
    return outcomes


def lock_output(output: Path) -> AbstractContextManager[object]:
    """Lock an output directory until the lock is released or this process ends.

    Raises ExperimentError: another process holds it, or it cannot be made.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        return FileLock(output / LOCK_FILE).acquire(blocking=False)
    except Timeout:
        raise ExperimentError(
            f"--output {output} is in use by another command: wait for it, or choose another"
        ) from None
    except OSError as error:
        raise ExperimentError(f"--output {output} cannot be a directory: {error.strerror}") from None
