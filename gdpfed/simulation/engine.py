"""Engines: each trains the cohorts of a simulation and returns clipped updates rounded to integers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf

import numpy as np
import numpy.typing as npt

from gdpfed.clients.kept_states import KeptStates
from gdpfed.clients.noise import BitsOf, secret_bits
from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.clients.update import update_steps
from gdpfed.clients.works import Job
from gdpfed.methods.base import Theta
from secagg import Encoding

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients whose updates go into one sum, with the integer grid (step size) of that sum.

    `clients`: their ids. `encoding`: the integer grid of the sum. `parts`: of those whose bound or weight is
    their own; may name other clients, too. `kept`: between their rounds; None where they keep nothing.
    """

    clients: Sequence[int]
    encoding: Encoding
    parts: Mapping[int, ClientPart] = field(default_factory=dict)
    kept: KeptStates | None = None

    def encodings(self, clients: Sequence[int]) -> list[Encoding]:
        """Return how each client's updates become integers; between clients, only clipping norms differ."""
        parts = [self.parts.get(client_id) for client_id in clients]
        norms = [None if part is None or isinf(part.clipping_norm) else part.clipping_norm for part in parts]
        own = {norm: self.encoding.clipped_to(norm) for norm in set(norms) if norm is not None}
        return [self.encoding if norm is None else own[norm] for norm in norms]

    def order_of(self, client_id: int, order: TrainingOrder) -> TrainingOrder:
        """Return the server's instruction with a client's own clipping norm, weight and DP-SGD parameters."""
        return order.for_part(self.parts.get(client_id, ClientPart()))

    def weights(self, clients: Sequence[int]) -> list[float]:
        """Return w_i, the weights of these clients' updates in the sum."""
        return [self.parts[client_id].weight if client_id in self.parts else 1.0 for client_id in clients]


@dataclass
class StepSum:
    """A sum of updates in integer steps, which is the same in whatever order the updates are added.

    Attributes:
        total: int64[d].
        num_updates: how many updates are in it.
    """

    total: Steps
    num_updates: int = 0

    @classmethod
    def zero(cls, dimension: int) -> "StepSum":
        """Return the sum over no clients: zeros."""
        return cls(np.zeros(dimension, dtype=np.int64))

    def add(self, total: Steps, num_updates: int = 1) -> None:
        """Add one update, or the sum of several updates, to this sum.

        The first array may be kept without a copy, and later ones are then added to it in place.
        """
        if self.num_updates == 0 and total.flags.writeable:
            self.total = total
        else:
            self.total += total
        self.num_updates += num_updates


@dataclass(frozen=True, eq=False)
class SumJob:
    """What an engine needs for one sum: the clients, the server's instruction, and the start model.

    `start`: shape (d,).
    """

    order: TrainingOrder
    start: Theta
    cohort: Cohort


class Engine(ABC):
    """Base class of engines, which train the clients of cohorts; each cohort starts from one model.

    An update that cannot be encoded is left out, as a client that cannot encode it leaves the sum.
    """

    def sums_of(self, jobs: Sequence[SumJob]) -> list[StepSum]:
        """Return each cohort's sum of updates; no client is in two cohorts."""
        return [self.sum_updates(job.order, job.start, job.cohort) for job in jobs]

    def updates_of(self, jobs: Sequence[SumJob]) -> Iterator[tuple[int, Sequence[int], Steps]]:
        """Yield the updates of several cohorts in chunks: cohort number, client ids, and their updates."""
        for number, job in enumerate(jobs):
            for clients, steps in self.updates(job.order, job.start, job.cohort):
                yield number, clients, steps

    @abstractmethod
    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        """Yield client ids and their updates of shape (ids, d), in chunks; no noise is added to them here."""

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        """Return the sum of the cohort's updates."""
        total = StepSum.zero(cohort.encoding.dimension)
        for clients, steps in self.updates(order, theta, cohort):
            total.add(steps.sum(axis=0), len(clients))
        return total

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Free what the engine holds; it cannot train afterwards."""


def split_jobs(jobs: Sequence[SumJob], shares: Sequence[int]) -> list[list[tuple[int, SumJob]]]:
    """Split the clients of sums into parts in proportion to ``shares``; clients keep their order.

    A part has what is said of its own clients alone.
    """
    total = sum(len(job.cohort.clients) for job in jobs)
    rooms = iter([max(1, -(-total * share // sum(shares))) for share in shares])
    parts: list[list[tuple[int, SumJob]]] = []
    room = 0
    for number, job in enumerate(jobs):
        clients, told = job.cohort.clients, job.cohort.parts
        while len(clients):
            if room == 0:
                parts.append([])
                room = next(rooms)
            own, clients = clients[:room], clients[room:]
            room -= len(own)
            of_own = {client: told[client] for client in own if client in told} if told else told
            parts[-1].append((number, replace(job, cohort=replace(job.cohort, clients=own, parts=of_own))))
    return parts


class SequentialEngine(Engine):
    """Trains each client with the code that a node runs.

    `bits`: the source of every client's secret bits, for works on records.
    """

    def __init__(self, bits: BitsOf = secret_bits) -> None:
        self._bits = bits

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for client_id in cohort.clients:
            own, kept = cohort.order_of(client_id, order), cohort.kept
            added = None if kept is None else kept.added([client_id], own.training)[0]
            job = Job(own, theta, cohort.encoding, client_id, bits=self._bits, added=added)
            steps = update_steps(job)[None]
            if kept is not None:
                kept.keep([client_id], steps, cohort.encoding.grid, own)
            yield [client_id], steps
