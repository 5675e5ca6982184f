"""Progress of an experiment: runs done, the current run's rounds, and the time left."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conf.experiment import Experiment
from gdpfed.experiments.pace import Pace, clock
from gdpfed.experiments.runs import CellRun
from gdpfed.report.records import RoundRecord, read_rounds


class ExperimentProgress:
    """Two bars on a terminal, runs and rounds of the current one; elsewhere one line a run."""

    def __init__(self, console: Console, experiment: Experiment, runs: Sequence[CellRun]) -> None:
        self.console = console
        self.experiment = experiment
        self._left = {id(run): run.config.run.num_rounds for run in runs if not run.finished}
        self._datasets = {id(run): run.config.dataset.name for run in runs}
        self._count, self._done = len(runs), 0
        self._pace = Pace()
        for run in runs:
            self._see_earlier(run)
        self._bars = Progress(
            TextColumn("{task.fields[what]}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._runs_bar = self._bars.add_task("", total=len(runs), what="runs")
        self._rounds_bar = self._bars.add_task("", total=None, what="rounds")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    @contextmanager
    def running(self, run: CellRun) -> Iterator[Callable[[RoundRecord], None]]:
        """Around one training; gives what its rounds are shown to."""
        label = self._label(run)
        self._bars.reset(self._rounds_bar, total=run.config.run.num_rounds, description=label)
        started, shown = monotonic(), label

        def observe(record: RoundRecord) -> None:
            nonlocal shown
            self._see(run, record)
            shown = f"{label}, accuracy {100 * record.accuracy:.1f} %"
            self._bars.update(self._rounds_bar, completed=record.round, description=shown)

        yield observe
        if not self.console.is_terminal:
            taken, left = clock(monotonic() - started), clock(self._seconds_left(besides=run))
            self.console.print(f"{self._done + 1}/{self._count} {shown}, took {taken}, left {left}")

    def done(self, run: CellRun, reason: str | None) -> None:
        """Count a run; why a cell is missing stands below the table, once."""
        del reason
        self._done += 1
        self._left.pop(id(run), None)
        self._bars.update(self._runs_bar, completed=self._done, description=self._left_text())

    def _see_earlier(self, run: CellRun) -> None:
        """Finished runs tell how long such rounds take."""
        for record in read_rounds(run.path) if run.finished else []:
            self._pace.see(run.config.dataset.name, record.seconds)

    def _see(self, run: CellRun, record: RoundRecord) -> None:
        self._pace.see(run.config.dataset.name, record.seconds)
        self._left[id(run)] = run.config.run.num_rounds - record.round
        self._bars.update(self._runs_bar, description=self._left_text())

    def _left_text(self) -> str:
        return f"left {clock(self._seconds_left())}"

    def _seconds_left(self, *, besides: CellRun | None = None) -> float | None:
        return self._pace.left(
            (self._datasets[key], rounds) for key, rounds in self._left.items() if key != id(besides)
        )

    def _label(self, run: CellRun) -> str:
        column = self.experiment.columns.get(run.cell.column)
        names = [run.cell.dataset, self.experiment.rows[run.cell.row].label]
        return ", ".join([*names, *([column.label] if column else []), f"seed {run.seed}"])
