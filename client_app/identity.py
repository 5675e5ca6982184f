"""A client's signing key and the roster of all, for sums with a server that may lie.

The roster says which key is whose, so the server must not choose it. Give every node the same file by
``--node-config "roster-file=..."`` (JSON, client id to hexadecimal key). Without one, as in simulation,
a node takes the first roster it is sent and refuses any other for the rest of the run.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Context, RecordDict

from client_app.settings import NodeConfigError
from gdpfed.clients.messages import ROSTER_RECORD
from secagg import Identity, RemoteProtocolError

IDENTITY_KEY = "secagg-identity"
ROSTER_KEY = "secagg-roster"
ROSTER_FILE = "roster-file"


def make_identity(context: Context) -> Identity:
    """This client's identity, made at its first use in a run."""
    if IDENTITY_KEY not in context.state:
        context.state[IDENTITY_KEY] = ConfigRecord({"private": os.urandom(32)})
    identity = identity_of(context)
    if identity is None:
        raise NodeConfigError(f"the state of this node holds no key under {IDENTITY_KEY}: restart the node")
    return identity


def identity_of(context: Context) -> Identity | None:
    """This client's identity if it has made one."""
    record = context.state.get(IDENTITY_KEY)
    private = record.get("private") if isinstance(record, ConfigRecord) else None
    return Identity(private) if isinstance(private, bytes) else None


def roster_of(context: Context) -> Mapping[int, bytes] | None:
    """The roster that this client goes by; None before it has one."""
    path = context.node_config.get(ROSTER_FILE)
    if path is not None:
        return _roster_from_file(Path(str(path)))
    record = context.state.get(ROSTER_KEY)
    return _roster(record) if isinstance(record, ConfigRecord) else None


def accept_roster(context: Context, content: RecordDict) -> None:
    """Take the roster of a message if it is the first; refuse one that differs.

    Raises:
        RemoteProtocolError: another roster than before, or than the node's own file.
    """
    record = content.get(ROSTER_RECORD)
    if not isinstance(record, ConfigRecord):
        return
    known = roster_of(context)
    if known is None:
        context.state[ROSTER_KEY] = ConfigRecord(dict(record))
    elif known != _roster(record):
        raise RemoteProtocolError("advertise", None, "the roster of identities is another one than before")


def _roster(record: ConfigRecord) -> dict[int, bytes]:
    clients, keys = record.get("clients"), record.get("keys")
    if not isinstance(clients, list) or not isinstance(keys, list) or len(clients) != len(keys):
        raise RemoteProtocolError("advertise", None, "the roster has not one key for each client")
    pairs = list(zip(clients, keys, strict=True))
    roster = {c: k for c, k in pairs if isinstance(c, int) and isinstance(k, bytes)}
    if len(roster) != len(pairs):
        raise RemoteProtocolError("advertise", None, "the roster names a client twice or by no number")
    return roster


def _roster_from_file(path: Path) -> dict[int, bytes]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {int(client_id): bytes.fromhex(key) for client_id, key in entries.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise NodeConfigError(f"{ROSTER_FILE}={path} cannot be read as a roster: {error}") from None
