"""Train the missing runs of an experiment: one after the other here, or several at a time in processes."""

import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from conf.schema import Config
from gdpfed.child_process import can_fork, serve_only
from gdpfed.errors import GDPFedError, InputError, LearningError, RunError
from gdpfed.experiments.experiment_progress import ExperimentProgress
from gdpfed.experiments.runs import CellRun
from gdpfed.runs.round_log import RoundLogEntry

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
