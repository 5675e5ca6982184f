"""Send Flower's messages to a node's guard process over a Unix socket, each preceded by its length.

A frame is its length, 8 bytes from the most significant on, and so many bytes. Each message has a connection
of its own. To the guard go its token, the run's configuration, as JSON, and the message, in Flower's own
encoding. Back comes one byte, which says whether it was answered, and the answer, or why there is none. A
guard makes its token anew, in a file beside the socket: a wall may let an app reach the sockets of other
nodes, but read none of their files.
"""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from flwr.app import Context, Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto

from gdpfed.errors import FailedError

GUARD_KEY = "guard"
"""The node setting with the socket of the node's guard process; no other setting may stand beside it."""

MOST_BYTES = 2**31 - 1
"""The most bytes of one message to a guard process: the limit of Flower's encoding."""
LENGTH_BYTES, TOKEN_BYTES = 8, 32
PIECE_BYTES = 1 << 20
ANSWERED, REFUSED = b"+", b"-"


class GuardError(FailedError):
    """Raised if a node's guard process does not answer; the server reads the text, so it reveals no data."""


def relayed(message: Message, context: Context) -> Message:
    """Return the answer of a node's guard process to a message.

    Raises GuardError: there is no guard, it refuses the message, or it is not the only setting.
    """
    path, others = context.node_config[GUARD_KEY], sorted(context.node_config.keys() - {GUARD_KEY})
    if others:
        raise GuardError(
            f"{GUARD_KEY} is given beside {', '.join(others)}: a node with a guard has its other settings "
            "there, so take them out of --node-config"
        )
    if not isinstance(path, str):
        raise GuardError(f"{GUARD_KEY} is {path!r}: give the path of the guard's socket in quotes")
    try:
        token = token_file(path).read_bytes()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(token)
            send(connection, json.dumps(dict(context.run_config)).encode())
            send(connection, to_bytes(message))
            answer = receive(connection)
    except OSError as error:
        raise GuardError(
            f"{GUARD_KEY}={path} does not answer ({error}): start this node's guard with "
            f"gdpfed-guard --socket {path}"
        ) from None
    if answer[:1] != ANSWERED:
        raise GuardError(answer[1:].decode(errors="replace"))
    return from_bytes(answer[1:])


def token_file(path: str | Path) -> Path:
    """Return the path of the file with the secret token that callers of a guard process must send first."""
    return Path(f"{path}.token")


def send(connection: socket.socket, *parts: bytes) -> None:
    """Send one message, given in parts, to the guard process; raise GuardError if the message is too long."""
    length = sum(map(len, parts))
    if length > MOST_BYTES:
        raise GuardError(f"a message of {length} bytes is above the {MOST_BYTES} that a guard takes")
    connection.sendall(length.to_bytes(LENGTH_BYTES))
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket, until: float | None = None) -> bytes:
    """Read the bytes of one message from a connection to the guard process.

    Memory is taken for what has come, not for what a length promises.

    Args:
        connection: where they come from.
        until: the time, of the monotonic clock, at which all of them have come; None: whenever they come.

    Raises:
        GuardError: it is too long, or ends early.
        TimeoutError: it has not come in time.
    """
    return exactly(connection, length_of(connection, until), until)


def length_of(connection: socket.socket, until: float | None = None) -> int:
    """Read the length of the next message, in bytes; raise GuardError if it is missing or too large."""
    length = int.from_bytes(exactly(connection, LENGTH_BYTES, until))
    if length > MOST_BYTES:
        raise GuardError(f"a frame of {length} bytes is above the {MOST_BYTES} that a guard takes")
    return length


def exactly(connection: socket.socket, length: int, until: float | None = None) -> bytes:
    """Read exactly this many bytes; raise GuardError if they end early, TimeoutError if they are too slow."""
    data = bytearray()
    while len(data) < length:
        if until is not None:
            # A byte now and then is silence, too.
            left = until - monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
        piece = connection.recv(min(PIECE_BYTES, length - len(data)))
        if not piece:
            raise GuardError(f"the connection ended after {len(data)} of {length} bytes")
        data += piece
    return bytes(data)


def run_config_in(data: bytes) -> Mapping[str, Any]:
    """Read a run's configuration; raise ValueError if the bytes do not contain one."""
    read = json.loads(data)
    if not isinstance(read, dict):
        raise ValueError(f"a {type(read).__name__} is not a configuration of a run")
    return read


def to_bytes(message: Message) -> bytes:
    """Return a message in Flower's encoding."""
    return bytes(message_to_proto(message).SerializeToString())


def from_bytes(data: bytes) -> Message:
    """Read a message in Flower's encoding; raise whatever Flower's decoders raise for invalid bytes."""
    return message_from_proto(MessageProto.FromString(data))
