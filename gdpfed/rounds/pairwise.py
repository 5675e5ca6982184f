"""Runs several sums under secure aggregation together, with few message exchanges.

A sum's keys (stages advertise and share) depend on its cohort, not on the model. So clients can agree on them
while the sums of the previous round are masked and unmasked. That saves two of a round's exchanges.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from gdpfed.methods.base import ClientSum
from gdpfed.rounds.prepared import PreparedSum
from secagg import (
    Encoding,
    ImplausibleSum,
    RemoteProtocolError,
    Roster,
    ServerSession,
    Stage,
    SumParameters,
    ThresholdNotMet,
    check_sum,
)

logger = logging.getLogger(__name__)

AGREEMENT = (Stage.ADVERTISE, Stage.SHARE)


@dataclass(frozen=True)
class StageRequests:
    """The server's messages to the clients of one sum in one protocol stage, by client id.

    In one exchange, no client gets two messages of the same stage.
    """

    stage: Stage
    prepared: PreparedSum
    requests: Mapping[int, bytes]


MOST_STRIKES = 3
"""A client that was certainly at fault in this many sums is left out of all later sums."""

Exchange = Callable[[Sequence[StageRequests]], Sequence[Mapping[int, bytes]]]
"""Carries the requests to the clients and brings back the answers that came, in the same order."""


class RunningSum:
    """One sum under secure aggregation while it runs, stage by stage.

    Args:
        prepared: the sum and its clients.
        roster: the clients' public keys; empty if clients do not sign.
    """

    def __init__(self, prepared: PreparedSum, roster: Roster) -> None:
        self.prepared = prepared
        self.parameters = prepared.parameters
        self.failure: str | None = None
        others = prepared.without_update
        self._session = ServerSession(prepared.parameters, prepared.members, roster, correctors=others)

    @property
    def agreed(self) -> tuple[SumParameters, frozenset[int], frozenset[int]]:
        """What this sum's keys are valid for: its parameters, its clients, and those that send no update."""
        return self.parameters, self.prepared.members, self.prepared.without_update

    @property
    def running(self) -> bool:
        """Whether the sum has neither finished nor failed."""
        return self.failure is None and not self._session.done

    @property
    def blamed(self) -> frozenset[int]:
        """The clients that are certainly at fault in this sum."""
        return self._session.blamed

    @property
    def disputed(self) -> Mapping[int, Set[int]]:
        """Map each client left out after complaints to those who complained; either may be at fault."""
        return self._session.disputed

    @property
    def agreeing(self) -> bool:
        """Whether the members are still agreeing on the sum's keys."""
        return self.running and self._session.stage in AGREEMENT

    def bind(self, prepared: PreparedSum) -> None:
        """Set what clients compute for this sum; its keys may have been agreed on in the round before."""
        self.prepared = prepared
        if self.running:
            self._session.bind(prepared.context)

    def asks(self) -> StageRequests:
        """Return the sum's messages to clients in its present stage."""
        return StageRequests(self._session.stage, self.prepared, self._session.requests())

    def take(self, answers: Mapping[int, bytes]) -> None:
        """End the sum's present stage with the clients' answers; leave out clients with invalid answers."""
        for client_id, answer in answers.items():
            try:
                self._session.receive(client_id, answer)
            except RemoteProtocolError as error:
                logger.warning("client %d left in stage %s: %s", client_id, self._session.stage, error)
        try:
            self._session.close_stage()
        except (ThresholdNotMet, RemoteProtocolError) as error:
            self.failure = str(error)

    def _share_in(self, encoding: Encoding, num_contributors: int, level: int) -> float:
        """Return the standard deviation of that part of a client's noise which stays in the released sum."""
        if encoding.levels is None or not self.parameters.noise_levels:
            return self.parameters.client_noise_stddev(num_contributors)
        return encoding.grid * math.sqrt(encoding.levels.variance(level))

    def outcome(self) -> ClientSum:
        """Return the sum's result, or why there is none."""
        name = self.prepared.name
        if self.failure is not None:
            return ClientSum(name, None, 0, self.failure)
        result = self._session.result()
        encoding = self.parameters.encoding(result.num_contributors)
        total = encoding.decode(result.total)
        num_survivors, norms = len(result.survivors), self.prepared.norms_of(result.survivors)
        taken_back = self.prepared.beside.taken_back_by({*result.survivors, *result.correctors})
        # If a member is at fault, its noise seed may be lost: then its noise of all levels stays in the sum.
        level = self.parameters.noise_levels if self.blamed else result.noise_level
        try:
            check_sum(encoding, num_survivors, level, total, norms, len(dict(taken_back)))
        except ImplausibleSum as error:
            return ClientSum(name, None, 0, str(error))
        return ClientSum(
            name,
            total,
            num_survivors,
            upload_bytes=self.parameters.upload_bytes_per_coordinate,
            members=tuple(sorted(result.survivors)),
            share_stddev=self._share_in(encoding, result.num_contributors, level),
            asked=self.parameters.num_clients,
            taken_back=taken_back,
        )


