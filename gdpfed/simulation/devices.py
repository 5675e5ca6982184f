"""A cohort divided among several devices of this process."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gdpfed.clients.order import TrainingOrder
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum, SumJob, split_evenly, split_jobs


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
