"""Trains missing runs: one after the other, in several processes, or by a Hydra launcher."""

import multiprocessing
import os
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from rich.console import Console

from conf.schema import Config
from conf.sweeps import BASIC, LAUNCHER, launch, parted
from gdpfed.child_process import can_fork, fork_context, serve_only
from gdpfed.errors import ExperimentError, GDPFedError, InputError, LearningError, RunError, kind_and_words
from gdpfed.extras.experiments.progress import TrainingProgress
from gdpfed.extras.experiments.runs import Run
from gdpfed.extras.experiments.trained_data import Loaded, TrainedData
from gdpfed.runs.round_log import RoundLogEntry

PROGRESS_INTERVAL_SECONDS = 0.5

Errors = dict[Path, GDPFedError]


class Train(Protocol):
    """A function that trains one run to its end."""

    def __call__(self, config: Config, *, observe: Callable[[RoundLogEntry], None] | None = None) -> object:
        """Train a run; ``observe`` receives each round's log entry once it is written."""


def train_by_simulation(config: Config, *, observe: Callable[[RoundLogEntry], None] | None = None) -> object:
    """Train a run in this process by simulation; torch is not imported before this call."""
    from gdpfed.simulation import simulate

    return simulate(config, observe=observe)


def load_data(config: Config) -> str:
    """Load a run's data before processes are forked, so that they share it; return its SHA-256."""
    import gdpfed.simulation  # noqa: F401
    from gdpfed.clients.configured import task_of

    return sha256("".join(task_of(config).load().fingerprints).encode()).hexdigest()


@dataclass(frozen=True)
class Trainer:
    """The functions that load a run's data and train the run, kept together so that tests can replace them.

    `load_data`: returns the SHA-256 of the data, or None if they are not to be compared.
    """

    load_data: Callable[[Config], str | None]
    train: Train


SIMULATION = Trainer(load_data, train_by_simulation)


class Launch(Protocol):
    """A function that trains several runs and returns their errors; a failed run does not stop the others."""

    def __call__(self, runs: Sequence[Run], train: Train, progress: TrainingProgress) -> Errors: ...


def train_missing(
    runs: Sequence[Run],
    trainer: Trainer,
    launch_all: Launch,
    console: Console,
    command: str,
    output: Path,
    *,
    given: Sequence[str] = (),
) -> tuple[Errors, str]:
    """Train all unfinished runs; return failed runs' errors, and a note on the runs finished earlier.

    `runs`: all of them, each directory once. `command`: the command line, to say how to continue. `output`:
    their directory, which keeps what data they were trained on. `given`: settings of the user for all runs.

    Raises:
        ExperimentError, ReportError: a directory that a run cannot use, a finished run of other data, or a
            setting of the user's data set that does not fit all data sets; before anything is trained.
        KeyboardInterrupt: with a line that says how to continue.
    """
    for run in runs:
        run.check()
    finished = [run for run in runs if run.finished]
    missing = [run for run in runs if run not in finished]
    known = TrainedData(output)
    try:
        with TrainingProgress(console, runs) as progress:
            loaded = _load_data([*filter(known.knows, finished), *missing], trainer)
            num_compared, said = known.compared(finished, loaded), ""
            if finished:
                unchecked = len(finished) - num_compared
                data = f", nor are the data of {unchecked} of them" if unchecked > 0 else ""
                said = (
                    f"{len(finished)} of {len(runs)} runs were finished before and are shown as they are; "
                    f"code of packages is not compared{data}: if it has changed, name another --output"
                )
            refusals = {run: each for run in missing if isinstance(each := loaded[run.path], LearningError)}
            for said_of_data, number in Counter(map(str, refusals.values())).items():
                line = f"{number} of {len(runs)} runs cannot start: {said_of_data}"
                if number < len(runs) and any(word.startswith("dataset.") for word in given):
                    raise ExperimentError(f"{line}, or name with --datasets those that it fits")
                progress.say(line)
            known.keep(missing, loaded)
            errors: Errors = {}
            for run, refusal in refusals.items():
                errors[run.path] = refusal
                progress.done(run, refusal)
            usable = [run for run in missing if run.path not in errors]
            return errors | (launch_all(usable, trainer.train, progress) if usable else {}), said
    except KeyboardInterrupt:
        ended = sum(run.finished for run in runs)
        raise KeyboardInterrupt(
            f"interrupted after {ended} of {len(runs)} runs; the same command continues: {command}"
        ) from None


def chosen_launch(overrides: Sequence[str], num_jobs: int | None, output: Path) -> tuple[Launch, list[str]]:
    """Return how to train runs (``--jobs`` or a Hydra launcher), and all settings except the launcher's.

    Raises ConfigError, ExperimentError: a launcher that is not there, or a number that cannot be.
    """
    words, others = parted(overrides)
    if num_jobs is not None and words:
        raise ExperimentError(f"--jobs {num_jobs} and {words[0]}: leave one of them out")
    if num_jobs is not None and num_jobs < 1:
        raise ExperimentError(f"--jobs {num_jobs} must be at least 1")
    if (num_jobs or 1) > 1 and not can_fork():
        raise ExperimentError(f"--jobs {num_jobs} is not available on {sys.platform}: leave it out")
    if not words or words == [f"{LAUNCHER}={BASIC}"]:
        return Processes(1 if words else num_jobs), list(others)
    return HydraLauncher(tuple(words), output), others


