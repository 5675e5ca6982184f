"""Train the missing runs of an experiment, one after the other or in processes, and show the progress."""

import multiprocessing
import os
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from conf.schema import Config
from gdpfed.child_process import can_fork, serve_only
from gdpfed.errors import GDPFedError, InputError, LearningError, RunError
from gdpfed.experiments.definitions import Experiment
from gdpfed.experiments.runs import CellRun
from gdpfed.report.metric_display import shown_in
from gdpfed.runs.round_log import RoundLogEntry, read_rounds


class ExperimentProgress:
    """Shows, on a terminal, a bar for all runs and one for each in training; elsewhere prints a line a run.

    `console`: where to. `experiment`: for the names of rows and columns. `runs`: all of them, each directory
    once. `num_jobs`: how many are trained at a time.
    """

    def __init__(
        self, console: Console, experiment: Experiment, runs: Sequence[CellRun], num_jobs: int
    ) -> None:
        self.console, self.experiment, self.num_jobs = console, experiment, num_jobs
        self._count = len(runs)
        self._to_do = {run for run in runs if not run.finished}
        # What finished runs took tells how long others will take.
        self._records: dict[CellRun, list[RoundLogEntry]] = {
            run: read_rounds(run.path) if run.finished else [] for run in runs
        }
        self._bars_of: dict[CellRun, tuple[TaskID, float]] = {}
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

    def started(self, run: CellRun) -> None:
        """Add a run's own bar."""
        bar = self._bars.add_task(self._label(run), total=run.config.run.num_rounds, what="rounds")
        self._bars_of[run] = bar, monotonic()
        self._show_runs()

    def update(self, run: CellRun) -> None:
        """Show the rounds that a run has recorded so far."""
        records = read_rounds(run.path)
        if len(records) > len(self._records[run]):
            self._records[run] = records
            self._bars.update(self._bars_of[run][0], completed=len(records), description=self._label(run))
            self._show_runs()

    def stopped(self, run: CellRun) -> None:
        """Remove a run's own bar."""
        self._bars.remove_task(self._bars_of.pop(run)[0])

    def done(self, run: CellRun, error: GDPFedError | None) -> None:
        """Count a run; its failure is said at once, but why input was refused stands below the table."""
        self._to_do.discard(run)
        if run in self._bars_of:
            self.update(run)
            if not self.console.is_terminal:
                done, left = self._count - len(self._to_do), self._time_left()
                took = _clock(monotonic() - self._bars_of[run][1])
                self.say(f"{done}/{self._count} {self._label(run)}, took {took}, left {left}")
            self.stopped(run)
        if error is not None and not isinstance(error, InputError):
            self.say(str(error))
        self._show_runs()

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.console.print(text, soft_wrap=True)

    def _show_runs(self) -> None:
        done, left = self._count - len(self._to_do), f"left {self._time_left()}"
        self._bars.update(self._runs_bar, completed=done, description=left, refresh=True)

    def _time_left(self) -> str:
        """From the mean seconds a round by data set; one without rounds counts as the mean of the others."""
        seconds = defaultdict(list)
        for run, records in self._records.items():
            for record in records:
                if "total" in record.seconds:
                    seconds[run.config.dataset.name].append(record.seconds["total"])
        if not seconds:
            return "?"
        means = {name: fmean(each) for name, each in seconds.items()}
        mean = fmean(means.values())
        left = sum(
            (run.config.run.num_rounds - len(self._records[run])) * means.get(run.config.dataset.name, mean)
            for run in self._to_do
        )
        return _clock(left / self.num_jobs)

    def _label(self, run: CellRun) -> str:
        column = self.experiment.columns.get(run.cell.column)
        names = [run.cell.dataset, self.experiment.rows[run.cell.row].label]
        names += [*([column.label] if column else []), f"seed {run.seed}"]
        records = self._records[run]
        return ", ".join(names) + (f", {shown_in(records[-1])}" if records else "")


def _clock(seconds: float) -> str:
    """``h:mm:ss``."""
    return str(timedelta(seconds=round(seconds)))


PROGRESS_INTERVAL_SECONDS = 0.5

Errors = dict[Path, GDPFedError]


class Train(Protocol):
    """Trains one run to its end; :func:`gdpfed.simulation.simulate` is one."""

    def __call__(self, config: Config, *, observe: Callable[[RoundLogEntry], None] | None = None) -> object:
        """Train; ``observe`` gets the record of every round once it is written."""


def train_by_simulation(config: Config, *, observe: Callable[[RoundLogEntry], None] | None = None) -> object:
    """Train in this process; torch takes seconds to import, so only where something is trained."""
    from gdpfed.simulation import simulate

    return simulate(config, observe=observe)


def load_data(config: Config) -> None:
    """Load a run's data, and the modules that every forked process would otherwise import for itself."""
    import gdpfed.simulation  # noqa: F401
    from gdpfed.clients.configured import task_of

    task_of(config).load()


@dataclass(frozen=True)
class Trainer:
    """The functions that load the data of a run and train it; tests put others in place of the simulation."""

    load_data: Callable[[Config], object]
    train: Train


SIMULATION = Trainer(load_data, train_by_simulation)


