"""A client's secure-aggregation sessions, kept in Flower's Context between messages and erased afterwards.

There are at most two: one whose vector is masked and whose sum is being unmasked, and one that has agreed
on keys only, for that round or the next.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ConfigRecord, Context

from client_app.identity import identity_of, roster_of
from client_app.request import RoundOfRun
from client_app.settings import policy_of
from gdpfed.clients.messages import DATA, ROUND, RUN
from secagg import ClientSession, LocalProtocolError

AGREEING = "secagg-session-agreeing"
MASKED_SLOT = "secagg-session-masked"


def open_session(context: Context, client_id: int) -> ClientSession:
    """A fresh session; one that was never used for a vector is erased."""
    erase_session(context, AGREEING)
    return ClientSession(
        client_id, policy_of(context), identity=identity_of(context), roster=roster_of(context)
    )


def erase_session(context: Context, slot: str) -> None:
    """Forget a session and its secrets."""
    if slot in context.state:
        del context.state[slot]


@contextmanager
def stored_session(
    context: Context, slot: str, round_of_run: RoundOfRun, *, then: str | None = None
) -> Iterator[ClientSession]:
    """The session that an earlier message of the round left, taken out of the state while it is in use.

    Afterwards it is kept in the slot ``then``, or ends where there is none. Whatever goes wrong in between,
    the state no longer holds it. A message of another round does not touch it.

    Raises:
        LocalProtocolError: there is none, as after a restart of the node, or it is of another round.
    """
    record = context.state.get(slot)
    data = record.get(DATA) if isinstance(record, ConfigRecord) else None
    if not isinstance(record, ConfigRecord) or not isinstance(data, bytes):
        raise LocalProtocolError("this client has no open session: it joins again next round")
    if (record.get(RUN), record.get(ROUND)) != (round_of_run.run, round_of_run.index):
        raise LocalProtocolError(
            f"the message is of round {round_of_run.index}, and this client's keys are of round "
            f"{record.get(ROUND)!r}"
        )
    erase_session(context, slot)
    session = ClientSession.from_bytes(
        data, policy_of(context), identity=identity_of(context), roster=roster_of(context)
    )
    yield session
    if then is not None:
        keep_session(context, then, session, round_of_run)


def keep_session(context: Context, slot: str, session: ClientSession, round_of_run: RoundOfRun) -> None:
    """Keep the session for the next message of its round."""
    context.state[slot] = ConfigRecord(
        {DATA: session.to_bytes(), RUN: round_of_run.run, ROUND: round_of_run.index}
    )
