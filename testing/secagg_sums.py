"""The server and clients of a secure sum in one process; a test passes their messages on."""

from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError
from secagg import (
    ClientPolicy,
    ClientSession,
    Identity,
    MaskedSum,
    Roster,
    ServerSession,
    Stage,
    SumParameters,
    keystream,
    threshold_for,
)
from secagg.crypto.keys import NO_CONTEXT, noise_key, noise_seeds

POLICY = ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.5)
IDS = (3, 11, 12, 77, 2**40, 2**64 - 1, 0, 500, 501, 502, *range(1000, 1300))
IDENTITIES = {i: Identity(sha256(f"identity {i}".encode()).digest()) for i in IDS[:20]}
ROSTER = Roster({i: identity.public_bytes() for i, identity in IDENTITIES.items()})
ACTIVE: dict[str, Any] = {"mode": "active", "threshold": 4}


def make_parameters(num_clients: int = 6, **changes: Any) -> SumParameters:
    values: dict[str, Any] = {
        "label": "run/round 1/group 0",
        "num_clients": num_clients,
        "threshold": threshold_for(num_clients, 0.5),
        "dropout_tolerance": 1,
        "dimension": 50,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
    }
    return SumParameters(**(values | changes))


class Joined:
    """A secure sum of random vectors; `expected` returns what the result must be.

    The clients after the first are those of whom no update is asked, as many as the parameters say.

    The parts of each one's noise are noted in `noise_parts`. Members' numbers are their client ids, so
    that tests can name them in messages, unless they are to be drawn as they are outside tests.
    """

    def __init__(
        self, parameters: SumParameters, *, seed: int = 0, serialise: bool = False, drawn: bool = False
    ) -> None:
        ids = IDS[: parameters.num_clients]
        self.parameters = parameters
        numbers = keystream(sha256(f"{seed}/numbers".encode()).digest())
        self.correctors = ids[1 : 1 + parameters.num_correctors]
        self.server = ServerSession(parameters, ids, ROSTER, numbers, self.correctors)
        if not drawn:
            self.server._clients = self.server._members = {i: i for i in ids}
            self.server._state.correctors = frozenset(self.correctors)
        self.clients = {i: self.new_client(i, seed) for i in ids}
        generator = np.random.default_rng(seed)
        self.vectors: dict[int, NDArray[np.int64]] = {
            i: generator.integers(0, 2**32, parameters.dimension, dtype=np.int64) for i in ids
        }
        self.serialise = serialise
        self.contexts: dict[int, bytes] = {}
        self.masked: dict[int, bytes] = {}
        self.noise_parts: dict[int, list[NDArray[np.int64]]] = {}

    @staticmethod
    def new_client(client_id: int, seed: int = 0) -> ClientSession:
        source = keystream(sha256(f"{seed}/{client_id}".encode()).digest())
        return ClientSession(client_id, POLICY, source, IDENTITIES.get(client_id), ROSTER)

    def answer(self, client_id: int, request: bytes) -> bytes:
        """Return the client's reply to a request of the server's present stage."""
        if self.serialise:
            self.clients[client_id] = self.restored(client_id)
        client = self.clients[client_id]
        if self.server.stage is Stage.ADVERTISE:
            return client.advertise(request)
        if self.server.stage is Stage.SHARE:
            return client.share(request)
        if self.server.stage is Stage.CHECK:
            return client.check(request)
        if self.server.stage is Stage.UNMASK:
            return client.unmask(request)
        client.accept_shares(request)
        if self.serialise:
            self.clients[client_id] = self.restored(client_id)
        self.masked[client_id] = self.mask(self.clients[client_id])
        return self.masked[client_id]

    def restored(self, client_id: int) -> ClientSession:
        saved = self.clients[client_id].to_bytes()
        return ClientSession.from_bytes(saved, POLICY, identity=IDENTITIES.get(client_id), roster=ROSTER)

    def mask(self, client: ClientSession) -> bytes:
        noise: Literal["discrete_gaussian"] | None = None
        if self.parameters.noise_multiplier and not client.corrects:
            self.noise_parts[client.client_id], noise = parts_of(client), "discrete_gaussian"
        context = self.contexts.get(client.client_id, NO_CONTEXT)
        return client.mask(self.vectors[client.client_id], context, noise=noise)

    def number(self, client_id: int) -> int:
        """Return the client's member number in the secure sum."""
        return self.clients[client_id].member

    def exchange(
        self, silent: Collection[int] = (), alter: Callable[[int, bytes], bytes] = lambda _, reply: reply
    ) -> None:
        """Run one stage of the secure sum, in which `silent` clients do not answer, and close the stage."""
        for client_id, request in self.server.requests().items():
            if client_id not in silent:
                self.server.receive(client_id, alter(client_id, self.answer(client_id, request)))
        self.server.close_stage()

    def exchange_until(self, stage: Stage) -> None:
        while self.server.stage is not stage:
            self.exchange()

    def run(self, silent: dict[Stage, Collection[int]] | None = None) -> MaskedSum:
        while not self.server.done:
            self.exchange((silent or {}).get(self.server.stage, ()))
        return self.server.result()

    def expected(self, survivors: Iterable[int], level: int = 0) -> NDArray[np.uint32]:
        total = np.zeros(self.parameters.dimension, dtype=np.uint32)
        for client_id in survivors:
            total += self.vectors[client_id].astype(np.uint32)
            for part in self.noise_parts.get(client_id, [])[: level + 1]:
                total += part.astype(np.uint32)
        return total & np.uint32(2**self.parameters.modulus_bits - 1)


def parts_of(client: ClientSession) -> list[NDArray[np.int64]]:
    """Compute the parts of a client's noise without the code of the client's session, as a check."""
    state, parameters = client._state, client.parameters
    levels = state.encoding().levels
    if levels is None:
        raise InputError(f"client {client.client_id} is in a sum without noise, and has no parts of one")
    seeds = [state.base_noise_seed, *noise_seeds(state.noise_seed, parameters.noise_levels)]
    return [
        levels.draw(part, parameters.dimension, noise_key(state.sid, seeds[part], client.member))
        for part in range(len(levels.multipliers) + 1)
    ]
