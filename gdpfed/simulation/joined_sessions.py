"""Secure aggregation in memory: the clients' real sessions, joined to the server's without messages."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.update import noise_steps
from gdpfed.simulation.engine import Steps
from secagg import ClientPolicy, ClientSession, Encoding, Identity, RoundParameters, SecAggError, Stage

logger = logging.getLogger(__name__)

Given = TypeVar("Given")
Made = TypeVar("Made")
Train = Callable[[Sequence[int], Encoding], Iterator[tuple[Sequence[int], Steps]]]

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
    roster = public_keys(identities)
    return {
        client_id: ClientSession(client_id, _POLICY, identity=identities.get(client_id), roster=roster)
        for client_id in clients
    }


def public_keys(identities: Mapping[int, Identity]) -> dict[int, bytes]:
    """The roster of these identities."""
    return {client_id: identity.public_bytes() for client_id, identity in identities.items()}


class JoinedSessions:
    """The clients of one wave of sums, from their first key to the last share.

    Args:
        sessions: their sessions, by client id.
        train: from ids and the grid of their sum to their updates, some at a time.
        order: what they train, and the law of their noise.
        context: names the training, see `TrainingOrder.context`.
    """

    def __init__(
        self, sessions: Mapping[int, ClientSession], train: Train, order: TrainingOrder, context: bytes
    ) -> None:
        self._sessions = sessions
        self._train = train
        self._order = order
        self._context = context

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
            for trained, steps in self._train(clients, parameters.encoding(num_contributors)):
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
