"""A run's transcript: the sums and released models in which canaries may show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from conf.schema import SecAggConfig
from gdpfed.canaries.canary import Canaries, Vectors, parts_of
from gdpfed.methods.base import ClientSum, Theta
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.simulation.engine import Engine
from gdpfed.simulation.in_process_fleet import InProcessFleet

TellResult = Callable[[PreparedSum, ClientSum], None]


@dataclass(frozen=True, eq=False)
class RevealedSum:
    """One sum that came out of secure aggregation, or that the server added up in clear.

    Of updates that are private by themselves, it is all those of one sum: then a canary's projection is that
    of its client's update.

    Attributes:
        round_index: of its round, from 0.
        groups: of which parts of the plan it is, which is public.
        asked: which canaries were asked in it, shape (m,); the server knows.
        projections: of the sum on every canary's direction, shape (m,).
        noise_stddev: of the noise in each projection, C sigma that the sum's parameters name, shape (m,).
    """

    round_index: int
    groups: tuple[int, ...]
    asked: npt.NDArray[np.bool_]
    projections: Vectors
    noise_stddev: npt.NDArray[np.float64]


@dataclass(eq=False)
class Transcript:
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
        """Note one result; a sum that was refused reveals nothing, nor does one of updates that were seen."""
        kind = prepared.order.kind
        if result.total is None or (kind.on_records and kind.own_noise):
            return
        parameters = prepared.parameters
        stddev = parameters.noise_multiplier * parameters.clipping_norm
        self.sums.append(
            RevealedSum(
                round_index=prepared.order.round_index,
                groups=self._groups_of(prepared.clients),
                asked=np.isin(self.canaries.clients, list(prepared.clients)),
                projections=self.canaries.directions.project(result.total[: len(self.start)]),
                noise_stddev=np.full(len(self.canaries.clients), stddev),
            )
        )

    def add_updates(
        self,
        round_index: int,
        asked: npt.NDArray[np.bool_],
        projections: Vectors,
        noise_stddev: npt.NDArray[np.float64],
    ) -> None:
        """Note the updates of one sum, each of which anybody may see."""
        parts = tuple(range(len(parts_of(self.plan))))
        self.sums.append(RevealedSum(round_index, parts, asked, projections, noise_stddev))

    def _groups_of(self, clients: Sequence[int]) -> tuple[int, ...]:
        groups = self.plan.groups
        if self.plan.one_sum:
            return tuple(range(len(groups)))
        return tuple(index for index, group in enumerate(groups) if np.isin(clients, group.clients).any())


class ReleasedModels(Observer):
    """Notes the released model of every round."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript

    def round_ended(self, ended: RoundEnded) -> None:
        moved = ended.released.astype(np.float64) - self._transcript.start
        self._transcript.models.append(self._transcript.canaries.directions.project(moved))


class WatchedFleet(InProcessFleet):
    """A simulated fleet that shows every sum that it makes, whatever becomes of it.

    `tell`: is told of each.
    """

    def __init__(self, secagg: SecAggConfig, run_label: str, engine: Engine, tell: TellResult) -> None:
        super().__init__(secagg, run_label, engine)
        self._tell = tell

    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        results = super().sum_wave(sums, upcoming)
        for each in sums:
            if each.name in results:
                self._tell(each, results[each.name])
        return results
