"""A client's secure-aggregation sessions, stored between messages and erased at their end.

A client has at most two sessions. One has sent its masked vector, and its sum is being unmasked. The other
has only agreed on keys, for the same round or the next.

A node with a session file (:mod:`gdpfed.federation.node.session_file`) encrypts a session before it stores
it, so that a copy of the state from before an answer cannot be used. A node without such a file, as in
simulation, stores its sessions unencrypted.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from gdpfed.clients.messages import DATA, ROUND, RUN, RoundOfRun
from gdpfed.federation.node.node_settings import Node
from gdpfed.federation.node.session_file import SessionFile
from gdpfed.federation.node.signing import signing_of
from secagg import ClientSession, LocalProtocolError

AGREEING = "secagg-session-agreeing"
MASKED_SLOT = "secagg-session-masked"
HANDLE, OPENED = "handle", "opened"
SHARES = "noise-shares"
# A guard answers several messages at once if its stand-in may wait.
_TAKEN_BY_ONE = Lock()


@dataclass(frozen=True)
class StoredSession:
    """A session of secure aggregation as the node's state stores it between two messages.

    Attributes:
        data: the session's bytes, encrypted if there is a handle.
        handle: the name of its key in the session file; empty without such a file.
        opened: when the session began, in seconds since 1970.
    """

    data: bytes
    handle: str
    opened: float

    @property
    def sealed(self) -> tuple[str, bytes]:
        """The session's handle and encrypted bytes."""
        return self.handle, self.data


def open_session(node: Node) -> ClientSession:
    """Start a session of secure aggregation; erase an earlier one that never masked a vector."""
    erase_session(node, AGREEING)
    identity, roster = signing_of(node)
    return ClientSession(node.settings.client_id, node.settings.policy, identity=identity, roster=roster)


def erase_session(node: Node, slot: str) -> None:
    """Erase a session of secure aggregation and its secrets, also from the node's disk."""
    with _TAKEN_BY_ONE:
        kept = _kept(node.state.get(slot))
        if slot in node.state:
            del node.state[slot]
    _delete(node, kept)


@contextmanager
def stored_session(
    node: Node, slot: str, round_of_run: RoundOfRun, *, then: str | None = None
) -> Iterator[ClientSession]:
    """Yield the session that an earlier message of this round stored; afterwards, store it again or end it.

    After the ``with`` block, the session is stored in the slot ``then``, or ends if ``then`` is None. With a
    session file, this is then on the disk. After any error in the block, the session has ended. A message of
    another round does not change it.

    Raises:
        LocalProtocolError: there is no session, for example after a restart of the node; or it is of another
            round, too old, or has answered this stage already.
        SessionFileError: the session file cannot be used.
    """
    with _TAKEN_BY_ONE:
        record = node.state.get(slot)
        kept = _kept(record)
        if record is None or kept is None:
            raise LocalProtocolError("this client has no open session: it joins again next round")
        if (record.get(RUN), record.get(ROUND)) != (round_of_run.run, round_of_run.index):
            raise LocalProtocolError(
                f"the message is of round {round_of_run.index}, and this client's keys are of round "
                f"{record.get(ROUND)!r}"
            )
        del node.state[slot]
    age, most = time.time() - kept.opened, node.settings.session_seconds
    if age > most:
        raise LocalProtocolError(f"this client's session is older than {most:g} seconds, and erased")
    file = session_file_of(node)
    if (file is None) != (kept.handle == ""):
        raise LocalProtocolError("this client was started anew with another session file: it joins again")
    data = kept.data if file is None else file.open(kept.sealed, _bound(round_of_run))
    try:
        identity, roster = signing_of(node)
        session = ClientSession.from_bytes(data, node.settings.policy, identity=identity, roster=roster)
        yield session
        if then is not None:
            keep_session(node, then, session, round_of_run, kept)
    except BaseException:
        _delete(node, kept)
        raise
    if then is None and not _delete(node, kept):
        raise LocalProtocolError("this client's session was answered by another process at the same time")


def keep_session(
    node: Node,
    slot: str,
    session: ClientSession,
    round_of_run: RoundOfRun,
    before: StoredSession | None = None,
) -> None:
    """Store a session until the next message of its round, in place of the stored session ``before``."""
    file = session_file_of(node)
    data, handle = session.to_bytes(), ""
    opened = time.time() if before is None else before.opened
    if file is not None:
        sealed = None if before is None else before.sealed
        handle, data = file.seal(data, str(session.stage), _bound(round_of_run), sealed)
    node.state[slot] = {
        **{DATA: data, HANDLE: handle, OPENED: opened},
        **{RUN: round_of_run.run, ROUND: round_of_run.index},
    }


def _kept(record: Mapping[str, Any] | None) -> StoredSession | None:
    data, handle, opened = ((record or {}).get(name) for name in (DATA, HANDLE, OPENED))
    if isinstance(data, bytes) and isinstance(handle, str) and isinstance(opened, float):
        return StoredSession(data, handle, opened)
    return None


def _delete(node: Node, kept: StoredSession | None) -> bool:
    """Delete a session's key; return False if it was gone already."""
    file = session_file_of(node)
    if file is None or kept is None or not kept.handle:
        return True
    return file.delete(kept.handle)


def session_file_of(node: Node) -> SessionFile | None:
    """Return the file of session keys, or None if the settings name no such file."""
    path = node.settings.session_file
    return None if path is None else SessionFile(path, node.settings.session_seconds)


def keeps_shares(node: Node) -> bool:
    """Whether the node has stored noise of which later rounds may subtract parts."""
    file = session_file_of(node)
    return SHARES in node.state if file is None else bool(file.shares())


def _bound(round_of_run: RoundOfRun) -> bytes:
    """Return bytes of the round and run, which bind an encrypted session to this round and run."""
    return f"{round_of_run.index}/{round_of_run.run}".encode()
