"""Tests of damaged and random messages: nodes answer all, and the server leaves out only their sender."""

import logging
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from client_app.app import app
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.messages import MOST_CHARACTERS
from gdpfed.federation.node.sessions import MASKED_SLOT
from gdpfed.federation.server.join import Joined
from gdpfed.federation.server.questions import Questions
from secagg import RemoteProtocolError, Stage
from server_app.exchange import Exchanger, failure_of, joined, node_reply
from server_app.grid_fleet import GridFleet, answered_bytes
from testing.local_grid import FIRST_NODE_ID, LocalGrid, as_grid, identify_task, make_context
from testing.secagg_sums import Joined as JoinedSessions
from testing.secagg_sums import make_parameters
from testing.small_runs import as_charged, grid_of_owners, run, small_config
from tests.server_app.test_grid_fleet import request

NUM_CLIENTS = 4
MESSAGES = int(os.environ.get("FLOWER_FUZZ_MESSAGES", "1500"))
"""To a node, and as many to the server; `make fuzz` sends a million."""
SMALL = [f"dataset.num_clients={NUM_CLIENTS}", "privacy.sampling_rate=1", "run.num_rounds=1"]

RATE_OF_TERMS = 0.05
"""Terms are accounted for, which takes a hundred times as long as anything else here."""

Seen = tuple[str, RecordDict, RecordDict, dict[str, Any]]
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2**31, 2**63 - 1, -(2**63), True, 0.0, -1.0, float("nan"), float("inf"), 1e-300),
    *("", "text", "\x1b[31m\n", "x" * 5000, b"", b"\x00" * 40, [], [1, 2], [0.5], ["a"], [b"b"], [True]),
)


@pytest.fixture(autouse=True)
def quiet():
    """Disable logging, since these tests make nodes refuse many messages."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def recorded(folder, overrides, **settings) -> tuple[list[Seen], list[tuple[str, RecordDict]]]:
    """Run training; return what nodes were asked, with their state at that time, and what they answered."""
    asked: list[Seen] = []
    answered: list[tuple[str, RecordDict]] = []

    def meddle(kind, client, content):
        context = grid.contexts[FIRST_NODE_ID + client]
        asked.append((kind, RecordDict(dict(content)), RecordDict(dict(context.state)), context.node_config))
        return content

    def spoil(kind, client, content):
        answered.append((kind, RecordDict(dict(content))))
        return content

    epsilons = [3.0 if settings.pop("owner", False) else None] + [None] * (NUM_CLIENTS - 1)
    grid = grid_of_owners(folder / "ledgers", epsilons, meddle=meddle, spoil=spoil, node_config=settings)
    run(folder / "run", [*SMALL, *overrides], grid=grid)
    return asked, answered


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """Return the messages of two runs: one in which a node has a budget, and one with updates in clear."""
    private = ["method=dp_fedavg", "privacy.budgets=[3]", "privacy.noise=discrete_gaussian"]
    owners = recorded(tmp_path_factory.mktemp("owners"), private, owner=True)
    clear = recorded(
        tmp_path_factory.mktemp("clear"), ["method=fedavg", "secagg=off"], **{"secagg-mode": "off"}
    )
    return owners[0] + clear[0], owners[1] + clear[1]


def damaged(content: RecordDict, draw: random.Random) -> RecordDict:
    """Return the content with one to three faults, or sometimes random content in its place."""
    if draw.random() < 0.05:
        names = draw.choices(("mask", "unmask", "client", "refusal", "x"), k=2)
        return RecordDict({name: random_record(draw) for name in names})
    records: dict[str, Any] = dict(joined(content) if draw.random() < 0.3 else content)
    for _ in range(draw.randint(1, 3)):
        name = draw.choice([*records, "x"])
        fault = draw.random()
        if fault < 0.15 or name not in records:
            records[name] = random_record(draw)
        elif fault < 0.25:
            del records[name]
        elif isinstance(records[name], ConfigRecord):
            records[name] = damaged_fields(records[name], draw)
        elif isinstance(records[name], ArrayRecord):
            records[name] = random_arrays(draw, name)
    return RecordDict(records)


def damaged_fields(record: ConfigRecord, draw: random.Random) -> ConfigRecord:
    fields: dict[str, Any] = dict(record)
    name = draw.choice([*fields, "x"])
    value = fields.get(name)
    if isinstance(value, bytes) and value and draw.random() < 0.6:
        at = draw.randrange(len(value))
        fields[name] = draw.choice(
            (
                value[:at] + bytes([value[at] ^ 1 << draw.randrange(8)]) + value[at + 1 :],
                value[:at],
                value * 2,
            )
        )
    elif draw.random() < 0.2 and name in fields:
        del fields[name]
    else:
        fields[name] = draw.choice(VALUES)
    return ConfigRecord(fields)


def random_record(draw: random.Random) -> Any:
    return draw.choice(
        (
            lambda: ConfigRecord({draw.choice(("data", "refusal", "reason", "x")): draw.choice(VALUES)}),
            lambda: MetricRecord({"data": 1.0}),
            lambda: random_arrays(draw, "theta"),
            ConfigRecord,
        )
    )()


def random_arrays(draw: random.Random, name: str) -> ArrayRecord:
    shape, kind = (
        draw.choice(((0,), (3,), (650,), (5, 130))),
        draw.choice(("float32", "float64", "int8", "U2")),
    )
    array = Array(np.full(shape, draw.choice((0, 1)), dtype=kind))
    if draw.random() < 0.3:
        array.data = array.data[: draw.randrange(len(array.data))]
    return ArrayRecord({name: array})


def texts(content: RecordDict) -> Iterator[str]:
    for record in content.values():
        for key in ("reason", "refusal"):
            if isinstance(record, ConfigRecord) and key in record:
                yield str(record[key])


def test_a_node_answers_every_message_and_tells_no_more_than_one_line(messages):
    """A node in any state answers damaged messages without an error and keeps at most two sessions."""
    identify_task()
    draw = random.Random(20261122)
    for _ in range(MESSAGES):
        kind, content, state, config = draw.choice(messages[0])
        if kind in ("offer", "begin") and draw.random() > RATE_OF_TERMS:
            continue
        action = "query" if kind in ("join", "offer", "begin") else "train"
        context = Context(1, FIRST_NODE_ID, config, RecordDict(dict(state)), {})
        reply = app(Message(damaged(content, draw), FIRST_NODE_ID, f"{action}.{kind}"), context)
        assert not reply.has_error()
        assert all(said.isprintable() and len(said) <= MOST_CHARACTERS for said in texts(reply.content))
        assert len(context.state) <= 2


@pytest.mark.parametrize("kind", ["query.join", "train.advertise"])
def test_a_message_with_an_error_in_place_of_content_is_answered(kind):
    identify_task()
    message = Message(Error(1, "sent back"), reply_to=Message(RecordDict(), FIRST_NODE_ID, kind))
    reply = app(message, make_context(0))
    assert list(texts(reply.content)) == ["ValueError, see the log of the client"]


def test_a_session_that_cannot_be_erased_from_the_disk_is_a_refusal(tmp_path):
    """The folder of the session file is gone; the sum that was masked is not unmasked any more."""
    identify_task()
    context = make_context(0, {"session-file": str(tmp_path / "gone" / "sessions")})
    kept: dict[str, Any] = {"data": b"x", "handle": "ab", "opened": 1.0, "run": "run", "round": 0}
    context.state[MASKED_SLOT] = ConfigRecord(kept)
    asked = RecordDict({"advertise": ConfigRecord({"data": b"", "run": "run", "round": 1})})
    reply = app(Message(asked, FIRST_NODE_ID, "train.advertise"), context)
    (said,) = texts(reply.content)
    assert said.startswith("session-file=")
    assert MASKED_SLOT not in context.state


@pytest.fixture(scope="module")
def sessions():
    """Return for each stage a server's session, one of its clients and a valid answer of that client."""
    found = {}
    for stage in (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.UNMASK):
        joined = JoinedSessions(make_parameters(6))
        joined.exchange_until(stage)
        client_id, asked = next(iter(joined.server.requests().items()))
        found[str(stage)] = (joined, client_id, joined.answer(client_id, asked))
    return found


