"""Correlated noise as an extension: later sums subtract part of the noise of earlier sums.

Where the server adds the noise of sums in clear it keeps the bytes; where sums are masked the members of the
earlier sum send what they take back of their own shares, as members without an update.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import hypot
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gdpfed.clients.order import TrainingOrder
from gdpfed.methods.base import ClientSum, Cohorts, SumRequest
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.mechanism_options import HasTurns, taps_of
from gdpfed.privacy.mechanisms.scheduled.turns import NoiseStream
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.extensions.base import State, SumExtension
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.noise_streams import PREFIX, NoiseStreams, SumNoise
from gdpfed.rounds.prepared import PreparedSum
from secagg import Corrections, SumParameters

if TYPE_CHECKING:
    from gdpfed.rounds.run import OpenRun, PreparedRun


class CorrelatedNoise(SumExtension):
    """Gives a run's sums correlated noise: later sums subtract parts of the noise of earlier sums.

    `plan`: its sums of a group take back parts of the noise of earlier ones, as its taps say.
    `signed_tolerance`: the fraction of corrupt members if members sign what they have agreed to; else None.
    """

    key = PREFIX.rstrip(".")

    def __init__(self, plan: PrivacyPlan, signed_tolerance: float | None = None) -> None:
        self._plan, groups, self._signed_tolerance = plan, range(len(plan.groups)), signed_tolerance
        self.streams = NoiseStreams(max(len(taps_of(plan.mechanism, group)) for group in groups))
        self._taken_back: list[list[tuple[int, int]]] = []
        self._round_index = -1
        self._ledger: Ledger | None = None

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return this extension for a run; None if its clients do not take part by a schedule of rounds."""
        if not isinstance(run.method.plan.mechanism, HasTurns):
            return None
        secagg = run.config.secagg
        return cls(run.method.plan, secagg.corrupt_tolerance if secagg.signs else None)

    def asked(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> list[SumRequest]:
        """Add to each request the number of scheduled clients, and a hash of the noise that clients accepted.

        What is not a request is left as it is, for the ledger to refuse.
        """
        return [
            self._scheduled(request, order.round_index) if type(request) is SumRequest else request
            for request in requests
        ]

    def _scheduled(self, request: SumRequest, round_index: int) -> SumRequest:
        plan, asked = self._plan, request.clients.tolist()
        groups = enumerate(plan.groups) if asked and not plan.one_sum else ()
        m = next((m for m, group in groups if asked[0] in group.clients), 0)
        if not isinstance(plan.mechanism, HasTurns):
            return request
        schedule, taps = plan.mechanism.schedule(m, plan.groups), taps_of(plan.mechanism, m)
        agreed = ""
        if self._signed_tolerance is not None and any(request.taps):
            stddev = plan.groups[m].noise_stddev
            text = schedule.to_text()
            agreed = NoiseStream(plan.num_rounds, taps, stddev, self._signed_tolerance, text).digest
        return replace(request, scheduled_members=schedule.members(round_index, taps), agreed=agreed)

    def opened_run(self, run: "OpenRun") -> None:
        """Remember the run's privacy ledger, which knows in which rounds each client took part."""
        self._ledger = run.loop.state.ledger

    def drawn(
        self, fleet: Fleet, round_index: int, cohorts: Cohorts, present: Collection[int] | None
    ) -> Cohorts:
        """Replace absent clients by clients that missed a scheduled round before, as far as the plan allows.

        Where the server may lie a turn is lost, since members compare a sum with the schedule.
        """
        if present is not None and not fleet.secagg.signs and self._ledger is not None:
            cohorts = self._ledger.with_moved_turns(cohorts, round_index, present)
        return cohorts

    def sum_checked(
        self, fleet: Fleet, request: SumRequest, round_index: int, parameters: SumParameters
    ) -> SumParameters:
        """Return parameters of a sum that subtracts as much earlier noise as possible, for an early check."""
        if not (any(request.taps) and fleet.secagg.hides_updates):
            return parameters
        lags = [tap for tap in request.taps if tap > 0]
        largest = hypot(*lags) * _largest_share(parameters) / request.clipping_norm
        corrections = Corrections(len(lags) * len(request.clients), largest)
        return fleet.parameters(round_index, request, corrections)

    def sum_prepared(
        self, fleet: Fleet, request: SumRequest, prepared: PreparedSum, *, ahead: bool
    ) -> PreparedSum:
        """Give the sum its correlated noise: new noise, minus earlier noise that chosen clients subtract."""
        if not request.taps:
            return prepared
        draw, round_index = self.streams.expected if ahead else self.streams.draw, prepared.order.round_index
        noise = draw(request.name, request.taps, round_index)
        parameters, corrections = _with_corrections(fleet, request, prepared, noise)
        if fleet.secagg.hides_updates and not ahead:
            self.streams.asked(request.name, tuple(prepared.clients), _largest_share(parameters))
        beside = replace(prepared.beside, noise=noise, corrections=corrections)
        return replace(prepared, parameters=parameters, beside=beside)

    def sums_ended(self, order: TrainingOrder, sums: Mapping[str, ClientSum]) -> None:
        """Keep the noise keys of released sums, and erase keys that no later round needs."""
        self.streams.round_ended(order.round_index, sums)

    def taken(self, order: TrainingOrder, sums: Sequence[ClientSum]) -> list[ClientSum]:
        """Note which clients subtracted noise of which earlier rounds; return the sums unchanged."""
        if order.round_index != self._round_index:
            self._round_index, self._taken_back = order.round_index, []
        self._taken_back += [[(client, turn + 1) for client, turn in each.taken_back] for each in sums]
        return list(sums)

    def record(self) -> dict[str, Any]:
        """Return, for the log, which clients subtracted earlier noise in the round that has ended."""
        return {"taken_back": self._taken_back} if any(self._taken_back) else {}

    def state_dict(self) -> State:
        """Return the stored noise keys, as bytes for each sum."""
        return {name.removeprefix(PREFIX): value for name, value in self.streams.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> None:
        """Restore noise keys that `state_dict` returned; raise ValueError for keys of another run."""
        self.streams.restore({f"{PREFIX}{name}": np.asarray(value) for name, value in state.items()})


def _with_corrections(
    fleet: Fleet, request: SumRequest, prepared: PreparedSum, noise: SumNoise
) -> tuple[SumParameters, dict[int, tuple[int, ...]]]:
    """Return a sum's parameters, and for each client that subtracts earlier noise the rounds of that noise.

    Where colluders could be all who add new noise, only those take back who bring an update, too. What is
    never taken back costs accuracy and no epsilon.
    """
    # The earlier rounds whose noise each reachable client can subtract in a masked sum. Where keys are agreed
    # a round ahead, nobody knows yet whose share is in the sum that is running. So whoever was asked for one
    # is a member, and takes nothing back where it is not.
    turns: dict[int, list[int]] = {}
    for earlier, _ in noise.taken_back if fleet.secagg.hides_updates else ():
        for client in earlier.asked if fleet.prepares_ahead else earlier.members:
            turns.setdefault(client, [])
        for client in earlier.members:
            turns[client].append(earlier.round_index)
    reachable = fleet.reachable(turns)
    everybody = {client: tuple(sorted(turns[client])) for client in sorted(turns) if client in reachable}

    updates = set(request.clients.tolist())
    with_update = {client: everybody[client] for client in sorted(everybody.keys() & updates)}
    largest = noise.largest_correction / request.clipping_norm
    for corrections in (everybody, with_update):
        others = Corrections(len(corrections.keys() - updates), largest)
        with suppress(ValueError):
            return fleet.parameters(prepared.order.round_index, request, others), corrections
    return prepared.parameters, {}


def _largest_share(parameters: SumParameters) -> float:
    """Return the largest standard deviation of one client's noise, reached if all tolerated dropouts occur.

    So it is known when keys are agreed for the sum in which parts of it are taken back.
    """
    return parameters.client_noise_stddev(
        max(parameters.num_updates - parameters.dropout_tolerance, parameters.fewest_updates)
    )
