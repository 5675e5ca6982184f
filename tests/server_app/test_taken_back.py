"""Tests of runs whose nodes have budgets and subtract noise of earlier rounds inside masked sums."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.messages import CORRECTION_RECORD, ORDER_RECORD, REFUSAL, THETA_RECORD, TURNS
from gdpfed.federation.node.ledger_file import locked_ledger
from testing.local_grid import FIRST_NODE_ID, LocalGrid, refusals
from testing.small_runs import NUM_CLIENTS, grid_of_owners, only_a_card, run

EVERYONE = [
    *("method=dp_fedavg", "privacy.against=everyone", "privacy.accountant=pld", "privacy.budgets=[2]"),
    *("run.num_rounds=6", "privacy.sampling_rate=0.34", "secagg.dropout_tolerance=0.2"),
    "training.local_steps=1",
]
OWNERS = [2.0] * NUM_CLIENTS


@pytest.fixture(autouse=True)
def unobserved(monkeypatch):
    """Turn off all observers of these runs except the one that writes the model card."""
    monkeypatch.setattr("gdpfed.report.run_observers.default_observers", only_a_card)


def ledger_of(folder, client):
    with locked_ledger(folder / f"{client}.json") as file:
        return file.ledger.runs[0]


def test_a_run_with_budgets_goes_on_where_it_stopped_and_takes_back_what_was_added_before(tmp_path):
    nodes = tmp_path / "nodes"
    run(tmp_path / "run", [*EVERYONE, "run.stop_after_round=3"], grid=grid_of_owners(nodes, OWNERS))
    # New contexts, as of another run of Flower: what is kept of shares is in the nodes' own files.
    grid = grid_of_owners(nodes, OWNERS)
    records = run(tmp_path / "run", ["run.stop_after_round=null"], resume=True, grid=grid)
    assert refusals(grid) == []
    for before, record in zip([None, *records], records, strict=False):
        due = [] if before is None else [[(client, before.round) for client in before.turns[0]]]
        assert [[tuple(pair) for pair in each] for each in record.taken_back] == due
        assert record.survivors == [4]
    audit = audit_run(tmp_path / "run")
    assert audit.passed, audit.findings
    for client in range(NUM_CLIENTS):
        kept, first = ledger_of(nodes, client), client % 3
        assert kept.rounds == [first, first + 3]
        assert kept.taken_back == [(turn, turn + 1) for turn in kept.rounds if turn < 5]
        assert client > 2 or audit_node_ledger(nodes / f"{client}.json").passed
        # What nobody took back, in a round after the last, is all that is left of a share.
        assert ('"shares"' in (nodes / f"{client}.json.sessions").read_text()) == (first == 2)
    # A member without an update is sent neither an order nor the model.
    corrections = [reply for reply in grid.asked if CORRECTION_RECORD in reply]
    assert corrections
    assert not any({ORDER_RECORD, THETA_RECORD} & set(content) for content in corrections)


class AskingTwice(LocalGrid):
    """A grid that asks node 0 again for the noise it takes back, with its state and files from before."""

    twice: Any = None

    def _deliver(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        content = message.content
        if node != FIRST_NODE_ID or CORRECTION_RECORD not in content or self.twice is not None:
            return super()._deliver(message)
        context, again = self.contexts[node], deepcopy(message.content)
        sessions = Path(f"{context.node_config['ledger']}.sessions")
        state = deepcopy(context.state)
        before = sessions.read_bytes()
        reply = super()._deliver(message)
        after, context.state = context.state, state
        now = sessions.read_bytes()
        for data in (before, now):
            sessions.write_bytes(data)
            second = self.app(Message(deepcopy(again), node, message.metadata.message_type), context)
            self.twice = [*(self.twice or []), second.content["mask"]]
        context.state = after
        return reply


def test_a_node_that_is_asked_again_from_a_copy_of_its_session_file_sends_nothing_twice(tmp_path):
    plain = grid_of_owners(tmp_path / "nodes", OWNERS)
    grid = AskingTwice(NUM_CLIENTS)
    grid.contexts = plain.contexts
    run(tmp_path / "run", [*EVERYONE, "run.stop_after_round=2"], grid=grid)
    first, second = grid.twice
    # From the copies the session opens again; the ledger says that this was taken back.
    assert "has no noise to subtract in round 1" in first[REFUSAL]
    assert "has no open session" in second[REFUSAL]
    assert ledger_of(tmp_path / "nodes", 0).taken_back == [(0, 1)]


def test_a_server_that_asks_for_other_noise_gets_none(tmp_path):
    def meddle(kind, client, content):
        if kind == "mask" and CORRECTION_RECORD in content and client == 0:
            said = dict(content[CORRECTION_RECORD])
            content[CORRECTION_RECORD] = ConfigRecord({**said, TURNS: [1]})
        return content

    grid = grid_of_owners(tmp_path / "nodes", OWNERS, meddle=meddle)
    run(tmp_path / "run", [*EVERYONE, "run.stop_after_round=2"], grid=grid)
    (refusal,) = refusals(grid)
    assert "they are not before it" in refusal
    assert ledger_of(tmp_path / "nodes", 0).taken_back == []
