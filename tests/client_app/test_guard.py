"""Tests of a node's guard, the process that holds the node's data and keys and answers the node's app."""

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from client_app.app import app
from client_app.guard import (
    MOST_CONNECTIONS,
    MOST_RUNS,
    MOST_STRANGERS,
    MOST_WAITING,
    TOKEN_SECONDS,
    Guard,
    GuardServer,
    main,
)
from client_app.relay import MOST_BYTES, TOKEN_BYTES, GuardError, relayed, to_bytes, token_file
from gdpfed.clients.messages import CLIENT_RECORD, JOIN, MASK, REFUSAL, REFUSAL_RECORD, UNIT, RoundOfRun
from gdpfed.federation.node.node_settings import Node, NodeSettings
from gdpfed.federation.node.sessions import MASKED_SLOT, stored_session
from gdpfed.learning.data.source import DataSource, load_dataset
from testing.layered_runs import cloud_grid, run_layers
from testing.local_grid import FIRST_NODE_ID, LocalGrid, ask, identify_task, make_context
from testing.project import PROJECT
from testing.small_runs import final_model, grid_of_owners, ledger_of, run

CLIENTS = 4
SMALL = [f"dataset.num_clients={CLIENTS}", "privacy.sampling_rate=1", "run.num_rounds=2"]
LAYERED = ["training.local_steps=4", "dataset.model=softmax", "run.num_rounds=2"]
OF_EDGES = ["method=hier_fedavg", "method.local_aggregations=2", "method.num_subnets=1"]
LIGHT = {"gdpfed", "gdpfed.child_process", "gdpfed.errors"}


@contextmanager
def listening(guard, path):
    with GuardServer(path, guard) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def guarded(grid, folder):
    """Start a guard for each node of a test grid; only the guard has the node's settings from then on."""
    with ExitStack() as guards:
        for node_id, context in grid.contexts.items():
            path = folder / f"{node_id}.socket"
            guards.enter_context(listening(Guard(context.node_config), path))
            context.node_config = {"guard": str(path)}
        yield grid


@pytest.fixture
def path(tmp_path):
    """Start a guard for client 3, and yield the path of its socket."""
    with listening(Guard({"partition-id": 3}), tmp_path / "guard.socket"):
        yield tmp_path / "guard.socket"


def join_message(run_id=1):
    identify_task()
    message = Message(RecordDict({CLIENT_RECORD: ConfigRecord({UNIT: "client"})}), 1, f"query.{JOIN}")
    message.metadata.__dict__.update(_message_id="1", _run_id=run_id)
    return message


def said_to(path, data):
    """Send bytes to a guard's socket and return the guard's answer, or no bytes if there is no answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        with suppress(BrokenPipeError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def framed(data):
    return len(data).to_bytes(8) + data


def test_a_run_through_guards_is_the_run_without_them(tmp_path):
    words = [*SMALL, "method=fedavg"]
    run(tmp_path / "without", words)
    with guarded(LocalGrid(CLIENTS), tmp_path) as grid:
        run(tmp_path / "with", words, grid=grid)
    assert final_model(tmp_path / "with").tobytes() == final_model(tmp_path / "without").tobytes()
    assert all(not context.state for context in grid.contexts.values())


def test_edge_clients_with_guards_train_as_those_without(tmp_path):
    models = []
    for name, walls in (("with", guarded), ("without", lambda grid, folder: nullcontext())):
        root = tmp_path / name
        root.mkdir()
        edge_clients = cloud_grid([root / f"mailbox-{edge}" for edge in range(2)])
        with walls(edge_clients, root):
            run_layers(root, [LocalGrid(3), LocalGrid(3)], [*OF_EDGES, *LAYERED], LAYERED, edge_clients)
        models.append(final_model(root / "cloud").tobytes())
    assert models[0] == models[1]


def test_a_stage_that_is_asked_again_is_refused(tmp_path):
    """A guard refuses a message of the mask stage that it has answered before."""
    again, seen = [], []

    def meddle(kind, client, content):
        if kind == MASK and client == 0:
            seen.append(RecordDict(dict(content)))
        return content

    def spoil(kind, client, content):
        if kind == MASK and client == 0:
            again.append(ask(f"train.{MASK}", seen[-1], grid.contexts[FIRST_NODE_ID]))
        return content

    owners = grid_of_owners(tmp_path, [3.0] * CLIENTS, meddle=meddle, spoil=spoil)
    with guarded(owners, tmp_path) as grid:
        words = [*SMALL, "method=dp_fedavg", "privacy.budgets=[1]", "secagg.dropout_tolerance=0.3"]
        run(tmp_path / "run", words, grid=grid, without_a_sum=True)
    reasons = [str(each[MASK][REFUSAL]) for each in again]
    assert "the message is of round 0, and this client's keys are of round 1" in reasons[0]
    assert "no open session" in reasons[1]
    assert [len(ledger_of(tmp_path, client).runs[-1].rounds) for client in range(CLIENTS)] == [2] * CLIENTS


def test_the_app_loads_next_to_nothing_and_says_that_there_is_no_guard():
    words = """
