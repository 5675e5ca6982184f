"""Secure aggregation in memory: real client sessions, connected to the server without a network."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gdpfed.clients.keyed_noise import KeyedNoise, member_key
from gdpfed.clients.noise import keyed_steps, own_noise
from gdpfed.clients.update import filling_steps
from gdpfed.learning.task import choose_device
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.simulation.engine import Cohort, Engine, Steps, SumJob
from secagg import ClientPolicy, ClientSession, Identity, Roster, SecAggError, Stage

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
    """The signing keys of simulated clients, made when they are first needed."""

    def __init__(self) -> None:
        self._identities: dict[int, Identity] = {}

    def of(self, clients: Sequence[int]) -> dict[int, Identity]:
        """Return the signing keys of these clients, the same ones at every call."""
        for client_id in clients:
            if client_id not in self._identities:
                self._identities[client_id] = Identity(os.urandom(32))
        return {client_id: self._identities[client_id] for client_id in clients}


def roster_of(identities: Mapping[int, Identity]) -> Roster:
    """Return the list of members' public keys (roster) that belongs to these signing keys."""
    return Roster({client_id: identity.public_bytes() for client_id, identity in identities.items()})


class JoinedSessions:
    """The secure aggregation sessions of one sum's clients, from the first key to the last secret share.

    `prepared`: of which they are the clients. `identities`: what they sign with; empty where nobody signs.
    """

    def __init__(self, prepared: PreparedSum, identities: Mapping[int, Identity]) -> None:
        self._prepared = prepared
        roster = roster_of(identities)
        self._sessions = {
            client_id: ClientSession(client_id, _POLICY, identity=identities.get(client_id), roster=roster)
            for client_id in prepared.members
        }
        self._contributors: dict[int, int] = {}

    def answers(self, stage: Stage, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return the clients' answers to the requests of one stage; leave out clients whose sessions fail."""
        return self._each(stage, _CALLS[stage], requests)

    def jobs(self, requests: Mapping[int, bytes]) -> list[SumJob]:
        """Give clients the secret shares sent to them; return training jobs for the clients that must train.

        Who fills the sum or only takes noise back trains nothing.
        """
        contributors = self._each(Stage.MASK, ClientSession.accept_shares, requests)
        self._contributors = contributors
        prepared = self._prepared
        groups: dict[int, list[int]] = {}
        idle = prepared.without_update | prepared.fillers
        for client_id, num_contributors in contributors.items():
            if client_id not in idle:
                groups.setdefault(num_contributors, []).append(client_id)
        return [
            SumJob(
                prepared.order,
                prepared.start,
                Cohort(
                    clients,
                    prepared.parameters.encoding(num_contributors),
                    prepared.parts,
                    prepared.beside.kept,
                ),
            )
            for num_contributors, clients in groups.items()
        ]

    def corrections(self) -> dict[int, bytes]:
        """Return the masked vectors of clients that send no update and only subtract earlier noise."""
        correctors = self._contributors.keys() & self._prepared.without_update
        return self._each(Stage.MASK, self._correct, dict.fromkeys(sorted(correctors)))

    def filled(self) -> dict[int, bytes]:
        """Return the masked vectors of clients that fill up the sum: zeros and noise."""
        fillers = sorted(self._contributors.keys() & self._prepared.fillers)
        if not fillers:
            return {}
        zeros = filling_steps(self._prepared.parameters.encoding(self._contributors[fillers[0]]))
        return self.masked(fillers, [zeros] * len(fillers))

    def masked(self, clients: Sequence[int], steps: Iterable[Steps]) -> dict[int, bytes]:
        """Mask the updates of some clients, each by its own session."""
        return self._each(Stage.MASK, self._mask, dict(zip(clients, steps, strict=True)))

    def _mask(self, session: ClientSession, steps: Steps) -> bytes:
        prepared, stream, share = self._prepared, self._prepared.beside.noise, None
        num_contributors = self._contributors[session.client_id]
        if stream is not None:
            key = member_key(stream.key, session.client_id)
            share = KeyedNoise(key, prepared.parameters.client_noise_stddev(num_contributors))
        back = self._taken_back(session.client_id)
        noise = own_noise(prepared.order, prepared.parameters, num_contributors, share, back)
        return session.mask(steps, prepared.context, noise=noise)

    def _correct(self, session: ClientSession, _: None) -> bytes:
        device = choose_device(self._prepared.order.device)
        steps = keyed_steps(session.encoding(), [], self._taken_back(session.client_id), device)
        return session.mask(steps, self._prepared.context)

    def _taken_back(self, client_id: int) -> list[KeyedNoise]:
        """Return the parts of a client's earlier noise to subtract now, drawn again from their keys."""
        turns = self._prepared.beside.corrections.get(client_id, ())
        noise = self._prepared.beside.noise
        return [
            KeyedNoise(member_key(each.key, client_id), tap * each.share_stddev)
            for each, tap in (() if noise is None else noise.taken_back)
            if each.round_index in turns
        ]

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


def masked_updates(
    engine: Engine, asked: Sequence[tuple[JoinedSessions, Mapping[int, bytes]]]
) -> list[dict[int, bytes]]:
    """Answer the masking stage of several sums: train all clients at once, then mask each update."""
    jobs: list[SumJob] = []
    owners: list[int] = []
    for index, (joined, requests) in enumerate(asked):
        own = joined.jobs(requests)
        jobs += own
        owners += [index] * len(own)
    answers = [joined.corrections() | joined.filled() for joined, _ in asked]
    for number, clients, steps in engine.updates_of(jobs):
        index = owners[number]
        answers[index] |= asked[index][0].masked(clients, steps)
    return answers