class PairwiseSums:
    """Runs masked sums in every round; holds in memory the keys that clients agreed on for the next round.

    Args:
        roster_of: returns the public keys of given clients; an empty roster if clients do not sign.
    """

    def __init__(self, roster_of: Callable[[Sequence[int]], Roster]) -> None:
        self._roster_of = roster_of
        self._ahead: list[RunningSum] = []
        self._strikes: Counter[int] = Counter()

    @property
    def left_out(self) -> frozenset[int]:
        """Clients that were at fault in too many sums, and are not asked any more.

        The server treats them like clients that cannot be reached: they are not asked, and are charged as the
        sampling law says of unreachable clients. Their faults concern messages and reveal nothing about data.
        """
        return frozenset(client for client, count in self._strikes.items() if count >= MOST_STRIKES)

    def sum(
        self, exchange: Exchange, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]
    ) -> dict[str, ClientSum]:
        """Compute several sums together, in shared exchanges of messages; return the results by name.

        Args:
            exchange: carries messages to the clients and back.
            sums: the sums, without common clients.
            upcoming: the sums expected in the next round. If a sum then differs, its clients agree on keys
                again.
        """
        begun = [self._begun(each) for each in sums]
        while agreeing := [each for each in begun if each.agreeing]:
            _exchange_stage(exchange, agreeing)
        for each, prepared in zip(begun, sums, strict=True):
            each.bind(prepared)
        self._ahead = [self._new(each) for each in upcoming]
        while running := [each for each in begun if each.running]:
            _exchange_stage(exchange, running + [each for each in self._ahead if each.agreeing])
        for each in begun:
            self._note(each.blamed)
            for client_id, accusers in each.disputed.items():
                logger.warning(
                    "client %d is left out of %s: clients %s say that its shares do not open, and they or it "
                    "may be at fault; where the same clients stand here again, ask their operators",
                    client_id,
                    each.prepared.name,
                    ", ".join(map(str, sorted(accusers))),
                )
        return {each.prepared.name: each.outcome() for each in begun}

    def _note(self, blamed: Set[int]) -> None:
        for client_id in sorted(blamed):
            self._strikes[client_id] += 1
            logger.warning("client %d was at fault in %d sums", client_id, self._strikes[client_id])
            if self._strikes[client_id] == MOST_STRIKES:
                logger.warning("client %d is left out of the sums of this process from now on", client_id)

    def forget(self, clients: Set[int]) -> None:
        """Discard sums prepared ahead that include one of these clients; these clients lost their secrets."""
        self._ahead = [each for each in self._ahead if not each.prepared.members & clients]

    def _begun(self, prepared: PreparedSum) -> RunningSum:
        """Return a sum that was started ahead of time for the same clients and parameters; else a new sum."""
        new = self._new(prepared)
        return next((each for each in self._ahead if each.running and each.agreed == new.agreed), new)

    def _new(self, prepared: PreparedSum) -> RunningSum:
        return RunningSum(prepared, self._roster_of(sorted(prepared.members)))


def _exchange_stage(exchange: Exchange, sums: Sequence[RunningSum]) -> None:
    """Carry out the present protocol stage of every sum in one exchange of messages."""
    for each, answers in zip(sums, exchange([each.asks() for each in sums]), strict=True):
        each.take(answers)
