"""A cohort divided among worker processes, each of which trains on one core, or among devices."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from gdpfed.child_process import serve_only
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import RunError
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum, SumJob, split_evenly, split_jobs

T = TypeVar("T")
MakeEngine = Callable[[], Engine]
# More parts than workers, so that a core that has other work to do holds up the others less.
PARTS_A_WORKER = 2

_engine: Engine


class WorkerProcesses(Engine):
    """Trains parts of a cohort in a persistent pool.

    Workers are forked, so they see the data that this process has loaded without a copy of it. They end with
    ``close``, and with this process however it ends. `make_engine`: makes a worker's own engine, in the
    worker. `num_workers`: how many.
    """

    def __init__(self, make_engine: MakeEngine, num_workers: int) -> None:
        self._num_workers = num_workers
        self._pool = ProcessPoolExecutor(
            num_workers,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_start_worker,
            initargs=(make_engine, os.getpid()),
        )
        # Forks all of them now, before this process has threads of its own.
        self._pool.submit(int).result()

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for part in self._each(_updates_of_part, order, theta, cohort):
            yield from part

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        total = StepSum.zero(cohort.encoding.dimension)
        for part in self._each(_sum_of_part, order, theta, cohort):
            total.add(part.total, part.num_updates)
        return total

    def sums_of(self, jobs: Sequence[SumJob]) -> list[StepSum]:
        totals = [StepSum.zero(job.cohort.encoding.dimension) for job in jobs]
        parts = split_jobs(jobs, PARTS_A_WORKER * self._num_workers)
        for found in self._results([self._pool.submit(_sums_of_part, part) for part in parts]):
            for number, part in found:
                totals[number].add(part.total, part.num_updates)
        return totals

    def updates_of(self, jobs: Sequence[SumJob]) -> Iterator[tuple[int, Sequence[int], Steps]]:
        parts = split_jobs(jobs, PARTS_A_WORKER * self._num_workers)
        for found in self._results([self._pool.submit(_updates_of_jobs, part) for part in parts]):
            yield from found

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _each(
        self,
        act: Callable[[TrainingOrder, Theta, Cohort], T],
        order: TrainingOrder,
        theta: Theta,
        cohort: Cohort,
    ) -> Iterator[T]:
        parts = split_evenly(cohort, PARTS_A_WORKER * self._num_workers)
        yield from self._results([self._pool.submit(act, order, theta, part) for part in parts])

    def _results(self, futures: Sequence[Future[T]]) -> Iterator[T]:
        try:
            for each in as_completed(futures):
                yield each.result()
        except BrokenProcessPool:
            raise RunError(
                "a worker process was ended from outside, perhaps for want of memory: continue with "
                "run.resume and fewer simulation.workers or simulation.clients_at_once"
            ) from None


def _start_worker(make_engine: MakeEngine, parent: int) -> None:
    global _engine
    serve_only(parent)
    torch.set_num_threads(1)
    _engine = make_engine()


def _sum_of_part(order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
    return _engine.sum_updates(order, theta, cohort)


def _sums_of_part(part: Sequence[tuple[int, SumJob]]) -> list[tuple[int, StepSum]]:
    totals = _engine.sums_of([job for _, job in part])
    return [(number, total) for (number, _), total in zip(part, totals, strict=True)]


def _updates_of_jobs(part: Sequence[tuple[int, SumJob]]) -> list[tuple[int, Sequence[int], Steps]]:
    updates = _engine.updates_of([job for _, job in part])
    return [(part[at][0], clients, steps) for at, clients, steps in updates]


def _updates_of_part(order: TrainingOrder, theta: Theta, cohort: Cohort) -> list[tuple[Sequence[int], Steps]]:
    return list(_engine.updates(order, theta, cohort))


class SeveralDevices(Engine):
    """Trains an equal part of a cohort on each of several engines, one thread each.

    Args:
        engines: one a device.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._pool = ThreadPoolExecutor(len(engines))

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        def train(engine: Engine, part: Cohort) -> list[tuple[Sequence[int], Steps]]:
            return list(engine.updates(order, theta, part))

        parts = split_evenly(cohort, len(self._engines))
        for chunks in self._pool.map(train, self._engines, parts):
            yield from chunks

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        def train(engine: Engine, part: Cohort) -> StepSum:
            return engine.sum_updates(order, theta, part)

        total = StepSum.zero(cohort.encoding.dimension)
        for part in self._pool.map(train, self._engines, split_evenly(cohort, len(self._engines))):
            total.add(part.total, part.num_updates)
        return total

    def sums_of(self, jobs: Sequence[SumJob]) -> list[StepSum]:
        def train(engine: Engine, part: Sequence[tuple[int, SumJob]]) -> list[StepSum]:
            return engine.sums_of([job for _, job in part])

        totals = [StepSum.zero(job.cohort.encoding.dimension) for job in jobs]
        parts = split_jobs(jobs, len(self._engines))
        for part, found in zip(parts, self._pool.map(train, self._engines, parts), strict=True):
            for (number, _), own in zip(part, found, strict=True):
                totals[number].add(own.total, own.num_updates)
        return totals

    def close(self) -> None:
        self._pool.shutdown()
        for engine in self._engines:
            engine.close()
