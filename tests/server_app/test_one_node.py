"""Tests of false messages from one node: the run loses at most that node, and goes on."""

import json
import math
from types import SimpleNamespace
from typing import cast

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from conf.load import load
from gdpfed.clients.messages import JOIN, MOST_CHARACTERS, WIRE_VERSION, one_line
from gdpfed.clients.versions import differences, versions_here
from gdpfed.errors import RunError
from gdpfed.federation.server.join import Joined, OwnBudget, join_clients
from gdpfed.federation.server.questions import Bounds, NodeReply, Questions
from server_app.exchange import GridTransport, pulled
from testing.local_grid import FIRST_NODE_ID, LocalGrid, as_grid, ask, identify_task, make_context
from testing.small_runs import grid_of_owners, ledger_of, run

NUM_CLIENTS, LIAR = 8, 3
EVERYBODY = [f"dataset.num_clients={NUM_CLIENTS}", "method=dp_fedavg", "privacy.sampling_rate=1"]
SOME = [
    *EVERYBODY,
    "run.num_rounds=1",
    "secagg.dropout_tolerance=0.2",
    f"run.minimum_nodes={NUM_CLIENTS - 1}",
]
QUESTIONS = Questions("curious", "test run", None)
UGLY = "a\x1b[31mred\r\nWARNING forged line\u202e " + "x" * 5000


def saying(**fields):
    return RecordDict({"client": ConfigRecord({"client_id": LIAR, **fields})})


JOIN_LIES = {
    "an empty refusal": RecordDict({"refusal": ConfigRecord()}),
    "a refusal of another type": RecordDict({"refusal": ArrayRecord()}),
    "a refusal that is a number": RecordDict({"refusal": ConfigRecord({"reason": 3})}),
    "an ugly refusal": RecordDict({"refusal": ConfigRecord({"reason": UGLY})}),
    "nothing": RecordDict(),
    "another record": RecordDict({"client": MetricRecord({"client_id": LIAR})}),
    "no number": saying(client_id="3"),
    "true": saying(client_id=True),
    "below zero": saying(client_id=-1),
    "too large": saying(client_id=10**9),
    "a list": saying(client_id=[3]),
    "an ugly number": saying(client_id=UGLY),
    "another client": saying(client_id=0),
    "epsilon nan": saying(epsilon=math.nan, delta=1e-3),
    "epsilon 1e400": saying(epsilon=math.inf, delta=1e-3),
    "epsilon zero": saying(epsilon=0.0, delta=1e-3),
    "epsilon next to none": saying(epsilon=1e-300, delta=1e-3),
    "epsilon true": saying(epsilon=True, delta=1e-3),
    "epsilon alone": saying(epsilon=1.0),
    "delta one": saying(epsilon=1.0, delta=1.0),
    "delta next to none": saying(epsilon=1.0, delta=1e-300),
    "messages of another version": saying(wire=WIRE_VERSION + 1),
    "an ugly version": saying(wire=UGLY),
}


@pytest.mark.parametrize("lie", JOIN_LIES)
def test_whatever_a_node_says_when_it_joins_only_it_is_lost(lie, caplog):
    def spoil(kind, client, content):
        return JOIN_LIES[lie] if client == LIAR else content

    joined = join_clients(
        GridTransport(as_grid(LocalGrid(NUM_CLIENTS, spoil=spoil)), 5.0),
        NUM_CLIENTS,
        QUESTIONS,
        NUM_CLIENTS - 1,
    )
    assert joined.nodes == {k: FIRST_NODE_ID + k for k in range(NUM_CLIENTS) if k != LIAR}
    assert list(joined.refused) == [FIRST_NODE_ID + LIAR]
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) < MOST_CHARACTERS + 200
    with pytest.raises(RunError, match=r"^no SuperNode says it is client 3 \(1 of 8 .*\): .*; [^\n]*$"):
        join_clients(GridTransport(as_grid(LocalGrid(NUM_CLIENTS, spoil=spoil)), 5.0), NUM_CLIENTS, QUESTIONS)


def test_versions_that_differ_are_said_in_one_line_and_the_run_goes_on(caplog):
    def spoil(kind, client, content):
        said = {LIAR: "torch 1.0", LIAR + 1: "torch 1.0", 0: UGLY, 1: 7}
        if client in said:
            content["client"]["versions"] = said[client]
        return content

    grid = as_grid(LocalGrid(NUM_CLIENTS, spoil=spoil))
    joined = join_clients(GridTransport(grid, 5.0), NUM_CLIENTS, QUESTIONS)
    assert len(joined.nodes) == NUM_CLIENTS
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert line.startswith(f"clients have other versions than the server ({versions_here()}): ")
    assert line.isprintable()
    told = dict.fromkeys(range(3), versions_here())
    assert differences(told) is None
    assert str(differences(told | {1: "torch 1.0", 2: "torch 1.0"})).endswith(": torch 1.0 at 1, 2")


def test_a_node_refuses_messages_of_another_version():
    other = WIRE_VERSION + 1
    question = RecordDict({"client": ConfigRecord({"wire": other})})
    (answer,) = ask(f"query.{JOIN}", question, make_context(0)).values()
    said = f"messages of version {other} are not understood here, where they have version {WIRE_VERSION}"
    assert said in answer["reason"]


