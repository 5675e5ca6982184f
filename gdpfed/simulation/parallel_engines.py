"""Divides a cohort among worker processes with one core each, or among devices."""

import os
import pickle
import sys
import traceback
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import ceil
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gdpfed.child_process import fork_context, serve_only
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import RunError, words_of
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum, SumJob, split_jobs

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

T = TypeVar("T")
MakeEngine = Callable[[], Engine]
Part = Sequence[tuple[int, SumJob]]
# More parts than workers, so that a core that has other work to do holds up the others less.
PARTS_A_WORKER = 2
# What the updates of a part may take, int64[d] a client: a worker sends them at once.
MOST_SENT_BYTES = 2**28
FEWER = "continue with run.resume and fewer simulation.workers or simulation.clients_at_once"
DONE = (None, None)
"""What a worker answers when all parts are taken, and its own ones done."""


class Divided(Engine):
    """An engine that divides the clients of all sums among several engines, in proportion to ``shares``."""

    shares: Sequence[int]

    @abstractmethod
    def _each(self, act: Callable[[Engine, Part], T], parts: Sequence[Part]) -> Iterator[T]:
        """Have each engine apply `act` to its part of the clients; yield the results in any order."""

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for _, clients, steps in self.updates_of([SumJob(order, theta, cohort)]):
            yield clients, steps

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        return self.sums_of([SumJob(order, theta, cohort)])[0]

    def sums_of(self, jobs: Sequence[SumJob]) -> list[StepSum]:
        totals = [StepSum.zero(job.cohort.encoding.dimension) for job in jobs]
        for found in self._each(_sums_of_part, split_jobs(jobs, self.shares)):
            for number, part in found:
                totals[number].add(part.total, part.num_updates)
        return totals

    def updates_of(self, jobs: Sequence[SumJob]) -> Iterator[tuple[int, Sequence[int], Steps]]:
        for found in self._each(_updates_of_part, split_jobs(jobs, self._shares_of_updates(jobs))):
            yield from found

    def _shares_of_updates(self, jobs: Sequence[SumJob]) -> Sequence[int]:
        """Return the shares by which the work on single updates is divided."""
        return self.shares


def _sums_of_part(engine: Engine, part: Part) -> list[tuple[int, StepSum]]:
    totals = engine.sums_of([job for _, job in part])
    return [(number, total) for (number, _), total in zip(part, totals, strict=True)]


def _updates_of_part(engine: Engine, part: Part) -> list[tuple[int, Sequence[int], Steps]]:
    updates = engine.updates_of([job for _, job in part])
    return [(part[at][0], clients, steps) for at, clients, steps in updates]