def _load_data(runs: Sequence[Run], trainer: Trainer) -> Loaded:
    """Load every data set once; return the hash of each run's data, or the error if they cannot be loaded.

    Processes that are forked afterwards share the data: none downloads a data set or holds a copy.
    """
    by_dataset: dict[str, str | LearningError | None] = {}
    for run in runs:
        settings = repr(run.config.dataset)
        if settings not in by_dataset:
            try:
                by_dataset[settings] = trainer.load_data(run.config)
            except LearningError as error:
                by_dataset[settings] = error
    return {run.path: by_dataset[repr(run.config.dataset)] for run in runs}


@dataclass(frozen=True)
class Processes:
    """Trains runs in forked processes with one core each, or one by one on all cores.

    `num_jobs`: how many at a time; None: one a core, one alone on a GPU and without forks.
    """

    num_jobs: int | None = None

    def __call__(self, runs: Sequence[Run], train: Train, progress: TrainingProgress) -> Errors:
        """Train the runs; return the errors of failed runs.

        Processes end with this one, however it ends. Where one is killed, the executor ends them all, and
        half as many go on, since there may be too little memory. A run whose process is killed while it is
        the only one counts as failed.
        """
        num_jobs = min(self.num_jobs or self._default(len(runs)), len(runs))
        errors: Errors = {}
        if num_jobs == 1:
            # In this process, on all cores.
            for run in runs:
                progress.started(run)
                try:
                    train(run.to_train(), observe=partial(_update_progress, progress, run))
                except GDPFedError as error:
                    errors[run.path] = _named(run, error)
                progress.done(run, errors.get(run.path))
            return errors
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
                    "a training process was killed, perhaps for want of memory: going on with "
                    f"--jobs {num_jobs}"
                )
        return errors

    def _default(self, num_runs: int) -> int:
        if num_runs == 1:
            return 1
        import torch

        return 1 if torch.cuda.is_available() or not can_fork() else len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class HydraLauncher:
    """Trains runs by a Hydra launcher, such as joblib or Slurm, with one core each.

    `words`: the overrides that choose and set it. `output`: for its own files.
    """

    words: tuple[str, ...]
    output: Path

    def __call__(self, runs: Sequence[Run], train: Train, progress: TrainingProgress) -> Errors:
        """Train the runs; a run that the launcher leaves unfinished counts as failed."""
        end, said = "it ended early", [None] * len(runs)
        try:
            with _watched(runs, progress):
                said = launch(self.words, partial(_train_number, runs, train), len(runs), self.output)
        except Exception as raised:  # Whatever a package of others raises.
            end = kind_and_words(raised)
        errors: Errors = {}
        for run, error in zip(runs, said, strict=True):
            if not run.finished:
                errors[run.path] = error or _named(run, RunError(f"{self.words[0]}: {end}"))
                progress.done(run, errors[run.path])
        return errors


def _train_number(runs: Sequence[Run], train: Train, number: int) -> GDPFedError | None:
    try:
        # A queue may begin a job again, wherever the first time ended.
        if not runs[number].finished:
            _train_on_one_core(train, runs[number])
    except Exception as error:
        return _named(runs[number], error)
    return None


@contextmanager
def _watched(runs: Sequence[Run], progress: TrainingProgress) -> Iterator[None]:
    """Show the progress of runs that other processes train, as read from the runs' directories."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(PROGRESS_INTERVAL_SECONDS):
            progress.look(runs)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        progress.look(runs)


def _update_progress(progress: TrainingProgress, run: Run, record: RoundLogEntry) -> None:
    progress.update(run)


def _train_until_killed(
    waiting: deque[Run], train: Train, progress: TrainingProgress, num_jobs: int, errors: Errors
) -> list[Run]:
    """Train runs in processes until all are done or one is killed; return the interrupted runs."""
    training: dict[Future[None], Run] = {}
    try:
        with _process_pool(num_jobs) as pool:
            while waiting or training:
                while waiting and len(training) < num_jobs:
                    future = pool.submit(_train_on_one_core, train, waiting[0])
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
    """Make a pool of forked processes, which are terminated at the end of the block."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(num_jobs, fork_context(), initializer=serve_only, initargs=(os.getpid(),))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(wait=True)


def _train_on_one_core(train: Train, run: Run) -> None:
    """Train a run with one torch thread and the configured number of workers, by default one."""
    import torch

    torch.set_num_threads(1)
    config = run.to_train()
    workers = config.simulation.workers or 1
    train(replace(config, simulation=replace(config.simulation, workers=workers)))


def _named(run: Run, error: BaseException) -> GDPFedError:
    """Return an InputError unchanged, since it says what to change; add the run's path to any other error."""
    if isinstance(error, InputError):
        return error
    if not isinstance(error, GDPFedError):
        traceback.print_exception(error)
        error = RunError(kind_and_words(error, 300))
    return RunError(f"the training of {run.path} failed: {error}")
