"""A client's secure-aggregation sessions, kept in Flower's Context between messages and erased afterwards.

There are at most two: one whose vector is masked and whose sum is being unmasked, and one that has agreed
on keys only, for that round or the next.

A node with a session file (:mod:`gdpfed.federation.node.session_file`) seals what it keeps, so that a Context
from before an answer is of no use. A node without one, as in simulation, keeps its sessions open there.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flwr.app import ConfigRecord, Context

from client_app.identity import signing_of
from client_app.settings import policy_of, session_file_of, session_seconds_of
from gdpfed.clients.messages import DATA, ROUND, RUN, RoundOfRun
from gdpfed.federation.node.session_file import SessionFile
from secagg import ClientSession, LocalProtocolError

AGREEING = "secagg-session-agreeing"
MASKED_SLOT = "secagg-session-masked"
HANDLE, OPENED = "handle", "opened"


@dataclass(frozen=True)
class Kept:
    """What the Context holds of a session.

    Attributes:
        data: the session, sealed where there is a handle.
        handle: of its key in the session file, empty without one.
        opened: when it began, in seconds since 1970.
    """

    data: bytes
    handle: str
    opened: float

    @property
    def sealed(self) -> tuple[str, bytes]:
        """The session as the session file takes it."""
        return self.handle, self.data


def open_session(context: Context, client_id: int) -> ClientSession:
    """A fresh session; one that was never used for a vector is erased."""
    erase_session(context, AGREEING)
    identity, roster = signing_of(context)
    return ClientSession(client_id, policy_of(context), identity=identity, roster=roster)


def erase_session(context: Context, slot: str) -> None:
    """Forget a session and its secrets, on the node's disk too."""
    kept = _kept(context.state.get(slot))
    if slot in context.state:
        del context.state[slot]
    _delete(context, kept)


@contextmanager
def stored_session(
    context: Context, slot: str, round_of_run: RoundOfRun, *, then: str | None = None
) -> Iterator[ClientSession]:
    """The session that an earlier message of the round left, taken out of the state while it is in use.

    Afterwards it is kept in the slot ``then``, or ends where there is none; with a session file that is on
    the disk when this returns. Whatever goes wrong in between, the session has ended. A message of another
    round does not touch it.

    Raises:
        LocalProtocolError: there is none, as after a restart of the node, or it is of another round, too old
            or one that has been answered with.
        SessionFileError: the session file cannot be used.
    """
    record = context.state.get(slot)
    kept = _kept(record)
    if not isinstance(record, ConfigRecord) or kept is None:
        raise LocalProtocolError("this client has no open session: it joins again next round")
    if (record.get(RUN), record.get(ROUND)) != (round_of_run.run, round_of_run.index):
        raise LocalProtocolError(
            f"the message is of round {round_of_run.index}, and this client's keys are of round "
            f"{record.get(ROUND)!r}"
        )
    del context.state[slot]
    data = _opened(context, kept, round_of_run)
    try:
        identity, roster = signing_of(context)
        session = ClientSession.from_bytes(data, policy_of(context), identity=identity, roster=roster)
        yield session
        if then is not None:
            keep_session(context, then, session, round_of_run, kept)
    except BaseException:
        _delete(context, kept)
        raise
    if then is None:
        _delete(context, kept)


def keep_session(
    context: Context, slot: str, session: ClientSession, round_of_run: RoundOfRun, before: Kept | None = None
) -> None:
    """Keep the session for the next message of its round; ``before`` is what was kept of it until now."""
    file = _file(context)
    data, handle = session.to_bytes(), ""
    opened = time.time() if before is None else before.opened
    if file is not None:
        sealed = None if before is None else before.sealed
        handle, data = file.seal(data, str(session.stage), _bound(round_of_run), sealed)
    context.state[slot] = ConfigRecord(
        {DATA: data, HANDLE: handle, OPENED: opened, RUN: round_of_run.run, ROUND: round_of_run.index}
    )


def _kept(record: object) -> Kept | None:
    fields = record if isinstance(record, ConfigRecord) else {}
    data, handle, opened = (fields.get(name) for name in (DATA, HANDLE, OPENED))
    if isinstance(data, bytes) and isinstance(handle, str) and isinstance(opened, float):
        return Kept(data, handle, opened)
    return None


def _opened(context: Context, kept: Kept, round_of_run: RoundOfRun) -> bytes:
    """The bytes of a session that was kept."""
    age, most = time.time() - kept.opened, session_seconds_of(context)
    if age > most:
        raise LocalProtocolError(f"this client's session is older than {most:g} seconds, and erased")
    file = _file(context)
    if (file is None) != (kept.handle == ""):
        raise LocalProtocolError("this client was started anew with another session file: it joins again")
    return kept.data if file is None else file.open(kept.sealed, _bound(round_of_run))


def _delete(context: Context, kept: Kept | None) -> None:
    file = _file(context)
    if file is not None and kept is not None and kept.handle:
        file.delete(kept.handle)


def _file(context: Context) -> SessionFile | None:
    path = session_file_of(context)
    return None if path is None else SessionFile(path, session_seconds_of(context))


def _bound(round_of_run: RoundOfRun) -> bytes:
    """What a sealed session is for."""
    return f"{round_of_run.index}/{round_of_run.run}".encode()