class WorkerProcesses(Divided):
    """Trains parts of a cohort in worker processes that are kept between rounds.

    All workers get all parts at once, and each takes the next one when it has done one, so that none waits
    for this process. They are forked, so they see the data that this process has loaded without a copy of it.
    They end with ``close``, and with this process however it ends. `make_engine`: makes a worker's own
    engine, in the worker. `num_workers`: how many. Raises RunError: that many cannot be started.
    """

    def __init__(self, make_engine: MakeEngine, num_workers: int) -> None:
        self.shares = [1] * (PARTS_A_WORKER * num_workers)
        context = fork_context()
        self._taken, self._is_asked = context.Value("q"), False
        self._workers: list[tuple[Connection, BaseProcess]] = []
        self._end = weakref.finalize(self, _end, self._workers, os.getpid())
        # At the end of a process multiprocessing ends them.
        self._end.atexit = False
        try:
            for _ in range(num_workers):
                ours, theirs = context.Pipe()
                # Nobody but the worker holds this end then, so the other end tells when the worker has ended.
                with theirs:
                    given = make_engine, os.getpid(), theirs, self._taken
                    process = context.Process(target=_work, args=given, daemon=True)
                    process.start()
                self._workers.append((ours, process))
        except OSError as error:
            self.close()
            raise RunError(
                f"{len(self._workers)} of {num_workers} worker processes could be started "
                f"({words_of(error)}): set fewer simulation.workers, or raise this machine's limits"
            ) from None

    def _shares_of_updates(self, jobs: Sequence[SumJob]) -> Sequence[int]:
        size = sum(8 * job.cohort.encoding.dimension * len(job.cohort.clients) for job in jobs)
        return [1] * max(len(self.shares), ceil(size / MOST_SENT_BYTES))

    def _each(self, act: Callable[[Engine, Part], T], parts: Sequence[Part]) -> Iterator[T]:
        if self._is_asked:
            raise RuntimeError("workers answer one question after the other: take all answers first")
        busy, answered = [pipe for pipe, _ in self._workers], 0
        with self._whole_messages():
            self._take_from(0)
            for pipe in busy:
                pipe.send((act, parts))
        self._is_asked = True
        try:
            while busy:
                with self._whole_messages():
                    ready = wait(busy)
                for pipe in [each for each in busy if each in ready]:
                    with self._whole_messages():
                        found, error = pipe.recv()
                    if error is not None:
                        raise error
                    if found is None:
                        busy.remove(pipe)
                    else:
                        answered += 1
                        yield found
            if answered != len(parts):
                raise RuntimeError(f"workers answered {answered} of {len(parts)} parts")
        finally:
            self._is_asked = False
            if busy:
                self._stop(busy)

    def _take_from(self, number: int) -> None:
        """Have the next worker take the part of this number. A dead worker may hold the lock: without it."""
        self._taken.get_obj().value = number

    def _stop(self, busy: Sequence[Connection]) -> None:
        """Wait until the workers have done their parts, and drop their answers before the next question."""
        with suppress(RunError), self._whole_messages():
            self._take_from(sys.maxsize // 2)
            for pipe in busy:
                while pipe.recv() != DONE:
                    pass

    @contextmanager
    def _whole_messages(self) -> Iterator[None]:
        """End all workers where a ``with`` block that speaks with them is left early.

        Nobody knows then what is left in a pipe. That a worker has ended is raised as RunError.
        """
        try:
            yield
        except (EOFError, OSError):
            self.close()
            said = "a worker process was ended from outside, perhaps for want of memory"
            raise RunError(f"{said}: {FEWER}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._end()


def _end(workers: Sequence[tuple[Connection, BaseProcess]], parent: int) -> None:
    """End the workers of a process; another one, which has inherited them, leaves them alone."""
    for pipe, process in workers if os.getpid() == parent else ():
        process.kill()
        process.join()
        pipe.close()


def _work(make_engine: MakeEngine, parent: int, pipe: Connection, taken: "Synchronized[int]") -> None:
    """Serve as a worker: of every list of parts, take those that no other worker has taken, one by one.

    An answer is a result and an error, one of which is None, or both after the last part (`DONE`).
    """
    serve_only(parent)
    torch.set_num_threads(1)
    engine, wrong = _attempt(make_engine)
    while True:
        act, parts = pipe.recv()
        while (number := _next(taken)) < len(parts):
            pipe.send((None, wrong) if engine is None else _attempt(act, engine, parts[number]))
        pipe.send(DONE)


def _attempt(act: Callable[..., T], *given: Any) -> tuple[T | None, Exception | None]:
    """Call a function, and return its result or an error that can be sent, with its traceback here."""
    try:
        return act(*given), None
    except BaseException as error:
        found: Exception = RunError(f"{type(error).__name__}: {words_of(error)}")
        # torch says it in words alone.
        if isinstance(error, MemoryError) or "can't allocate memory" in words_of(error):
            error = found = RunError(f"a worker process has no memory left ({words_of(error)}): {FEWER}")
        with suppress(Exception):
            pickle.loads(pickle.dumps(error))  # noqa: S301 - it comes from this process
            found = error if isinstance(error, Exception) else found
        found.add_note(traceback.format_exc())
        return None, found


def _next(taken: "Synchronized[int]") -> int:
    with taken.get_lock():
        taken.value += 1
        return taken.value - 1


class SeveralDevices(Divided):
    """Trains equal parts of a cohort on several engines, each of which has its own device and thread."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines, self.shares = engines, [1] * len(engines)
        self._pool = ThreadPoolExecutor(len(engines))

    def _each(self, act: Callable[[Engine, Part], T], parts: Sequence[Part]) -> Iterator[T]:
        return self._pool.map(act, self._engines, parts)

    def close(self) -> None:
        self._pool.shutdown()
        for engine in self._engines:
            engine.close()