def test_the_server_takes_or_loses_every_answer(messages, sessions):
    """The server accepts a damaged answer, refuses it in one line, or raises an error that callers expect."""
    identify_task()
    draw = random.Random(20261123)
    question = Message(RecordDict(), FIRST_NODE_ID, "query.join")
    question.metadata.__dict__["_message_id"] = "1"
    for _ in range(MESSAGES):
        kind, content = draw.choice(messages[1])
        if kind in sessions and draw.random() < 0.7:
            content = RecordDict({kind: ConfigRecord({"data": sessions[kind][2]})})
        reply = Message(damaged(content, draw), reply_to=question)
        reason = failure_of(reply)
        assert reason is None or (reason.isprintable() and len(reason) <= MOST_CHARACTERS)
        joined = Joined()
        joined.take({FIRST_NODE_ID: node_reply(reply)}, NUM_CLIENTS, Questions("curious", "test run", None))
        assert set(joined.nodes) <= set(range(NUM_CLIENTS))
        assert all(0 < each.epsilon < float("inf") and 0 < each.delta < 1 for each in joined.budgets.values())
        for client_id, data in answered_bytes({0: reply.content}, kind).items():
            assert client_id == 0
            if kind in sessions:
                session, sender, _ = sessions[kind]
                with suppress(RemoteProtocolError):
                    session.server.receive(sender, data)


@pytest.mark.parametrize("secagg", ["pairwise", "off"])
def test_no_sum_ends_for_what_one_client_sends(tmp_path, secagg):
    """Sums succeed although one client of six answers every stage with damaged messages."""
    draw, num_clients = random.Random(20261124), 6
    config = small_config(
        tmp_path, ["dataset.num_clients=6", f"secagg={secagg}", "secagg.dropout_tolerance=0.2"]
    )
    grid = LocalGrid(
        num_clients,
        spoil=lambda kind, client, content: damaged(content, draw) if client == 2 else content,
        node_config={"secagg-mode": "off"} if secagg == "off" else None,
    )
    task = task_of(config)
    theta = np.zeros(650, np.float32)
    for _ in range(max(MESSAGES // 200, 1)):
        nodes = {k: FIRST_NODE_ID + k for k in range(num_clients)}
        fleet = GridFleet(Exchanger(as_grid(grid), nodes, 60.0), config.secagg, "fuzz")
        (done,) = fleet.sum_updates(
            order_of(config, task), as_charged([request(theta, "a", range(num_clients))])
        )
        assert done.failure is None
        assert done.survivors >= num_clients - 1
        assert done.total is not None
        assert np.isfinite(done.total).all()
