"""Secure aggregation in memory: the clients' real sessions, joined to the server's without messages."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from gdpfed.clients.update import own_noise
from gdpfed.rounds.fleet import PreparedSum
from gdpfed.simulation.engine import Cohort, Engine, Steps
from secagg import ClientPolicy, ClientSession, Identity, Roster, SecAggError, Stage, SumParameters

logger = logging.getLogger(__name__)

Given = TypeVar("Given")
Made = TypeVar("Made")

# What a node goes by that was told nothing else.
_POLICY = ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.5)
_CALLS: dict[Stage, Callable[[ClientSession, bytes], bytes]] = {
    Stage.ADVERTISE: ClientSession.advertise,
    Stage.SHARE: ClientSession.share,
    Stage.CHECK: ClientSession.check,
    Stage.UNMASK: ClientSession.unmask,
}


class Identities:
    """The signing keys of clients, made when they are first asked for."""

    def __init__(self) -> None:
        self._identities: dict[int, Identity] = {}

    def of(self, clients: Sequence[int]) -> dict[int, Identity]:
        """The identities of these clients, the same at every call."""
        for client_id in clients:
            if client_id not in self._identities:
                self._identities[client_id] = Identity(os.urandom(32))
        return {client_id: self._identities[client_id] for client_id in clients}


def open_sessions(clients: Sequence[int], identities: Mapping[int, Identity]) -> dict[int, ClientSession]:
    """A session for each client; with identities, each signs and knows the others' public keys."""
    roster = roster_of(identities)
    return {
        client_id: ClientSession(client_id, _POLICY, identity=identities.get(client_id), roster=roster)
        for client_id in clients
    }


def roster_of(identities: Mapping[int, Identity]) -> Roster:
    """The roster of these identities."""
    return Roster({client_id: identity.public_bytes() for client_id, identity in identities.items()})


class JoinedSessions:
    """The clients of one wave of sums, from their first key to the last share.

    Args:
        sessions: their sessions, by client id.
        sums: of which they are the clients.
        engine: trains them.
    """

    def __init__(
        self, sessions: Mapping[int, ClientSession], sums: Sequence[PreparedSum], engine: Engine
    ) -> None:
        self._sessions = sessions
        self._sums = {each.parameters.label: each for each in sums}
        self._engine = engine

    def exchange(self, stage: Stage, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers to one stage's requests; a session that fails has none."""
        if stage is Stage.MASK:
            return self._masked_updates(requests)
        return self._each(stage, _CALLS[stage], requests)

    def _masked_updates(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Stage 3: all clients of one sum train together, then each masks its own update."""
        contributors = self._each(Stage.MASK, ClientSession.accept_shares, requests)
        groups: dict[tuple[SumParameters, int], list[int]] = {}
        for client_id, num_contributors in contributors.items():
            key = self._sessions[client_id].parameters, num_contributors
            groups.setdefault(key, []).append(client_id)
        answers: dict[int, bytes] = {}
        for (parameters, num_contributors), clients in groups.items():
            own = self._sums[parameters.label]
            cohort = Cohort(clients, parameters.encoding(num_contributors), own.parts)
            mask = partial(self._mask, own, num_contributors)
            for trained, steps in self._engine.updates(own.order, own.start, cohort):
                answers |= self._each(Stage.MASK, mask, dict(zip(trained, steps, strict=True)))
        return answers

    def _mask(self, own: PreparedSum, num_contributors: int, session: ClientSession, steps: Steps) -> bytes:
        noise = own_noise(own.order, session.parameters, num_contributors)
        return session.mask(steps, own.context, noise=noise)

    def _each(
        self, stage: Stage, act: Callable[[ClientSession, Given], Made], given: Mapping[int, Given]
    ) -> dict[int, Made]:
        made: dict[int, Made] = {}
        for client_id, value in given.items():
            try:
                made[client_id] = act(self._sessions[client_id], value)
            except SecAggError as error:
                logger.warning("client %d left in stage %s: %s", client_id, stage, error)
        return made