@pytest.mark.parametrize(("epsilon", "joins"), [(0.5, True), (0.4999, False), (1e6, True), (1.0001e6, False)])
def test_a_budget_is_from_the_runs_floor_to_a_million(epsilon, joins, caplog):
    """A node joins only if its epsilon lies between the run's lower limit and a million."""
    questions = Questions("curious", "test run", None, bounds=Bounds(0.5, 10, 1e-8))
    reply = NodeReply({"client": {"client_id": LIAR, "epsilon": epsilon, "delta": 1e-3}})
    joined = Joined()
    joined.take({7: reply}, NUM_CLIENTS, questions)
    assert joined.budgets == ({LIAR: OwnBudget(epsilon, 1e-3)} if joins else {})
    assert ("from privacy.budget_floor=0.5 to 1e+06" in caplog.text) != joins


@pytest.mark.parametrize(("delta", "joins"), [(1e-8, True), (0.99e-8, False), (1e-12, False)])
def test_one_nodes_delta_does_not_raise_everybodys_noise(delta, joins, caplog):
    floor = load(["privacy.budgets=clients"]).privacy.delta_floor
    reply = NodeReply({"client": {"client_id": LIAR, "epsilon": 1.0, "delta": delta}})
    joined, bounds = Joined(), Bounds(0.1, 10, floor)
    joined.take({7: reply}, NUM_CLIENTS, Questions("curious", "test run", None, bounds=bounds))
    assert joined.budgets == ({LIAR: OwnBudget(1.0, delta)} if joins else {})
    assert ("is left out: it must be from privacy.delta_floor=1e-08 to below 1" in caplog.text) != joins


def test_the_floor_of_a_nodes_budget_is_the_configurations(tmp_path):
    grid = grid_of_owners(
        tmp_path / "ledgers", [0.25 if client == LIAR else 3.0 for client in range(NUM_CLIENTS)]
    )
    for floor, survivors in ((0.3, NUM_CLIENTS - 1), (0.2, NUM_CLIENTS)):
        words = [*SOME, "privacy.budgets=[0.1]", f"privacy.budget_floor={floor}"]
        (record,) = run(tmp_path / f"{floor}", words, grid=grid)
        assert record.survivors == [survivors]


@pytest.mark.parametrize("claims", [0, NUM_CLIENTS - 1, NUM_CLIENTS, -1])
def test_one_node_more_than_there_are_clients_is_left_out(claims, caplog):
    """A node beyond the number of clients is refused and asked only once; the nodes before it stay."""
    grid = LocalGrid(NUM_CLIENTS + 1)
    extra = FIRST_NODE_ID + NUM_CLIENTS
    grid.contexts[extra].node_config["partition-id"] = claims
    joined = join_clients(GridTransport(as_grid(grid), 5.0), NUM_CLIENTS, QUESTIONS)
    assert joined.nodes == {k: FIRST_NODE_ID + k for k in range(NUM_CLIENTS)}
    assert list(joined.refused) == [extra]
    assert len(grid.exchanges) == 1


def test_a_node_that_comes_after_a_liar_is_waited_for(monkeypatch):
    """The server waits for a late honest node, even if a node with a false id makes nodes seem enough."""
    grid = LocalGrid(NUM_CLIENTS + 1)
    grid.contexts[FIRST_NODE_ID].node_config["partition-id"] = 10**6
    last = FIRST_NODE_ID + NUM_CLIENTS
    grid.contexts[last].node_config["partition-id"] = 0
    everybody, asked = grid.get_node_ids, []

    def coming():
        asked.append(0)
        return [node for node in everybody() if node != last or len(asked) > 2]

    monkeypatch.setattr(grid, "get_node_ids", coming)
    assert join_clients(GridTransport(as_grid(grid), 5.0), NUM_CLIENTS, QUESTIONS).nodes[0] == last


@pytest.mark.parametrize("question", ["offer", "begin"])
@pytest.mark.parametrize("answer", [{}, {"reason": 3}, {"reason": UGLY}])
def test_a_node_that_garbles_its_agreement_is_left_out(tmp_path, question, answer, caplog):
    """A node with a damaged answer to the terms is left out, or is named if the run needs all nodes."""

    def spoil(kind, client, content):
        garbled = kind == question and client == LIAR
        return RecordDict({"refusal": ConfigRecord(answer)}) if garbled else content

    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS, spoil=spoil)
    (record,) = run(tmp_path / "run", [*SOME, "privacy.budgets=[3]"], grid=grid)
    assert record.survivors == [NUM_CLIENTS - 1]
    assert ledger_of(tmp_path / "ledgers", 0).runs[0].rounds == [0]
    assert "client 3 does not" in caplog.text
    if question == "offer":
        grid = grid_of_owners(tmp_path / "more ledgers", [3.0] * NUM_CLIENTS, spoil=spoil)
        with pytest.raises(RunError, match="^client 3 does not take part in this run: [^\n]*$"):
            run(tmp_path / "another server" / "run", [*EVERYBODY, "privacy.budgets=[3]"], grid=grid)


