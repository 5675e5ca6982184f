"""The run directory of a cell and a seed: a stable name, and what is in it already."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from conf.schema import Config
from gdpfed.errors import ExperimentError
from gdpfed.experiments.cells import Cell
from gdpfed.report.finished_run import read_run, read_settings
from gdpfed.report.lines import computed_settings
from gdpfed.runs.checkpoint import CHECKPOINT_FILE
from gdpfed.runs.records import CONFIG_FILE, MODEL_FILE

RUNS_DIRECTORY = "runs"
DIGEST_LENGTH = 10


@dataclass(frozen=True, eq=False)
class CellRun:
    """One training of a cell.

    Attributes:
        config: the cell's, with its seed.
        path: where its files are or will be; the same for the same configuration.
    """

    cell: Cell
    config: Config
    path: Path

    @property
    def seed(self) -> int:
        """The seed of model, partition and batches."""
        return self.config.run.seed

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train."""
        return (self.path / MODEL_FILE).is_file()

    def to_train(self) -> Config:
        """The configuration that begins the run, or continues what is there of it.

        Raises:
            ExperimentError: the directory holds something else.
        """
        self.check()
        if not (self.path / CONFIG_FILE).exists():
            return self._with(directory=str(self.path))
        if (self.path / CHECKPOINT_FILE).exists():
            return self._with(resume=str(self.path))
        # Stopped before its first round could be charged: nothing to continue, nothing spent.
        shutil.rmtree(self.path)
        return self._with(directory=str(self.path))

    def check(self) -> None:
        """Refuse a directory that this run cannot use.

        Raises:
            ExperimentError: it holds another run, or files that are no run.
            ReportError: it holds this run, finished and damaged.
        """
        if not self.path.is_dir() or not any(self.path.iterdir()):
            return
        saved = read_settings(self.path)
        if saved is None:
            raise ExperimentError(
                f"{self.path} holds files of no run: move it away, or choose another --output"
            )
        if computed_settings(saved) != computed_settings(asdict(self.config)):
            raise ExperimentError(
                f"{self.path} holds a run of another configuration: move it away, or choose another --output"
            )
        if self.finished:
            read_run(self.path)

    def _with(self, *, directory: str | None = None, resume: str | None = None) -> Config:
        return replace(self.config, run=replace(self.config.run, directory=directory, resume=resume))


def runs_of(cells: Iterable[Cell], num_seeds: int, output: Path) -> list[CellRun]:
    """One run a cell and seed below ``output``; seed by seed, so that a first table is there early."""
    chosen = list(cells)
    return [_run(cell, seed, output) for seed in range(num_seeds) for cell in chosen]


def _run(cell: Cell, seed: int, output: Path) -> CellRun:
    config = replace(cell.config, run=replace(cell.config.run, seed=seed))
    return CellRun(cell, config, output / RUNS_DIRECTORY / run_name(config))


def run_name(config: Config) -> str:
    """Data set, method, a hash of every setting that results follow from, and the seed."""
    settings = json.dumps(computed_settings(asdict(config)), sort_keys=True)
    digest = sha256(settings.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{config.dataset.name}-{config.method.name}-{digest}-seed{config.run.seed}"
