"""What a run reveals of its canaries: every sum that comes out, and every released model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from conf.schema import SecAggConfig
from gdpfed.canaries.canary import Canaries, Vectors
from gdpfed.methods.base import ClientSum, Theta
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.simulation.engine import Engine
from gdpfed.simulation.fleet import InProcessFleet

ResultSeen = Callable[[PreparedSum, ClientSum], None]


@dataclass(frozen=True, eq=False)
class RevealedSum:
    """One sum that came out of secure aggregation, or that the server added up in clear.

    Attributes:
        round_index: of its round, from 0.
        groups: whose cohorts it is of, which is public.
        asked: which canaries were asked in it, shape (m,); the server knows.
        projections: of the sum on every canary's direction, shape (m,).
        noise_stddev: C sigma that the sum's parameters name.
    """

    round_index: int
    groups: tuple[int, ...]
    asked: npt.NDArray[np.bool_]
    projections: Vectors
    noise_stddev: float


@dataclass(eq=False)
class Seen:
    """Everything that one run reveals.

    Attributes:
        plan: of the run.
        canaries: of the run.
        start: the initial model, shape (d,).
        sums: in their order.
        models: of every round, the projections of its released model less the initial one, shape (m,).
    """

    plan: PrivacyPlan
    canaries: Canaries
    start: Theta
    sums: list[RevealedSum] = field(default_factory=list)
    models: list[Vectors] = field(default_factory=list)

    def add_sum(self, prepared: PreparedSum, result: ClientSum) -> None:
        """Note one result; a sum that was refused reveals nothing."""
        if result.total is None:
            return
        self.sums.append(
            RevealedSum(
                round_index=prepared.order.round_index,
                groups=self._groups_of(prepared.clients),
                asked=np.isin(self.canaries.clients, list(prepared.clients)),
                projections=self.canaries.directions.project(result.total),
                noise_stddev=prepared.parameters.noise_multiplier * prepared.parameters.clipping_norm,
            )
        )

    def _groups_of(self, clients: Sequence[int]) -> tuple[int, ...]:
        groups = self.plan.groups
        if self.plan.one_sum:
            return tuple(range(len(groups)))
        return tuple(index for index, group in enumerate(groups) if np.isin(clients, group.clients).any())


class SeenModels(Observer):
    """Notes the released model of every round."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def round_ended(self, ended: RoundEnded) -> None:
        moved = ended.released.astype(np.float64) - self._seen.start
        self._seen.models.append(self._seen.canaries.directions.project(moved))


class WatchedFleet(InProcessFleet):
    """A simulated fleet that shows every sum that it makes, whatever becomes of it.

    Args:
        seen: is told of each.
    """

    def __init__(self, secagg: SecAggConfig, run_label: str, engine: Engine, seen: ResultSeen) -> None:
        super().__init__(secagg, run_label, engine)
        self._seen = seen

    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        results = super().sum_wave(sums, upcoming)
        for each in sums:
            if each.name in results:
                self._seen(each, results[each.name])
        return results
