"""What a simulated run releases: the sums and models in which canaries may be visible."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conf.schema import SecAggConfig
from gdpfed.extras.canaries.canary import Canaries, DiracDirections, Vectors, parts_of
from gdpfed.methods.base import ClientSum, Theta
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.observers import Observer, RoundEnded, RunOpened
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.runs.file_formats import LEDGER_FILE
from gdpfed.runs.round_log import RoundLogEntry
from gdpfed.simulation.engine import Engine
from gdpfed.simulation.in_process_fleet import InProcessFleet

TellResult = Callable[[PreparedSum, ClientSum], None]

# The noise of every sum is kept in this number of coordinates.
MOST_WATCHED = 2048


@dataclass(frozen=True, eq=False)
class RevealedSum:
    """One noised sum that a run releases, computed by secure aggregation or without masks.

    Of updates that are private by themselves, it is all those of one sum: then a canary's projection is that
    of its client's update.

    Attributes:
        round_index: of its round, from 0.
        groups: of which parts of the plan it is, which is public.
        asked: which canaries were asked in it, shape (m,); the server knows.
        projections: of the sum on every canary's direction, shape (m,).
        noise_stddev: of the noise in each projection, C sigma that the sum's parameters name, shape (m,).
        name: of the sum; the sums of one name, a round each, are a stream.
        clients: the ids of all who were asked for an update.
        pure_noise: the sum in the watched coordinates, nan where a canary may be, shape (watched,).
        drawn_stddev: of the noise in each of these, if all who are in the sum added what they have to.
    """

    round_index: int
    groups: tuple[int, ...]
    asked: npt.NDArray[np.bool_]
    projections: Vectors
    noise_stddev: npt.NDArray[np.float64]
    name: str
    clients: tuple[int, ...]
    pure_noise: npt.NDArray[np.float32]
    drawn_stddev: float


@dataclass(eq=False)
class Transcript:
    """Everything in one run's output in which canaries may be visible: sums, models, log and ledger.

    Attributes:
        plan: of the run.
        canaries: of the run.
        start: the initial model, shape (d,).
        sums: in their order.
        models: of every round, the projections of its released model less the initial one, shape (m,).
        records: what the run's log says of every round.
        ledger: what the run's ledger says at its end, as on disk.
    """

    plan: PrivacyPlan
    canaries: Canaries
    start: Theta
    sums: list[RevealedSum] = field(default_factory=list)
    models: list[Vectors] = field(default_factory=list)
    records: list[RoundLogEntry] = field(default_factory=list)
    ledger: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def watched(self) -> npt.NDArray[np.int64]:
        """The coordinates whose noise is recorded; empty if clients that are not canaries train."""
        if not isinstance(self.canaries.directions, DiracDirections):
            return np.zeros(0, dtype=np.int64)
        dimension = len(self.start)
        return np.unique(np.linspace(0, dimension - 1, min(dimension, MOST_WATCHED)).astype(np.int64))

    @property
    def coordinates(self) -> npt.NDArray[np.int64]:
        """The canaries' own coordinates; empty if canaries have no coordinates of their own."""
        directions = self.canaries.directions
        none = np.zeros(0, dtype=np.int64)
        return directions.coordinates if isinstance(directions, DiracDirections) else none

    @cached_property
    def still(self) -> npt.NDArray[np.bool_]:
        """For each coordinate whose noise is recorded, whether all canaries leave it unchanged."""
        moved = np.zeros(len(self.start), dtype=bool)
        if isinstance(self.canaries.directions, DiracDirections):
            moved[self.canaries.directions.coordinates[self.canaries.signs != 0]] = True
        return np.asarray(~moved[self.watched])

    def add_sum(self, prepared: PreparedSum, result: ClientSum) -> None:
        """Record one sum, unless it failed, or is made of noised updates that `add_updates` records."""
        kind = prepared.order.kind
        if result.total is None or (kind.on_records and kind.own_noise):
            return
        parameters = prepared.parameters
        stddev = parameters.noise_stddev
        groups = self._groups_of(prepared.clients)
        in_watched = result.total[self.watched].astype(np.float32)
        self.sums.append(
            RevealedSum(
                round_index=prepared.order.round_index,
                groups=groups,
                asked=np.isin(self.canaries.clients, prepared.drawn),
                projections=self.canaries.directions.project(result.total[: len(self.start)]),
                noise_stddev=np.full(len(self.canaries.clients), stddev),
                name=prepared.name,
                clients=tuple(prepared.drawn),
                pure_noise=np.where(self.still, in_watched, np.float32(np.nan)),
                drawn_stddev=self._drawn_stddev(prepared, result, groups),
            )
        )

    def _drawn_stddev(self, prepared: PreparedSum, result: ClientSum, groups: Sequence[int]) -> float:
        """Return the standard deviation of a sum's noise: as planned, or larger if clients really added more.

        Shares are sized for those who may drop out, and here nobody does. In levels what is too much is
        taken out again.
        """
        members, parameters = len(result.members), prepared.parameters
        planned = max(self.plan.groups[m].at(prepared.order.round_index).noise_stddev for m in groups)
        if not result.share_stddev or not members or parameters.noise_levels:
            return planned
        return max(planned, math.sqrt(members) * parameters.client_noise_stddev(members))

    def add_updates(
        self,
        round_index: int,
        asked: npt.NDArray[np.bool_],
        projections: Vectors,
        noise_stddev: npt.NDArray[np.float64],
    ) -> None:
        """Record the projections of single client updates, each of which carries noise of its own."""
        parts = tuple(range(len(parts_of(self.plan))))
        self.sums.append(
            RevealedSum(
                round_index,
                parts,
                asked,
                projections,
                noise_stddev,
                name=f"updates {sum(each.round_index == round_index for each in self.sums)}",
                clients=(),
                pure_noise=self._in_updates(projections, noise_stddev),
                drawn_stddev=1.0,
            )
        )

    def _in_updates(
        self, projections: Vectors, noise_stddev: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float32]:
        """Return the noise at the coordinates of absent canaries, in standard deviations; NaN elsewhere."""
        directions, found = self.canaries.directions, np.full(len(self.start), np.nan, dtype=np.float32)
        if isinstance(directions, DiracDirections):
            absent = (self.canaries.signs == 0) & (noise_stddev > 0)
            found[directions.coordinates[absent]] = projections[absent] / noise_stddev[absent]
        return np.asarray(found[self.watched])

    def _groups_of(self, clients: Sequence[int]) -> tuple[int, ...]:
        groups = self.plan.groups
        if self.plan.one_sum:
            return tuple(range(len(groups)))
        return tuple(index for index, group in enumerate(groups) if np.isin(clients, group.clients).any())


class ReleasedModels(Observer):
    """Observes a run: records released models and the log after every round, and the ledger at the end."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._ledger = Path()

    def round_ended(self, ended: RoundEnded) -> None:
        moved = ended.released.astype(np.float64) - self._transcript.start
        self._transcript.models.append(self._transcript.canaries.directions.project(moved))
        self._transcript.records.append(ended.record)

    def opened(self, run: RunOpened) -> None:
        self._ledger = run.path / LEDGER_FILE

    def closed(self) -> None:
        if self._ledger.exists():
            self._transcript.ledger = json.loads(self._ledger.read_text("utf-8"))


class WatchedFleet(InProcessFleet):
    """A fleet of simulated clients that records every sum, even one that the run does not use.

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
