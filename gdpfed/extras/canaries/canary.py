"""Canary clients: if a fair coin says so, each sends a known vector; else zero or the opposite vector."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.clients.update import contribution_steps
from gdpfed.methods.base import Theta
from gdpfed.privacy.events import Adjacency
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.simulation.batched import contributions_steps
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum

Kind = Literal["dirac", "random", "crafted"]
Vectors = npt.NDArray[np.float64]

# A canary sends this many times what it may contribute, so that a clip that is missed is seen.
OVERSHOOT = 3.0


class Directions(ABC):
    """The unit vectors of dimension d that canaries send, one for each canary."""

    @abstractmethod
    def vectors(self, canaries: npt.NDArray[np.int64]) -> Vectors:
        """Return the unit vectors of some canaries, shape (canaries, d)."""

    @abstractmethod
    def project(self, total: npt.NDArray[np.floating]) -> Vectors:
        """Return the inner product of a vector, shape (d,), with each canary's unit vector, shape (m,)."""


class DiracDirections(Directions):
    """Directions along coordinates: each canary has a coordinate of its own, so no canary disturbs another.

    `coordinates`: of every canary, all different, shape (m,). `dimension`: d.
    """

    def __init__(self, coordinates: npt.NDArray[np.int64], dimension: int) -> None:
        self.coordinates, self._dimension = coordinates, dimension

    def vectors(self, canaries: npt.NDArray[np.int64]) -> Vectors:
        found = np.zeros((len(canaries), self._dimension))
        found[np.arange(len(canaries)), self.coordinates[canaries]] = 1.0
        return found

    def project(self, total: npt.NDArray[np.floating]) -> Vectors:
        return np.asarray(total[self.coordinates], dtype=np.float64)


class DenseDirections(Directions):
    """Directions in general position: the rows of a matrix of shape (m, d), scaled to length 1."""

    def __init__(self, rows: npt.NDArray[np.float32]) -> None:
        self._rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def vectors(self, canaries: npt.NDArray[np.int64]) -> Vectors:
        return np.asarray(self._rows[canaries], dtype=np.float64)

    def project(self, total: npt.NDArray[np.floating]) -> Vectors:
        return np.asarray(self._rows @ total.astype(np.float32), dtype=np.float64)


class PlanPart(NamedTuple):
    """A part of a privacy plan with a budget of its own: a group of clients, or a group of their records."""

    group: int
    record_group: int = 0


def parts_of(plan: PrivacyPlan) -> list[PlanPart]:
    """List the parts of a privacy plan that have a budget: groups of clients, or groups of their records."""
    sizes = [max(1, len(record_groups(plan.mechanism, m))) for m in range(len(plan.groups))]
    return [PlanPart(group, each) for group, size in enumerate(sizes) for each in range(size)]


