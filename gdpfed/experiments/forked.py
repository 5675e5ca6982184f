"""Several runs of an experiment at a time, each in a process of its own."""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self, cast

from conf.schema import Config
from gdpfed.child_process import serve_only
from gdpfed.errors import RunError
from gdpfed.experiments.crew import Observe, Refusal, Trainer, refusal_of
from gdpfed.experiments.runs import CellRun
from gdpfed.runs.records import RoundRecord


@dataclass(frozen=True, eq=False)
class _Job:
    """A run in a process, which sends the record of every round and, at the end, what came of it."""

    run: CellRun
    observe: Observe
    process: BaseProcess


class Forked:
    """Trains every run in a process of its own, several at a time.

    A process is forked once this one has loaded the data of the run: no two of them download a data set, and
    none holds a copy of it. Processes end with this one however it ends.

    Args:
        trainer: is called in the process.
        load: makes this process load what the trainer will need.
        num_jobs: how many runs at a time.
    """

    def __init__(self, trainer: Trainer, load: Callable[[Config], object], num_jobs: int) -> None:
        self._trainer, self._load, self.num_jobs = trainer, load, num_jobs
        self._jobs: dict[Connection, _Job] = {}
        self._refused: list[tuple[CellRun, Refusal]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self._jobs.values():
            job.process.terminate()
        for job in self._jobs.values():
            job.process.join()

    @property
    def has_room(self) -> bool:
        return len(self._jobs) < self.num_jobs and not self._refused

    def start(self, run: CellRun, observe: Observe) -> None:
        refusal = refusal_of(lambda: self._load(run.config))
        if refusal is not None:
            self._refused.append((run, refusal))
            return
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(self._trainer, run, theirs, os.getpid()))
        process.start()
        # Held by the process alone from here on, so that its end is the end of what it sends.
        theirs.close()
        self._jobs[ours] = _Job(run, observe, process)

    def next_done(self) -> tuple[CellRun, Refusal | None]:
        while not self._refused:
            for ready in cast("list[Connection]", wait(list(self._jobs))):
                message = self._receive(ready)
                if not isinstance(message, RoundRecord):
                    return self._end(ready, message)
                self._jobs[ready].observe(message)
        return self._refused.pop()

    def _receive(self, connection: Connection) -> object:
        try:
            return connection.recv()
        except EOFError:
            return _ended_unasked(self._jobs[connection])

    def _end(self, connection: Connection, outcome: object) -> tuple[CellRun, Refusal | None]:
        job = self._jobs.pop(connection)
        connection.close()
        job.process.join()
        if isinstance(outcome, RunError):
            raise outcome
        return job.run, cast("Refusal | None", outcome)


def _ended_unasked(job: _Job) -> RunError:
    """Why a process sent no outcome: a signal ended it, or it failed and has said how on standard error."""
    job.process.join()
    if (job.process.exitcode or 0) > 0:
        return RunError(f"the training of {job.run.path} failed; its error is above")
    return RunError(
        f"the process that trained {job.run.path} was ended from outside, perhaps for want of memory: the "
        "same command continues, with a smaller --jobs if need be"
    )


def _serve(trainer: Trainer, run: CellRun, connection: Connection, parent: int) -> None:
    """Train in a forked process, and send what the parent is to know."""
    serve_only(parent)
    outcome: Refusal | RunError | None
    try:
        outcome = refusal_of(lambda: trainer(run.to_train(), observe=connection.send))
    except RunError as error:
        outcome = error
    connection.send(outcome)
