"""Progress of an experiment: runs done, the rounds of those at work, and the time left."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from conf.experiment import Experiment
from gdpfed.experiments.pace import Pace, clock
from gdpfed.experiments.runs import CellRun
from gdpfed.runs.records import RoundRecord, read_rounds


@dataclass
class _AtWork:
    """A run that is being trained: its bar, since when, and how it is doing."""

    bar: TaskID
    started: float
    shown: str


class ExperimentProgress:
    """On a terminal a bar for the runs and one for each run at work; elsewhere one line a run.

    Args:
        console: where to.
        experiment: for the names of rows and columns.
        runs: all of them.
        num_jobs: how many are trained at a time.
    """

    def __init__(
        self, console: Console, experiment: Experiment, runs: Sequence[CellRun], num_jobs: int
    ) -> None:
        self.console, self.experiment, self.num_jobs = console, experiment, num_jobs
        self._left = {id(run): run.config.run.num_rounds for run in runs if not run.finished}
        self._datasets = {id(run): run.config.dataset.name for run in runs}
        self._at_work: dict[int, _AtWork] = {}
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
            # Drawn when something happens: a thread that draws would be in the way of forks.
            auto_refresh=False,
        )
        self._runs_bar = self._bars.add_task("", total=len(runs), what="runs")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def started(self, run: CellRun) -> None:
        """Show a run's own bar."""
        label = self._label(run)
        bar = self._bars.add_task(label, total=run.config.run.num_rounds, what="rounds")
        self._at_work[id(run)] = _AtWork(bar, monotonic(), label)
        self._bars.refresh()

    def round_done(self, run: CellRun, record: RoundRecord) -> None:
        """Move the run's bar."""
        self._pace.see(run.config.dataset.name, record.seconds)
        self._left[id(run)] = run.config.run.num_rounds - record.round
        work = self._at_work[id(run)]
        work.shown = f"{self._label(run)}, accuracy {100 * record.accuracy:.1f} %"
        self._bars.update(work.bar, completed=record.round, description=work.shown)
        self._show_runs()

    def done(self, run: CellRun) -> None:
        """Count a run; why a cell is missing stands below the table, once."""
        self._done += 1
        self._left.pop(id(run), None)
        work = self._at_work.pop(id(run), None)
        if work is not None:
            self._bars.remove_task(work.bar)
            if not self.console.is_terminal:
                taken = clock(monotonic() - work.started)
                line = f"{self._done}/{self._count} {work.shown}, took {taken}, left {self._time_left()}"
                self.console.print(line)
        self._show_runs()

    def _see_earlier(self, run: CellRun) -> None:
        """Finished runs tell how long such rounds take."""
        for record in read_rounds(run.path) if run.finished else []:
            self._pace.see(run.config.dataset.name, record.seconds)

    def _show_runs(self) -> None:
        description = f"left {self._time_left()}"
        self._bars.update(self._runs_bar, completed=self._done, description=description, refresh=True)

    def _time_left(self) -> str:
        one_after_the_other = self._pace.left(
            (self._datasets[key], rounds) for key, rounds in self._left.items()
        )
        return clock(None if one_after_the_other is None else one_after_the_other / self.num_jobs)

    def _label(self, run: CellRun) -> str:
        column = self.experiment.columns.get(run.cell.column)
        names = [run.cell.dataset, self.experiment.rows[run.cell.row].label]
        return ", ".join([*names, *([column.label] if column else []), f"seed {run.seed}"])
