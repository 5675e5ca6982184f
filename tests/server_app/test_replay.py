"""Tests of a node that is killed after its answer, before Flower stores its Context, and is asked again.

Flower sends a reply before it stores the Context, so the node has the Context from before the answer. Here
that Context is put back, and the server asks the same stage again.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from gdpfed.clients.messages import DATA, REFUSAL, THETA_RECORD, UNMASK
from gdpfed.federation.node.ledger_file import locked_ledger
from secagg.protocol.sum_messages import UnmaskReply, UnmaskRequest
from testing.local_grid import FIRST_NODE_ID, LocalGrid, kinds_of
from testing.small_runs import run

NUM_CLIENTS, VICTIM = 8, 4
OVERRIDES = [
    f"dataset.num_clients={NUM_CLIENTS}",
    "method=dp_fedavg",
    "privacy.sampling_rate=1",
    "privacy.budgets=[3]",
    "run.num_rounds=2",
    "secagg.dropout_tolerance=0.2",
]


class KilledGrid(LocalGrid):
    """A grid that asks one node a stage twice, the second time with the node's state from before."""

    def __init__(self, stage: str, other, **settings: Any) -> None:
        super().__init__(NUM_CLIENTS)
        self.stage, self.other = stage, other
        self.contexts[FIRST_NODE_ID + VICTIM].node_config |= settings
        self.twice: list[tuple[Any, Any]] = []

    def _deliver(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if node != FIRST_NODE_ID + VICTIM or self.stage not in kinds_of(message):
            return super()._deliver(message)
        context = self.contexts[node]
        before, content = deepcopy(context.state), deepcopy(message.content)
        reply = super()._deliver(message)
        assert reply is not None
        after, context.state = context.state, before
        answer: Any = reply.content[self.stage]
        again = Message(self.other(content, answer), node, message.metadata.message_type)
        second = self.app(again, context).content[self.stage]
        self.twice.append((answer, second))
        context.state = after
        return reply


def same(content: RecordDict, answer: Any) -> RecordDict:
    return content


def other_model(content: RecordDict, answer: Any) -> RecordDict:
    theta = content.array_records[THETA_RECORD][THETA_RECORD].numpy() + np.float32(1)
    return RecordDict({**content, THETA_RECORD: ArrayRecord({THETA_RECORD: Array(theta)})})


def other_survivors(content: RecordDict, answer: Any) -> RecordDict:
    """Return an unmask request in which one survivor, not the victim, is said to be lost."""
    record: dict[str, Any] = dict(content.config_records[UNMASK])
    truth = UnmaskRequest.decode(record[DATA])
    lost = next(member for member in truth.survivors if member != UnmaskReply.decode(answer[DATA]).sender)
    lie = replace(truth, survivors=tuple(sorted(set(truth.survivors) - {lost})), dropped=(lost,))
    return RecordDict({**content, UNMASK: ConfigRecord({**record, DATA: lie.encode()})})


ATTACKS = [
    ("share", same),
    ("mask", same),
    ("mask", other_model),
    ("unmask", same),
    ("unmask", other_survivors),
]


@pytest.mark.parametrize(("stage", "other"), ATTACKS)
@pytest.mark.parametrize("setting", ["ledger", "session-file"])
def test_a_stage_that_was_answered_is_not_answered_again(tmp_path, stage, other, setting):
    """A node that was killed refuses to answer the same stage again, by its ledger or its session file."""
    settings = {setting: str(tmp_path / "own")} | (
        {"epsilon": 3.0, "delta": 1e-3} if setting == "ledger" else {}
    )
    grid = KilledGrid(stage, other, **settings)
    records = run(tmp_path / "run", OVERRIDES, grid=grid)
    assert [record.survivors for record in records] == [[NUM_CLIENTS]] * 2
    assert len(grid.twice) == 2
    for first, second in grid.twice:
        assert first.keys() == {DATA}
        assert second.keys() == {REFUSAL}
        assert "each stage is answered once" in str(second[REFUSAL]) or "has ended" in str(second[REFUSAL])
    if setting == "ledger":
        with locked_ledger(tmp_path / "own") as file:
            assert file.ledger.runs[0].rounds == [0, 1]


def test_without_a_file_of_its_own_a_killed_node_gives_both_secrets_of_a_neighbour_away(tmp_path):
    """Without a ledger or session file, a killed node reveals both secrets of a neighbour, as documented."""
    grid = KilledGrid("unmask", other_survivors)
    run(tmp_path / "run", OVERRIDES, grid=grid)
    for first, second in grid.twice:
        told, retold = (UnmaskReply.decode(each[DATA]) for each in (first, second))
        assert told.seed_shares.keys() & retold.key_shares.keys()


def test_no_session_is_left_on_the_disk_after_a_run(tmp_path):
    grid = LocalGrid(NUM_CLIENTS)
    for client, context in enumerate(grid.contexts.values()):
        context.node_config["session-file"] = str(tmp_path / f"{client}")
    run(tmp_path / "run", OVERRIDES, grid=grid)
    assert {(tmp_path / f"{client}").read_text() for client in range(NUM_CLIENTS)} == {
        '{\n "sessions": {}\n}\n'
    }


@pytest.mark.parametrize("setting", [{}, {"session-file": "own"}])
def test_a_session_that_is_too_old_is_erased_and_refused(tmp_path, setting):
    def late(kind, client, content):
        context = grid.contexts[FIRST_NODE_ID + client]
        if kind == "mask" and client == VICTIM:
            context.node_config["session-seconds"] = 1e-9
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=late)
    node = grid.contexts[FIRST_NODE_ID + VICTIM]
    node.node_config |= {key: str(tmp_path / name) for key, name in setting.items()}
    records = run(tmp_path / "run", [*OVERRIDES, "run.num_rounds=1"], grid=grid)
    assert [record.survivors for record in records] == [[NUM_CLIENTS - 1]]
    assert len(node.state) == 0
