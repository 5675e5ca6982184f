"""A client's secure-aggregation session, kept in Flower's Context between messages and erased afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ConfigRecord, Context

from client_app.identity import identity_of, roster_of
from secagg import ClientPolicy, ClientSession, LocalProtocolError

STATE_KEY = "secagg-session"


def open_session(context: Context, client_id: int, policy: ClientPolicy) -> ClientSession:
    """A fresh session; whatever an unfinished round left behind is erased."""
    erase_session(context)
    return ClientSession(client_id, policy, identity=identity_of(context), roster=roster_of(context))


def erase_session(context: Context) -> None:
    """Forget the session and its secrets."""
    if STATE_KEY in context.state:
        del context.state[STATE_KEY]


@contextmanager
def stored_session(context: Context, policy: ClientPolicy) -> Iterator[ClientSession]:
    """The session that an earlier message left, taken out of the state while it is in use.

    Put it back with :func:`keep_session`. Whatever goes wrong in between, the state no longer holds it.

    Raises:
        LocalProtocolError: there is none, as after a restart of the node.
    """
    record = context.state.get(STATE_KEY)
    data = record.get("data") if isinstance(record, ConfigRecord) else None
    if not isinstance(data, bytes):
        raise LocalProtocolError("this client has no open session: it joins again next round")
    erase_session(context)
    yield ClientSession.from_bytes(data, policy, identity=identity_of(context), roster=roster_of(context))


def keep_session(context: Context, session: ClientSession) -> None:
    """Keep the session for the next message of its round."""
    context.state[STATE_KEY] = ConfigRecord({"data": session.to_bytes()})
