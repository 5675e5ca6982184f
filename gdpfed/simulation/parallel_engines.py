"""Divides a cohort among worker processes with one core each, or among devices."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from gdpfed.child_process import fork_context, serve_only
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import RunError
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum, SumJob, split_jobs

T = TypeVar("T")
MakeEngine = Callable[[], Engine]
Part = Sequence[tuple[int, SumJob]]
# More parts than workers, so that a core that has other work to do holds up the others less.
PARTS_A_WORKER = 2

_engine: Engine


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
        for found in self._each(_updates_of_part, split_jobs(jobs, self.shares)):
            yield from found


def _sums_of_part(engine: Engine, part: Part) -> list[tuple[int, StepSum]]:
    totals = engine.sums_of([job for _, job in part])
    return [(number, total) for (number, _), total in zip(part, totals, strict=True)]


def _updates_of_part(engine: Engine, part: Part) -> list[tuple[int, Sequence[int], Steps]]:
    updates = engine.updates_of([job for _, job in part])
    return [(part[at][0], clients, steps) for at, clients, steps in updates]


class WorkerProcesses(Divided):
    """Trains parts of a cohort in a pool of worker processes that is kept between rounds.

    Workers are forked, so they see the data that this process has loaded without a copy of it. They end with
    ``close``, and with this process however it ends. `make_engine`: makes a worker's own engine, in the
    worker. `num_workers`: how many.
    """

    def __init__(self, make_engine: MakeEngine, num_workers: int) -> None:
        self.shares = [1] * (PARTS_A_WORKER * num_workers)
        self._pool = ProcessPoolExecutor(
            num_workers,
            mp_context=fork_context(),
            initializer=_start_worker,
            initargs=(make_engine, os.getpid()),
        )
        # Forks all of them now, before this process has threads of its own.
        self._pool.submit(int).result()

    def _each(self, act: Callable[[Engine, Part], T], parts: Sequence[Part]) -> Iterator[T]:
        try:
            for each in as_completed([self._pool.submit(_in_worker, act, part) for part in parts]):
                yield each.result()
        except BrokenProcessPool:
            raise RunError(
                "a worker process was ended from outside, perhaps for want of memory: continue with "
                "run.resume and fewer simulation.workers or simulation.clients_at_once"
            ) from None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(make_engine: MakeEngine, parent: int) -> None:
    global _engine
    serve_only(parent)
    torch.set_num_threads(1)
    _engine = make_engine()


def _in_worker(act: Callable[[Engine, Part], T], part: Part) -> T:
    return act(_engine, part)


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
