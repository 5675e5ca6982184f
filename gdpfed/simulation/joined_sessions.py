"""Secure aggregation in memory: the clients' real sessions, joined to the server's without messages."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from gdpfed.client_update import noise_steps
from gdpfed.learning.order import TrainingOrder
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Engine, Steps, cohorts_of
from secagg import ClientPolicy, ClientSession, Identity, RoundParameters, SecAggError, Stage

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


class JoinedSessions:
    """The clients of one wave of sums, from their first key to the last share.

    Args:
        engine: trains them.
        order, theta: what they train, and from where.
        clipping_norms: C_i of those that have a bound of their own.
        clients: their ids.
        identities: the signing keys of all of them, in active mode.
        roster: the public keys to these.
    """

    def __init__(
        self,
        engine: Engine,
        order: TrainingOrder,
        theta: Theta,
        clipping_norms: Mapping[int, float],
        clients: Sequence[int],
        identities: Mapping[int, Identity],
        roster: Mapping[int, bytes],
    ) -> None:
        self._engine = engine
        self._order = order
        self._theta = theta
        self._clipping_norms = clipping_norms
        self._context = order.context(theta)
        self._sessions = {
            client_id: ClientSession(client_id, _POLICY, identity=identities.get(client_id), roster=roster)
            for client_id in clients
        }

    def exchange(self, stage: Stage, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers to one stage's requests; a session that fails has none."""
        if stage is Stage.MASK:
            return self._masked_updates(requests)
        return self._each(stage, _CALLS[stage], requests)

    def _masked_updates(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Stage 3: all clients of one sum train together, then each masks its own update."""
        contributors = self._each(Stage.MASK, ClientSession.accept_shares, requests)
        sums: dict[tuple[RoundParameters, int], list[int]] = {}
        for client_id, num_contributors in contributors.items():
            sums.setdefault((self._sessions[client_id].parameters, num_contributors), []).append(client_id)
        answers: dict[int, bytes] = {}
        for (parameters, num_contributors), clients in sums.items():
            mask = partial(self._mask, num_contributors)
            encoding = parameters.encoding(num_contributors)
            for cohort in cohorts_of(clients, encoding, self._clipping_norms):
                for trained, steps in self._engine.updates(self._order, self._theta, cohort):
                    answers |= self._each(Stage.MASK, mask, dict(zip(trained, steps, strict=True)))
        return answers

    def _mask(self, num_contributors: int, session: ClientSession, steps: Steps) -> bytes:
        noise = noise_steps(self._order, session.parameters, num_contributors, session)
        encoding = session.parameters.encoding(num_contributors)
        return session.mask(encoding.to_residues(steps + noise), self._context)

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