@dataclass(frozen=True, eq=False)
class Canaries:
    """Which clients of one run are canaries, which of them are present, and the vector of every canary.

    Attributes:
        clients: their ids, shape (m,).
        groups: the part of the plan that each belongs to, by its number in `parts_of`, shape (m,).
        present: whose coin says that it sends its vector, shape (m,). The others send zero under zero_out,
            and the opposite vector under replace_one.
        directions: of each.
        adjacency: of the plan.
    """

    clients: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]
    directions: Directions
    adjacency: Adjacency

    @cached_property
    def numbers(self) -> dict[int, int]:
        """A mapping from each canary's client id to its index in the list of canaries."""
        return {client: number for number, client in enumerate(self.clients.tolist())}

    @property
    def signs(self) -> npt.NDArray[np.float64]:
        """The factor on each canary's vector, shape (m,): 1 if present; if absent, 0 or (replace_one) -1."""
        return np.where(self.present, 1.0, 0.0 if self.adjacency == "zero_out" else -1.0)

    @property
    def parts(self) -> npt.NDArray[np.int64]:
        """The number of clients that hold each canary, shape (m,): 1, since a canary here is a client."""
        return np.ones(len(self.clients), dtype=np.int64)

    def signs_of(self, clients: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the factor on these canaries' vectors: 1 if present; if absent, 0 or (replace_one) -1."""
        return self.signs[[self.numbers[client] for client in clients]]

    def updates(self, clients: Sequence[int], norms: Sequence[float]) -> Vectors:
        """Return the updates that these canary clients send, before clipping, shape (clients, d).

        ``norms`` are the L2 bounds on their contributions, before any weight.
        """
        canaries = np.asarray([self.numbers[client] for client in clients], dtype=np.int64)
        lengths = OVERSHOOT * np.asarray(norms) * self.signs_of(clients)
        return self.directions.vectors(canaries) * lengths[:, None]


def choose_clients(
    plan: PrivacyPlan, most: int, generator: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw about ``most`` canary clients, the same fraction of every group; return their ids and groups."""
    groups = [np.asarray(group.clients, dtype=np.int64) for group in plan.groups]
    share = min(1.0, most / plan.num_clients)
    chosen = [np.sort(generator.choice(each, int(share * len(each)), replace=False)) for each in groups]
    numbers = [np.full(len(each), index, dtype=np.int64) for index, each in enumerate(chosen)]
    return np.concatenate(chosen), np.concatenate(numbers)


def dirac_directions(count: int, dimension: int, generator: np.random.Generator) -> DiracDirections:
    """Draw the directions of ``count`` canaries: for each, a different coordinate, chosen at random."""
    return DiracDirections(generator.choice(dimension, count, replace=False).astype(np.int64), dimension)


def random_directions(
    count: int, dimension: int, generator: np.random.Generator, avoid: npt.NDArray[np.float64] | None = None
) -> Directions:
    """Draw uniformly random unit vectors, orthogonal to the rows of ``avoid`` if these are given.

    Canaries that are made so that what others send hardly touches them are those of CANIFE (Maddock,
    Sablayrolles, Stock, arXiv:2210.02912), there by crafted examples. A client of this project may send any
    vector, so here the vectors themselves are crafted.
    """
    rows = generator.standard_normal((count, dimension), dtype=np.float32)
    if avoid is not None and len(avoid):
        basis = np.linalg.qr(avoid.T)[0].astype(np.float32)
        rows -= (rows @ basis) @ basis.T
    return DenseDirections(rows)


CLIENTS_AT_ONCE = 128


class CanaryEngine(Engine):
    """A simulation engine in which canaries send their vectors; other clients train or send zeros.

    What a canary sends is weighed, clipped and rounded by the code that does it for every client: the code of
    a node, or that of many clients at once. `canaries`: of the run. `others`: trains the other clients; None
    where they send zeros. `many_at_once`: whether the code of the batched engine is used in place of a
    node's.
    """

    def __init__(self, canaries: Canaries, others: Engine | None, *, many_at_once: bool) -> None:
        self._canaries, self._others, self._many_at_once = canaries, others, many_at_once

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        ours, rest = self._split(cohort)
        if self._others is not None and rest:
            yield from self._others.updates(order, theta, replace(cohort, clients=rest))
        elif rest:
            yield rest, np.zeros((len(rest), cohort.encoding.dimension), dtype=np.int64)
        for begin in range(0, len(ours), CLIENTS_AT_ONCE):
            clients = ours[begin : begin + CLIENTS_AT_ONCE]
            yield clients, self._steps(order, cohort, clients)

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        """Return a cohort's sum of updates and the number of updates, those of zeros included."""
        ours, rest = self._split(cohort)
        if self._others is not None and rest:
            total = self._others.sum_updates(order, theta, replace(cohort, clients=rest))
        else:
            total = StepSum(np.zeros(cohort.encoding.dimension, dtype=np.int64), len(rest))
        for clients, steps in self.updates(order, theta, replace(cohort, clients=ours)):
            total.add(steps.sum(axis=0), len(clients))
        return total

    def close(self) -> None:
        if self._others is not None:
            self._others.close()

    def _split(self, cohort: Cohort) -> tuple[list[int], list[int]]:
        numbers = self._canaries.numbers
        ours = [client for client in cohort.clients if client in numbers]
        return ours, [client for client in cohort.clients if client not in numbers]

    def _steps(self, order: TrainingOrder, cohort: Cohort, clients: Sequence[int]) -> Steps:
        parts = [cohort.parts.get(client, ClientPart()) for client in clients]
        sum_norm = cohort.encoding.clipping_norm
        norms = [order.norm_factor * min(sum_norm, part.clipping_norm) / part.weight for part in parts]
        updates = torch.from_numpy(self._canaries.updates(clients, norms))
        if self._many_at_once:
            steps: Steps = contributions_steps(updates, order, cohort, clients).numpy()
        else:
            pairs = zip(parts, updates, strict=True)
            steps = np.stack(
                [contribution_steps(order.for_part(part), update, cohort.encoding) for part, update in pairs]
            )
        # Whoever is absent has no indicator either.
        steps[self._canaries.signs_of(clients) == 0] = 0
        return steps