import sys
from client_app.app import app
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
try:
    app(Message(RecordDict(), 1, "query.join"), Context(1, 1, {"guard": "/none/here"}, RecordDict(), {}))
except Exception as error:
    print(error)
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("gdpfed", "secagg", "torch", "scipy")))
"""
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    error, loaded = done.stdout.splitlines()
    assert error.startswith("guard=/none/here does not answer (")
    assert set(loaded.split()) == LIGHT


def test_the_guard_goes_by_its_own_settings(path):
    assert ask(f"query.{JOIN}", join_message().content, make(path))[CLIENT_RECORD]["client_id"] == 3
    with pytest.raises(GuardError, match="guard is given beside data, partition-id: .* out of --node-config"):
        app(join_message(), make(path, {"partition-id": 5, "data": "/etc"}))
    with pytest.raises(GuardError, match="guard is 5: give the path"):
        relayed(join_message(), make(5))


def test_a_run_whose_overrides_are_not_allowed_is_refused(tmp_path):
    settings = {"partition-id": 3, "allowed-overrides": "run.*"}
    with listening(Guard(settings), tmp_path / "guard.socket"):
        context = make(tmp_path / "guard.socket")
        context.run_config = {"overrides": "secagg=off"}
        answer = app(join_message(), context).content
    assert "overrides 'secagg=off'" in str(answer[REFUSAL_RECORD]["reason"])


def make(path, more=None):
    context = make_context(0)
    context.node_config = {"guard": path if path == 5 else str(path), **(more or {})}
    return context


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"abc", b"the connection ended after 3 of 8 bytes"),
        (b"GET / HT", b"a frame of 5135603447292250196 bytes is above the 2147483647 that"),
        (MOST_BYTES.to_bytes(8) + b"abc", b"the connection ended after 3 of 2147483647 bytes"),
        (framed(b"{}") + framed(b"\xff" * 40), b"these 40 bytes are not a message of Flower's: DecodeError"),
        (framed(b"{}") + framed(b""), b"these 0 bytes are not a message of Flower's: ValueError"),
        (framed(b"[]") + framed(b""), b"these 0 bytes are not a message of Flower's: ValueError"),
        (framed(b"{") + framed(b""), b"these 0 bytes are not a message of Flower's: JSONDecodeError"),
    ],
)
def test_other_bytes_are_refused_in_one_line(path, data, answer):
    said = said_to(path, token_file(path).read_bytes() + data)
    assert said[8:9] == b"-"
    assert answer in said
    assert b"\n" not in said
    assert relayed(join_message(), make(path)).content[CLIENT_RECORD]["client_id"] == 3


def test_who_cannot_read_the_token_beside_the_socket_is_not_answered(path, monkeypatch):
    whole = framed(b"{}") + framed(to_bytes(join_message()))
    assert said_to(path, token_file(path).read_bytes() + whole)[8:9] == b"+"
    refusal = b"the token is wrong: send the guard the token from the file beside its socket"
    for token in (bytes(TOKEN_BYTES), whole[:TOKEN_BYTES]):
        assert refusal in said_to(path, token)
    assert token_file(path).stat().st_mode & 0o777 == 0o640
    token_file(path).unlink()
    with pytest.raises(GuardError, match="does not answer .*No such file"):
        relayed(join_message(), make(path))


def test_damaged_messages_end_no_guard():
    guard, draw, whole = Guard({"partition-id": 3}), random.Random(20261125), to_bytes(join_message())
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        with suppress(GuardError):
            guard.answer(b"{}", bytes(data[: draw.randint(1, len(data))]))
    assert guard.answer(b"{}", whole)
    for run_id in range(2 * MOST_RUNS):
        guard.answer(b"{}", to_bytes(join_message(run_id)))
    assert len(guard._contexts) == MOST_RUNS


def test_an_order_that_waits_for_its_edge_keeps_no_later_one_out(tmp_path, monkeypatch):
    later = threading.Event()

    def answer(message, context):
        if message.metadata.run_id == 2:
            later.set()
        assert later.wait(30)
        return Message(RecordDict(), reply_to=message)

    monkeypatch.setattr("client_app.guard.app", answer)
    guard = Guard({"partition-id": 0, "edge": str(tmp_path), "secagg-mode": "off"})
    with ThreadPoolExecutor(1) as waits:
        first = waits.submit(guard.answer, b"{}", to_bytes(join_message(1)))
        assert guard.answer(b"{}", to_bytes(join_message(2)))
        assert first.result(30)


def test_of_a_message_that_no_node_answers_only_the_kind_of_the_error_leaves(path, monkeypatch):
    monkeypatch.setattr("client_app.guard.app", lambda message, context: context["record 4711"])
    with pytest.raises(GuardError, match="^the guard cannot answer this message: TypeError, see its log$"):
        relayed(join_message(), make(path))


def test_a_file_that_was_replaced_between_runs_is_read_again():
    guard = Guard({"partition-id": 3})
    guard.answer(b"{}", to_bytes(join_message(1)))
    load_dataset(DataSource("digits"))
    guard.answer(b"{}", to_bytes(join_message(1)))
    assert load_dataset.cache_info().currsize == 1
    guard.answer(b"{}", to_bytes(join_message(2)))
    assert load_dataset.cache_info().currsize == 0


def test_who_only_looks_is_no_line_in_the_log(path, caplog):
    assert said_to(path, b"") == b""
    assert caplog.text == ""


def test_who_is_silent_keeps_nobody_out(path):
    with ExitStack() as silent:
        for _ in range(MOST_CONNECTIONS - 1):
            silent.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        assert relayed(join_message(), make(path)).content[CLIENT_RECORD]["client_id"] == 3


def test_strangers_that_drip_hold_no_place_and_are_dropped_within_a_second(path):
    """Connections that send bytes but no access token delay no other caller, and the guard closes them."""
    with ExitStack() as held:
        strangers = [held.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2 * MOST_CONNECTIONS)]
        started = time.monotonic()
        for each in strangers:
            each.connect(str(path))
            each.sendall(b"x")
        assert relayed(join_message(), make(path)).content[CLIENT_RECORD]["client_id"] == 3
        assert time.monotonic() - started < TOKEN_SECONDS
        strangers[0].settimeout(10 * TOKEN_SECONDS)
        while time.monotonic() - started < 0.8 * TOKEN_SECONDS:
            strangers[0].sendall(b"x")
            time.sleep(TOKEN_SECONDS / 8)
        # The bytes before have not bought it more time.
        assert strangers[0].recv(1) == b""
        assert time.monotonic() - started < 1.7 * TOKEN_SECONDS


def test_more_strangers_than_the_guard_hears_make_room_for_each_other(path, monkeypatch):
    monkeypatch.setattr("client_app.guard.TOKEN_SECONDS", 30.0)
    with ExitStack() as held:
        strangers = [held.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(MOST_STRANGERS + 1)]
        for each in strangers:
            each.connect(str(path))
        assert relayed(join_message(), make(path)).content[CLIENT_RECORD]["client_id"] == 3
        strangers[0].settimeout(5)
        assert strangers[0].recv(1) == b""


def test_who_knows_the_token_has_a_time_for_its_message_and_does_not_wait_without_end(path, monkeypatch):
    monkeypatch.setattr("client_app.guard.MESSAGE_SECONDS", 0.3)
    token = token_file(path).read_bytes()
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(path))
        slow.sendall(token + b"\0")
        slow.settimeout(5)
        assert slow.recv(1) == b""
    monkeypatch.setattr("client_app.guard.MESSAGE_SECONDS", 30.0)
    with ExitStack() as held:
        for _ in range(MOST_CONNECTIONS + MOST_WAITING):
            each = held.enter_context(socket.socket(socket.AF_UNIX))
            each.connect(str(path))
            each.sendall(token)
        time.sleep(0.3)
        assert b"messages wait for this guard already: ask again later" in said_to(path, token)


def test_large_messages_are_read_within_one_bound_of_memory(path, monkeypatch):
    """All large messages share one memory limit in a guard; small messages are answered at any time."""
    token, half = token_file(path).read_bytes(), (MOST_BYTES // 2 + 1).to_bytes(8)
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        first.sendall(token + half + b"x")
        time.sleep(0.3)
        monkeypatch.setattr("client_app.guard.MESSAGE_SECONDS", 0.3)
        assert b"no room for a message of 1073741824 bytes beside others" in said_to(path, token + half)
        # Small ones pass, whoever else is read.
        monkeypatch.setattr("client_app.guard.MESSAGE_SECONDS", 30.0)
        assert relayed(join_message(), make(path)).content[CLIENT_RECORD]["client_id"] == 3
    assert b"ended after 0 of 1073741824" in said_to(path, token + half)


def test_of_two_messages_at_once_one_has_the_session():
    """If two messages ask for the same stored session at once, only one of them gets it."""
    inside, both = threading.Event(), threading.Barrier(2, timeout=0.3)

    class Slow(dict[str, Any]):
        def get(self, slot, default=None):
            found = super().get(slot, default)
            inside.set()
            with suppress(threading.BrokenBarrierError):
                both.wait()
            return found

    record = {"data": b"?", "handle": "", "opened": time.time(), "run": "r", "round": 0}
    node = Node(NodeSettings({"partition-id": 3}), Slow({MASKED_SLOT: record}), "1")

    def take():
        try:
            with stored_session(node, MASKED_SLOT, RoundOfRun("r", 0)):
                return "answered"
        except Exception as error:
            return str(error)

    with ThreadPoolExecutor(2) as two:
        said = [each.result(30) for each in [two.submit(take), two.submit(take)]]
    assert sum("no open session" in each for each in said) == 1
    assert inside.is_set()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("partition-id=0 gaurd='/x'", "gaurd is not a setting of a node; the nearest one is"),
        ("partition-id=0 guard='/x'", "guard is not a setting of a node; the nearest one is"),
        ("epsilon=3.0 ledger='/x'", "partition-id is None: start the node with"),
        ("partition-id=0 epsilon=3.0", "epsilon is given without ledger"),
    ],
)
def test_settings_that_no_node_takes_are_refused_at_the_start(tmp_path, capsys, words, error):
    assert main(["--socket", str(tmp_path / "s"), "--node-config", words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gdpfed-guard: {error}")
    assert not (tmp_path / "s").exists()


def test_two_guards_do_not_share_a_socket(path, tmp_path, capsys):
    assert main(["--socket", str(path), "--node-config", "partition-id=0"]) == 2
    assert f"--socket {path} is another guard's" in capsys.readouterr().err
    assert main(["--socket", str(tmp_path / "none" / "s"), "--node-config", "partition-id=0"]) == 2
    assert "cannot be made (No such file or directory)" in capsys.readouterr().err


def test_the_command_answers_until_it_is_told_to_end(tmp_path):
    """A new guard replaces a killed guard's socket, answers messages, and at its end deletes its files."""
    path = tmp_path / "guard.socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    words = ["--socket", str(path), "--node-config", "partition-id=7"]
    guard = subprocess.Popen(
        [sys.executable, "-m", "client_app.guard", *words], cwd=PROJECT, stderr=subprocess.PIPE
    )
    assert guard.stderr is not None
    assert b"the guard of client 7 listens" in next(iter(guard.stderr))
    assert relayed(join_message(), make(path)).content[CLIENT_RECORD]["client_id"] == 7
    assert path.stat().st_mode & 0o777 == 0o660
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(timeout=30) == 0
    guard.stderr.close()
    assert list(tmp_path.iterdir()) == []
