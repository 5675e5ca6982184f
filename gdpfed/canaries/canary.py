"""Canaries: units of a run that contribute a known vector or, by a coin of their own, do not."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gdpfed.privacy.events import Adjacency
from gdpfed.privacy.plan import PrivacyPlan

Kind = Literal["dirac", "random", "crafted"]
Vectors = npt.NDArray[np.float64]

# A canary sends this many times what it may contribute, so that a clip that is missed is seen.
OVERSHOOT = 3.0


class Directions(ABC):
    """One unit vector of length d a canary."""

    @abstractmethod
    def vectors(self, canaries: npt.NDArray[np.int64]) -> Vectors:
        """The unit vectors of some canaries, shape (canaries, d)."""

    @abstractmethod
    def project(self, total: npt.NDArray[np.floating]) -> Vectors:
        """The inner product of a vector of shape (d,) with every unit vector, shape (m,)."""


class DiracDirections(Directions):
    """A coordinate of its own for each canary: no canary is seen in another one's coordinate.

    Args:
        coordinates: of every canary, all different, shape (m,).
        dimension: d.
    """

    def __init__(self, coordinates: npt.NDArray[np.int64], dimension: int) -> None:
        self._coordinates, self._dimension = coordinates, dimension

    def vectors(self, canaries: npt.NDArray[np.int64]) -> Vectors:
        found = np.zeros((len(canaries), self._dimension))
        found[np.arange(len(canaries)), self._coordinates[canaries]] = 1.0
        return found

    def project(self, total: npt.NDArray[np.floating]) -> Vectors:
        return np.asarray(total[self._coordinates], dtype=np.float64)


class DenseDirections(Directions):
    """Any unit vectors: the rows of a matrix of shape (m, d), which are scaled to length 1."""

    def __init__(self, rows: npt.NDArray[np.float32]) -> None:
        self._rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def vectors(self, canaries: npt.NDArray[np.int64]) -> Vectors:
        return np.asarray(self._rows[canaries], dtype=np.float64)

    def project(self, total: npt.NDArray[np.floating]) -> Vectors:
        return np.asarray(self._rows @ total.astype(np.float32), dtype=np.float64)


class PlanPart(NamedTuple):
    """What has one budget: a group of clients or, where records are protected, a group of their records."""

    group: int
    record_group: int = 0


def parts_of(plan: PrivacyPlan) -> list[PlanPart]:
    """All parts of a plan, group by group."""
    sizes = [max(1, len(plan.mechanism.record_groups(m))) for m in range(len(plan.groups))]
    return [PlanPart(group, each) for group, size in enumerate(sizes) for each in range(size)]


@dataclass(frozen=True, eq=False)
class Canaries:
    """The canaries of one run.

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
        """The number of every canary, by client id."""
        return {client: number for number, client in enumerate(self.clients.tolist())}

    @property
    def signs(self) -> npt.NDArray[np.float64]:
        """By what each multiplies its vector, shape (m,)."""
        return np.where(self.present, 1.0, 0.0 if self.adjacency == "zero_out" else -1.0)

    def signs_of(self, clients: Sequence[int]) -> npt.NDArray[np.float64]:
        """By what these canaries multiply their vectors."""
        return self.signs[[self.numbers[client] for client in clients]]

    def updates(self, clients: Sequence[int], norms: Sequence[float]) -> Vectors:
        """What these canaries send before they are clipped, shape (clients, d).

        ``norms`` are the L2 bounds on their contributions, before any weight.
        """
        canaries = np.asarray([self.numbers[client] for client in clients], dtype=np.int64)
        lengths = OVERSHOOT * np.asarray(norms) * self.signs_of(clients)
        return self.directions.vectors(canaries) * lengths[:, None]


def choose_clients(
    plan: PrivacyPlan, most: int, generator: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which clients are canaries, and the group of each: everybody, or ``most`` from all groups alike."""
    groups = [np.asarray(group.clients, dtype=np.int64) for group in plan.groups]
    share = min(1.0, most / plan.num_clients)
    chosen = [np.sort(generator.choice(each, int(share * len(each)), replace=False)) for each in groups]
    numbers = [np.full(len(each), index, dtype=np.int64) for index, each in enumerate(chosen)]
    return np.concatenate(chosen), np.concatenate(numbers)


def dirac_directions(count: int, dimension: int, generator: np.random.Generator) -> Directions:
    """A coordinate for each of ``count`` canaries, at most d of them."""
    return DiracDirections(generator.choice(dimension, count, replace=False).astype(np.int64), dimension)


def random_directions(
    count: int,
    dimension: int,
    generator: np.random.Generator,
    avoid: npt.NDArray[np.float64] | None = None,
) -> Directions:
    """Uniform unit vectors; without what they have of the rows of ``avoid``, shape (updates, d).

    Canaries that are made so that what others send hardly touches them are those of CANIFE (Maddock,
    Sablayrolles, Stock, arXiv:2210.02912), there by crafted examples. A client of this project may send any
    vector, so here the vectors themselves are crafted.
    """
    rows = generator.standard_normal((count, dimension), dtype=np.float32)
    if avoid is not None and len(avoid):
        basis = np.linalg.qr(avoid.T)[0].astype(np.float32)
        rows -= (rows @ basis) @ basis.T
    return DenseDirections(rows)