STAGE_LIES = [
    RecordDict(),
    RecordDict({"refusal": ConfigRecord()}),
    *(
        RecordDict(dict.fromkeys(("advertise", "share", "mask", "unmask", "plain"), record))
        for record in (
            ConfigRecord(),
            ConfigRecord({"data": "text"}),
            ConfigRecord({"data": b""}),
            ConfigRecord({"data": [b"many"]}),
            ConfigRecord({"refusal": [1.0, 2.0]}),
            ConfigRecord({"refusal": UGLY}),
            ConfigRecord({"data": b"\x03" * 100}),
            ArrayRecord(),
            MetricRecord({"data": 1.0}),
        )
    ),
]


@pytest.mark.parametrize("secagg", ["pairwise", "off"])
def test_whatever_a_client_answers_in_a_stage_the_sum_stands_without_it(
    tmp_path, secagg, caplog, monkeypatch
):
    """Every sum succeeds without a client that sends one false answer after another."""
    monkeypatch.setattr("gdpfed.rounds.pairwise.MOST_STRIKES", 10**6)

    def spoil(kind, client, content):
        if client != LIAR or kind == "join":
            return content
        told[0] += 1
        return STAGE_LIES[told[0] % len(STAGE_LIES)]

    told = [0]
    settings = {"secagg-mode": "off"} if secagg == "off" else {}
    grid = LocalGrid(NUM_CLIENTS, spoil=spoil, node_config=settings)
    rounds = len(STAGE_LIES)
    overrides = [*EVERYBODY, f"run.num_rounds={rounds}", "secagg.dropout_tolerance=0.2", f"secagg={secagg}"]
    records = run(tmp_path / "run", overrides, grid=grid)
    assert [record.failures for record in records] == [{}] * rounds
    assert all(record.survivors[0] >= NUM_CLIENTS - 1 for record in records)
    assert told[0] >= rounds
    assert all(
        record.getMessage().isprintable() for record in caplog.records if "left in stage" in record.msg
    )
    assert "forged" not in json.dumps([record.to_json() for record in records])


def reply_to(message_id):
    return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=message_id))


class GridWithABadReply:
    """A grid that, like Flower's, raises an error at a damaged reply and loses the replies before it."""

    def __init__(self, error):
        self.error, self.there = error, ["a", "bad", "z"]

    def pull_messages(self, message_ids):
        found = []
        for message_id in [each for each in self.there if each in message_ids]:
            self.there.remove(message_id)
            if message_id == "bad":
                raise self.error
            found.append(reply_to(message_id))
        return found


@pytest.mark.parametrize("error", [ValueError("Unexpected format"), KeyError("x"), RuntimeError("x")])
def test_a_reply_that_flower_cannot_read_loses_its_node(error):
    grid = GridWithABadReply(error)
    found = [
        reply.metadata.reply_to_message_id
        for reply in pulled(cast("Grid", grid), {"a", "bad", "z", "silent"})
    ]
    assert found == ["z"]
    assert grid.there == []


def test_a_superlink_that_is_gone_is_no_nodes_fault():
    with pytest.raises(httpx.ConnectError):
        pulled(cast("Grid", GridWithABadReply(httpx.ConnectError("gone"))), {"bad", "z"})


def test_a_reply_to_nothing_or_a_second_one_is_no_reply():
    grid = SimpleNamespace(pull_messages=lambda ids: [reply_to("a"), reply_to("a"), reply_to("other")])
    assert len(pulled(cast("Grid", grid), {"a", "b"})) == 1


@pytest.mark.parametrize(
    "said", [UGLY, "", "two\nlines", "\x00\x07", 3, 1e400, True, None, b"bytes", ["x"] * 9999]
)
def test_what_a_node_says_is_one_printable_line(said):
    line = one_line(said)
    assert line.isprintable()
    assert len(line) <= MOST_CHARACTERS


def test_an_error_of_a_nodes_process_is_one_line_too(tmp_path):
    from flwr.app import Error

    from server_app.exchange import failure_of

    identify_task()
    question = Message(RecordDict({"x": ArrayRecord({"y": Array(np.zeros(1))})}), 1, "query.join")
    question.metadata.__dict__["_message_id"] = "1"
    reason = failure_of(Message(Error(code=1, reason=UGLY), reply_to=question))
    assert reason is not None
    assert reason.isprintable()
    assert len(reason) <= MOST_CHARACTERS
    rays = (
        "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor\x1b[39m "
        f"(pid=1, {'x' * 400})\n  File \"client_app.py\", line 163, in __call__\n    raise ValueError('No')\n"
        "ValueError: No query function registered with name 'join'\n\nThe above exception was the direct "
        "cause of the following exception:\n\nClientAppException: it failed\n'>"
    )
    cause = "ValueError: No query function registered with name 'join'"
    assert failure_of(Message(Error(code=1, reason=rays), reply_to=question)) == cause
    assert failure_of(Message(Error(code=1, reason="\x1b[36mred\x1b[0m"), reply_to=question)) == "red"