def choose_num_jobs(asked: int | None, num_missing: int) -> int:
    """How many runs to train at a time: as asked, or one a core; one alone on a GPU and without forks."""
    if num_missing > 1 and asked is None:
        import torch

        asked = 1 if torch.cuda.is_available() or not can_fork() else len(os.sched_getaffinity(0))
    return max(1, min(asked or 1, num_missing))


def train_missing(
    runs: Sequence[CellRun], trainer: Trainer, num_jobs: int, progress: ExperimentProgress
) -> Errors:
    """Train ``num_jobs`` runs at a time; returns the errors of those that fail, which stop no others."""
    errors = _load_data(runs, trainer)
    for run in runs:
        if run.path in errors:
            progress.done(run, errors[run.path])
    usable = [run for run in runs if run.path not in errors]
    if num_jobs == 1:
        return errors | _train_one_by_one(usable, trainer.train, progress)
    return errors | _train_in_processes(usable, trainer.train, progress, num_jobs)


def _load_data(runs: Iterable[CellRun], trainer: Trainer) -> Errors:
    """Load every data set once; returns the errors of the runs whose data cannot be loaded.

    Processes that are forked afterwards share the data: none downloads a data set or holds a copy.
    """
    by_dataset: dict[str, LearningError | None] = {}
    errors: Errors = {}
    for run in runs:
        settings = repr(run.config.dataset)
        if settings not in by_dataset:
            by_dataset[settings] = None
            try:
                trainer.load_data(run.config)
            except LearningError as error:
                by_dataset[settings] = error
        refusal = by_dataset[settings]
        if refusal is not None:
            errors[run.path] = refusal
    return errors


def _train_one_by_one(runs: Iterable[CellRun], train: Train, progress: ExperimentProgress) -> Errors:
    """Train in this process, on all cores."""
    errors: Errors = {}
    for run in runs:
        progress.started(run)
        try:
            train(run.to_train(), observe=partial(_show, progress, run))
        except GDPFedError as error:
            errors[run.path] = _named(run, error)
        progress.done(run, errors.get(run.path))
    return errors


def _show(progress: ExperimentProgress, run: CellRun, record: RoundLogEntry) -> None:
    progress.update(run)


def _train_in_processes(
    runs: Iterable[CellRun], train: Train, progress: ExperimentProgress, num_jobs: int
) -> Errors:
    """Train several runs at a time, each in a process with one core.

    Processes end with this one, however it ends. Where one is killed, the executor ends them all, and half as
    many go on, since there may be too little memory. A run whose process is killed while it is the only one
    counts as failed.
    """
    errors: Errors = {}
    waiting = deque(runs)
    while waiting:
        interrupted = _train_until_killed(waiting, train, progress, num_jobs, errors)
        if interrupted and num_jobs == 1:
            run = interrupted.pop()
            errors[run.path] = _named(run, RunError("its process was killed, perhaps for want of memory"))
            progress.done(run, errors[run.path])
        elif interrupted:
            waiting.extendleft(reversed(interrupted))
            num_jobs = max(1, num_jobs // 2)
            progress.say(
                f"a training process was killed, perhaps for want of memory: going on with --jobs {num_jobs}"
            )
    return errors


def _train_until_killed(
    waiting: deque[CellRun], train: Train, progress: ExperimentProgress, num_jobs: int, errors: Errors
) -> list[CellRun]:
    """Train until none is waiting or a process is killed; returns the runs that this has interrupted."""
    training: dict[Future[None], CellRun] = {}
    try:
        with _process_pool(num_jobs) as pool:
            while waiting or training:
                while waiting and len(training) < num_jobs:
                    future = pool.submit(_train_on_one_core, train, waiting[0].to_train())
                    training[future] = waiting.popleft()
                    progress.started(training[future])
                done, _ = wait(training, PROGRESS_INTERVAL_SECONDS, return_when=FIRST_COMPLETED)
                for run in training.values():
                    progress.update(run)
                for future in done:
                    error = future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise error
                    run = training.pop(future)
                    if error is not None:
                        errors[run.path] = _named(run, error)
                    progress.done(run, errors.get(run.path))
    except BrokenProcessPool:
        for run in training.values():
            if run.finished:
                progress.done(run, None)
            else:
                progress.stopped(run)
    return [run for run in training.values() if not run.finished]


@contextmanager
def _process_pool(num_jobs: int) -> Iterator[ProcessPoolExecutor]:
    """An executor of forked processes; at the end of the block they are terminated, whatever they do."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        num_jobs, multiprocessing.get_context("fork"), initializer=serve_only, initargs=(os.getpid(),)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(wait=True)


def _train_on_one_core(train: Train, config: Config) -> None:
    """Train in a forked process; a number of workers that was asked for is kept."""
    import torch

    torch.set_num_threads(1)
    workers = config.simulation.workers or 1
    train(replace(config, simulation=replace(config.simulation, workers=workers)))


def _named(run: CellRun, error: BaseException) -> GDPFedError:
    """Bad input as it is, since it says what to change; any other error with the run that failed."""
    if isinstance(error, InputError):
        return error
    if not isinstance(error, GDPFedError):
        traceback.print_exception(error)
        error = RunError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return RunError(f"the training of {run.path} failed: {error}")
