"""Tests of rounds with lost, repeated, late and damaged messages: an exact sum or a typed error."""

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from secagg import ClientStage, LocalProtocolError, RemoteProtocolError, Stage, ThresholdNotMet
from testing.secagg_sums import IDS, Joined, make_parameters

NUM_CLIENTS = 9
MODES: dict[str, dict[str, Any]] = {
    "active": {"mode": "active", "threshold": 6, "dropout_tolerance": 2},
    "active, noise removed, packed": {
        "mode": "active",
        "threshold": 6,
        "dropout_tolerance": 2,
        "noise_levels": 2,
        "modulus_bits": 29,
    },
    "complete": {},
    "noise removed": {"noise_levels": 2},
    "sparse": {"num_neighbours": 6, "threshold": 4},
    "sparse, noise removed, packed": {
        "num_neighbours": 6,
        "threshold": 4,
        "noise_levels": 3,
        "modulus_bits": 30,
    },
}
clients = st.sampled_from(IDS[:NUM_CLIENTS])


class RandomRound(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 3), mode=st.sampled_from(sorted(MODES)))
    def begin(self, seed: int, mode: str) -> None:
        values = {"dimension": 5, "dropout_tolerance": 3, "threshold": 5} | MODES[mode]
        self.joined = Joined(make_parameters(NUM_CLIENTS, **values), seed=seed)
        self.sent: list[tuple[int, bytes]] = []
        self.requested: list[tuple[int, bytes]] = []
        self.blamed: list[tuple[int, int | None]] = []

    @property
    def running(self) -> bool:
        return self.joined.server.stage not in (Stage.DONE, Stage.ERROR)

    def ask(self, client_id: int, request: bytes) -> bytes | None:
        self.requested.append((client_id, request))
        try:
            return self.joined.answer(client_id, request)
        except (RemoteProtocolError, LocalProtocolError):
            assert self.joined.clients[client_id].stage is ClientStage.ERROR
            return None

    def deliver(self, client_id: int, reply: bytes) -> None:
        try:
            self.joined.server.receive(client_id, reply)
        except RemoteProtocolError as error:
            self.blamed.append((client_id, error.sender))

    @rule(silent=st.sets(clients, max_size=1))
    def rest_of_stage(self, silent: set[int]) -> None:
        self.finish_stage(silent)

    def finish_stage(self, silent: set[int]) -> None:
        for client_id in IDS[:NUM_CLIENTS]:
            if client_id not in silent:
                self.answer(client_id)
        self.close()

    @rule(client_id=clients)
    def answer(self, client_id: int) -> None:
        if self.running and client_id in self.joined.server.pending:
            reply = self.ask(client_id, self.joined.server.requests()[client_id])
            if reply is not None:
                self.sent.append((client_id, reply))
                self.deliver(client_id, reply)

    @rule(client_id=clients)
    def reply_is_lost(self, client_id: int) -> None:
        if self.running and client_id in self.joined.server.pending:
            reply = self.ask(client_id, self.joined.server.requests()[client_id])
            if reply is not None:
                self.sent.append((client_id, reply))

    @rule(data=st.data(), sender=clients)
    def old_reply_arrives_perhaps_from_another(self, data: st.DataObject, sender: int) -> None:
        if self.running and self.sent:
            owner, reply = data.draw(st.sampled_from(self.sent))
            self.deliver(owner if data.draw(st.booleans()) else sender, reply)

    @rule(data=st.data())
    def old_request_arrives(self, data: st.DataObject) -> None:
        if self.running and self.requested:
            client_id, request = data.draw(st.sampled_from(self.requested))
            self.ask(client_id, request)

    @rule(client_id=clients, position=st.integers(0, 10**6), flip=st.integers(1, 255))
    def damaged_both_ways(self, client_id: int, position: int, flip: int) -> None:
        if self.running and client_id in self.joined.server.pending:
            request = self.joined.server.requests()[client_id]
            reply = self.ask(client_id, request)
            if reply is not None:
                at = position % len(reply)
                self.deliver(client_id, reply[:at] + bytes([reply[at] ^ flip]) + reply[at + 1 :])

    def close(self) -> None:
        if not self.running:
            return
        try:
            self.joined.server.close_stage()
        except (ThresholdNotMet, RemoteProtocolError):
            assert self.joined.server.stage is Stage.ERROR

    @invariant()
    def blame_names_the_sender(self) -> None:
        assert all(sender == named for sender, named in self.blamed)

    @invariant()
    def sum_is_exact_if_there_is_one(self) -> None:
        if self.joined.server.done:
            result = self.joined.server.result()
            expected = self.joined.expected(result.survivors, result.noise_level)
            assert np.array_equal(result.total, expected)
            tolerance = self.joined.parameters.dropout_tolerance
            assert len(result.survivors) >= result.num_contributors - tolerance

    def teardown(self) -> None:
        """Finish the round after all random steps; check who is blamed and that a sum is exact."""
        if hasattr(self, "joined"):
            while self.running:
                self.finish_stage(set())
            self.blame_names_the_sender()
            self.sum_is_exact_if_there_is_one()


TestRandomRound = RandomRound.TestCase
TestRandomRound.settings = settings(max_examples=150, stateful_step_count=12, deadline=None)
