"""Tests of a node's file of session keys: only the latest state opens, and an ended session never does."""

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gdpfed.clients.messages import RoundOfRun
from gdpfed.federation.node import node_file
from gdpfed.federation.node.node_settings import Node, NodeSettings
from gdpfed.federation.node.session_file import MOST_SESSIONS, SessionFile, SessionFileError
from gdpfed.federation.node.sessions import MASKED_SLOT, keep_session, stored_session
from secagg import ClientSession, LocalProtocolError

ROUND = b"0/run"
LAST = "each stage is answered once"
ENDED = "has ended or is too old"


@pytest.fixture
def file(tmp_path):
    return SessionFile(tmp_path / "sessions", 3600.0)


def test_only_what_was_sealed_last_opens(file):
    first = file.seal(b"advertised", "advertised", ROUND, None)
    assert file.open(first, ROUND) == b"advertised"
    second = file.seal(b"shared", "shared", ROUND, first)
    assert second[0] == first[0]
    assert file.open(second, ROUND) == b"shared"
    with pytest.raises(LocalProtocolError, match=LAST):
        file.open(first, ROUND)
    with pytest.raises(LocalProtocolError, match=LAST):
        file.seal(b"shared otherwise", "shared", ROUND, first)
    assert file.open(second, ROUND) == b"shared"
    assert file.delete(second[0])
    assert not file.delete(second[0])
    for sealed in (first, second):
        with pytest.raises(LocalProtocolError, match=ENDED):
            file.open(sealed, ROUND)


def test_of_two_processes_that_end_a_session_one_answers(tmp_path, monkeypatch):
    """If two processes of a node read one session and end it, one of them gets an error."""
    monkeypatch.setattr(ClientSession, "from_bytes", classmethod(lambda *data, **own: "session"))
    settings = NodeSettings({"partition-id": 0, "session-file": str(tmp_path / "sessions")})
    session: Any = SimpleNamespace(to_bytes=lambda: b"keys", stage="masked")
    first = Node(settings, {}, "1")
    keep_session(first, MASKED_SLOT, session, RoundOfRun("run", 0))
    second = Node(settings, dict(first.state), "1")
    with (
        pytest.raises(LocalProtocolError, match="was answered by another process"),
        stored_session(first, MASKED_SLOT, RoundOfRun("run", 0)),
        stored_session(second, MASKED_SLOT, RoundOfRun("run", 0)),
    ):
        pass


def test_a_session_opens_for_its_own_round_only(file):
    sealed = file.seal(b"session", "masked", ROUND, None)
    other = file.seal(b"other", "masked", b"1/run", None)
    for odd in ((sealed, b"1/run"), ((sealed[0], other[1]), ROUND), ((other[0], sealed[1]), ROUND)):
        with pytest.raises(LocalProtocolError, match=LAST):
            file.open(*odd)


def test_nothing_of_a_session_is_in_the_file_and_no_key_is_in_what_is_sealed(file):
    handle, sealed = file.seal(b"a secret of the session", "masked", ROUND, None)
    entry = json.loads(file.path.read_text())["sessions"][handle]
    assert entry.keys() == {"key", "stage", "opened"}
    assert b"secret" not in file.path.read_bytes() + sealed
    assert bytes.fromhex(entry["key"]) not in sealed
    assert file.path.stat().st_mode & 0o077 == 0


def test_an_old_session_is_deleted(file, monkeypatch):
    sealed = file.seal(b"session", "shared", ROUND, None)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601.0)
    with pytest.raises(LocalProtocolError, match=ENDED):
        file.open(sealed, ROUND)
    file.seal(b"another", "shared", ROUND, None)
    assert sealed[0] not in file.path.read_text()


def test_the_file_does_not_grow_without_end(file):
    sealed = [file.seal(b"session", "advertised", ROUND, None) for _ in range(MOST_SESSIONS + 3)]
    assert len(json.loads(file.path.read_text())["sessions"]) == MOST_SESSIONS
    assert file.open(sealed[-1], ROUND) == b"session"
    with pytest.raises(LocalProtocolError, match=ENDED):
        file.open(sealed[0], ROUND)


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{", '{"sessions": 3}', '{"sessions": {"a": {"key": 1}}}', '{"sessions": {"a": {"odd": 1}}}'],
)
def test_a_damaged_or_lost_file_is_begun_anew_without_the_sessions(file, damage):
    """A damaged or deleted session file is replaced by an empty one, and no old session can be opened."""
    sealed = file.seal(b"session", "shared", ROUND, None)
    file.path.write_text(damage)
    with pytest.raises(LocalProtocolError, match=ENDED):
        file.open(sealed, ROUND)
    file.path.unlink()
    again = file.seal(b"another", "advertised", ROUND, None)
    assert file.open(again, ROUND) == b"another"


def test_a_key_of_another_form_opens_nothing(file):
    sealed = file.seal(b"session", "shared", ROUND, None)
    for key in (1, "no key", "00", None):
        body = json.loads(file.path.read_text())
        body["sessions"][sealed[0]]["key"] = key
        file.path.write_text(json.dumps(body))
        with pytest.raises(LocalProtocolError, match=f"{LAST}|{ENDED}"):
            file.open(sealed, ROUND)


def test_a_disk_that_refuses_lets_no_answer_leave(file, monkeypatch):
    sealed = file.seal(b"session", "shared", ROUND, None)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SessionFileError, match="session-file=.* cannot be written: No space left on device"):
        file.seal(b"masked", "masked", ROUND, sealed)
    with pytest.raises(SessionFileError, match="cannot be written"):
        file.delete(sealed[0])


def test_a_file_in_other_hands_or_in_no_directory_is_one_line(file, monkeypatch, tmp_path):
    monkeypatch.setattr(node_file, "LOCK_SECONDS", 0.1)
    with file._file.locked(), pytest.raises(SessionFileError, match="has been locked by another process"):
        file.seal(b"session", "shared", ROUND, None)
    with pytest.raises(SessionFileError, match="name a file in an existing directory"):
        SessionFile(tmp_path / "not mounted" / "sessions", 3600.0).seal(b"", "shared", ROUND, None)
