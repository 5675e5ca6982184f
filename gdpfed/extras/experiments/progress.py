"""Shows the progress of training runs on the terminal."""

from collections.abc import Sequence
from datetime import timedelta
from statistics import fmean
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gdpfed.errors import GDPFedError, InputError
from gdpfed.extras.experiments.runs import Run
from gdpfed.report.metric_display import shown_in
from gdpfed.runs.file_formats import CONFIG_FILE
from gdpfed.runs.round_log import RoundLogEntry, read_rounds


class TrainingProgress:
    """Shows progress bars of training runs on a terminal; other output gets one line for each ended run.

    `console`: where to. `runs`: all of them, each directory once.
    """

    def __init__(self, console: Console, runs: Sequence[Run]) -> None:
        self.console = console
        self._count = len(runs)
        self._to_do = {run for run in runs if not run.finished}
        # What finished runs took tells how long others will take.
        self._records: dict[Run, list[RoundLogEntry]] = {
            run: read_rounds(run.path) if run.finished else [] for run in runs
        }
        self._bars_of: dict[Run, tuple[TaskID, float]] = {}
        # Of runs that ended here: seconds a round, with all that a run takes around its rounds.
        self._seconds_a_round: dict[Run, float] = {}
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
        self._runs_bar = self._bars.add_task("loading data", total=self._count, what="runs")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def started(self, run: Run) -> None:
        """Add the progress bar of a run that begins."""
        bar = self._bars.add_task(self._label(run), total=run.config.run.num_rounds, what="rounds")
        self._bars_of[run] = bar, monotonic()
        self._show_runs()

    def update(self, run: Run) -> None:
        """Show the rounds that a run has recorded so far."""
        records = read_rounds(run.path)
        if len(records) > len(self._records[run]):
            self._records[run] = records
            self._bars.update(self._bars_of[run][0], completed=len(records), description=self._label(run))
            self._show_runs()

    def look(self, runs: Sequence[Run]) -> None:
        """Look into directories for runs that began, advanced or ended, and update the bars."""
        for run in self._to_do.intersection(runs):
            if run in self._bars_of:
                self.update(run)
            elif (run.path / CONFIG_FILE).exists():
                self.started(run)
            if run.finished:
                self.done(run, None)

    def stopped(self, run: Run) -> None:
        """Remove the progress bar of a run."""
        self._bars.remove_task(self._bars_of.pop(run)[0])

    def done(self, run: Run, error: GDPFedError | None) -> None:
        """Count a run as done; print its error, unless it is an InputError, which the result table shows."""
        self._to_do.discard(run)
        if run in self._bars_of:
            self.update(run)
            took = monotonic() - self._bars_of[run][1]
            self._seconds_a_round[run] = took / max(1, len(self._records[run]))
            if not self.console.is_terminal:
                done, left = self._count - len(self._to_do), self._time_left()
                self.say(f"{done}/{self._count} {self._label(run)}, took {_clock(took)}, left {left}")
            self.stopped(run)
        if error is not None and not isinstance(error, InputError):
            self.say(str(error))
        self._show_runs()

    def say(self, text: str) -> None:
        """Print a line above the progress bars."""
        self.console.print(text, soft_wrap=True)

    def _show_runs(self) -> None:
        done, left = self._count - len(self._to_do), f"left {self._time_left()}"
        self._bars.update(self._runs_bar, completed=done, description=left, refresh=True)

    def _time_left(self) -> str:
        """Estimate the remaining time from the duration of past rounds, if possible of a similar run."""
        rates = self._seconds_a_round or {
            run: fmean(seconds)
            for run, records in self._records.items()
            if (seconds := [record.seconds["total"] for record in records if "total" in record.seconds])
        }
        if not rates:
            return "?"
        means = {
            key: fmean(rates[run] for run in rates if _known_by(run)[: len(key)] == key)
            for key in {_known_by(run)[:length] for run in rates for length in range(3)}
        }
        left = sum(
            (run.config.run.num_rounds - len(self._records[run]))
            * next(means[key] for length in (2, 1, 0) if (key := _known_by(run)[:length]) in means)
            for run in self._to_do
        )
        return _clock(left / max(1, len(self._bars_of)))

    def _label(self, run: Run) -> str:
        records = self._records[run]
        return run.label + (f", {shown_in(records[-1])}" if records else "")


def _known_by(run: Run) -> tuple[str, str]:
    """Return what decides how long a round of a run takes, most important first: data set and method."""
    return run.config.dataset.name, run.config.method.name


def _clock(seconds: float) -> str:
    """Format seconds as ``h:mm:ss``."""
    return str(timedelta(seconds=round(seconds)))
