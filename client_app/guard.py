"""``gdpfed-guard``: a process with a node's data, ledger and keys, which a run's Flower app cannot access.

It answers the node's messages over a Unix socket, with the code that is installed on its side and by its own
settings. What a run keeps between messages is in its memory alone: no older state can be put back.

Whoever may open the socket and read the token beside it may ask what a server may ask: the node's checks and
its ledger bound what comes.
"""

import argparse
import ctypes
import hmac
import os
import secrets
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from logging import ERROR, INFO
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingMixIn, UnixStreamServer
from threading import BoundedSemaphore, Condition, Lock
from time import monotonic
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.common.logger import log

from client_app.node_app import app
from client_app.relay import (
    ANSWERED,
    MOST_BYTES,
    REFUSED,
    TOKEN_BYTES,
    GuardError,
    exactly,
    from_bytes,
    length_of,
    run_config_in,
    send,
    to_bytes,
    token_file,
)
from gdpfed.child_process import begin_process
from gdpfed.clients.messages import one_line
from gdpfed.errors import InputError, line_of
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.federation.node.stand_ins import settings_in
from gdpfed.files import write_whole
from gdpfed.learning.data.source import load_dataset

MOST_RUNS = 64
"""The number of runs whose state a guard process keeps; beyond, the least recently used is forgotten."""
MOST_CONNECTIONS, MOST_WAITING, MOST_STRANGERS = 8, 64, 64
"""The most connections that are answered, that wait, and that have not sent the token yet."""
TOKEN_SECONDS, MESSAGE_SECONDS, SILENT_SECONDS = 1.0, 300.0, 60.0
SMALL_BYTES = 1 << 20
"""Messages up to this size are always read; larger ones share a limit on bytes held at a time."""
SOCKET_MODE, TOKEN_MODE = 0o660, 0o640
NOT_DUMPABLE = 4
PROGRAM = "gdpfed-guard"


class Room:
    """Limits how many bytes of large messages all connections to a node's guard process hold at a time.

    Args:
        most: bytes; a frame above them is taken where it is the only one.
    """

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0
        self._changed = Condition()

    @contextmanager
    def of(self, length: int, until: float) -> Iterator[None]:
        """Wait until this number of bytes is free, and reserve them until the ``with`` block ends.

        Raises GuardError: there is none by that time of the monotonic clock.
        """
        with self._changed:
            left = until - monotonic()
            fits = self._changed.wait_for(lambda: not self._taken or self._taken + length <= self._most, left)
            if not fits:
                raise GuardError(f"no room for a message of {length} bytes beside others: ask again later")
            self._taken += length
        try:
            yield
        finally:
            with self._changed:
                self._taken -= length
                self._changed.notify_all()


class Guard:
    """Answers a node's messages one at a time; for an edge server's client, several at a time.

    Args:
        config: the node's settings.

    Raises:
        InputError: settings that contradict each other.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        settings = NodeSettings(self._config)
        # Each reads the settings that it needs, and refuses those that it cannot use. Files may come later.
        for needed in ("client_id", "policy", "budgets", "player", "data", "stand_in"):
            getattr(settings, needed)
        # A client of an edge waits for its edge, and a later order of its cloud ends that.
        self._waits = settings.stand_in is not None
        self._contexts: OrderedDict[int, Context] = OrderedDict()
        self._lock = Lock()

    def answer(self, run_config: bytes, data: bytes) -> bytes:
        """Answer one of the node's messages; message and answer are bytes in Flower's encoding.

        Args:
            run_config: how the app says that the run is configured.
            data: the message.

        Raises:
            GuardError: the bytes are not a message, or nothing of the node answers such messages.
        """
        try:
            said, message = run_config_in(run_config), from_bytes(data)
        except Exception as error:
            raise GuardError(
                f"these {len(data)} bytes are not a message of Flower's: {_kind(error)}"
            ) from None
        try:
            with self._lock:
                context = self._context(message, said)
                if not self._waits:
                    return to_bytes(app(message, context))
            return to_bytes(app(message, context))
        except Exception as error:
            # Its text may tell of the data.
            log(ERROR, "%s: %s", _kind(error), one_line(error))
            raise GuardError(f"the guard cannot answer this message: {_kind(error)}, see its log") from None

    def _context(self, message: Message, run_config: Mapping[str, Any]) -> Context:
        """Return Flower's context for a message: the node's settings, and the state stored for the run."""
        run_id, node_id = message.metadata.run_id, message.metadata.dst_node_id
        if run_id not in self._contexts:
            # A file that was replaced between two runs is read again.
            load_dataset.cache_clear()
            self._contexts[run_id] = Context(run_id, node_id, self._config, RecordDict(), {})
        self._contexts[run_id].run_config = dict(run_config)
        self._contexts.move_to_end(run_id)
        while len(self._contexts) > MOST_RUNS:
            self._contexts.popitem(last=False)
        return self._contexts[run_id]


def _kind(error: Exception) -> str:
    return type(error).__name__


class GuardServer(ThreadingMixIn, UnixStreamServer):
    """Serves a node's guard process on several connections at once; no idle connection delays another.

    Who has not said the token is a stranger. Strangers have a second, and the one that came first makes room
    for the next beyond :data:`MOST_STRANGERS`: none of them takes a place of those that know the token.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, guard: Guard) -> None:
        self.guard = guard
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        self._waiting = BoundedSemaphore(MOST_CONNECTIONS + MOST_WAITING)
        self.room = Room(MOST_BYTES)
        self._strangers: OrderedDict[int, socket.socket] = OrderedDict()
        self._strangers_lock = Lock()
        if path.is_socket():
            # A guard that has ended leaves its socket; if somebody listens on it, a guard is running.
            with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
                probe.connect(str(path))
                raise InputError(f"--socket {path} is another guard's: give each node a socket of its own")
            path.unlink()
        self._token = secrets.token_bytes(TOKEN_BYTES)
        umask = os.umask(0o777 & ~SOCKET_MODE)
        try:
            write_whole(token_file(path), self._token, mode=TOKEN_MODE)
            super().__init__(str(path), _Connection)
        except OSError as error:
            raise InputError(
                f"--socket {path} cannot be made ({error.strerror or error}): name a file of at most 100 "
                "characters in a folder of this user's"
            ) from None
        finally:
            os.umask(umask)

    def check(self, token: bytes) -> None:
        """Raise GuardError if a caller's token differs from that in the file beside the guard's socket."""
        if not hmac.compare_digest(token, self._token):
            raise GuardError("the token is wrong: send the guard the token from the file beside its socket")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a new thread; if too many are unauthenticated, close the oldest of those."""
        with self._strangers_lock:
            self._strangers[id(request)] = request
            if len(self._strangers) > MOST_STRANGERS:
                _, first = self._strangers.popitem(last=False)
                with suppress(OSError):
                    first.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget and close a connection to the guard process."""
        self.count_as_known(request)
        super().shutdown_request(request)

    def count_as_known(self, request: socket.socket) -> None:
        """Stop counting a connection as unauthenticated: it has sent the token, or it has ended."""
        with self._strangers_lock:
            self._strangers.pop(id(request), None)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Wait until few enough connections are being answered; raise GuardError if too many wait already."""
        if not self._waiting.acquire(blocking=False):
            raise GuardError(f"{MOST_WAITING} messages wait for this guard already: ask again later")
        try:
            with self._free:
                yield
        finally:
            self._waiting.release()


class _Connection(BaseRequestHandler):
    server: GuardServer

    def handle(self) -> None:
        connection: socket.socket = self.request
        until = monotonic() + TOKEN_SECONDS
        connection.settimeout(TOKEN_SECONDS)
        # Nobody is there any more, or says nothing: there is nobody to tell.
        with suppress(OSError):
            if not connection.recv(1, socket.MSG_PEEK):
                # A probe only looks whether somebody listens.
                return
            try:
                self.server.check(exactly(connection, TOKEN_BYTES, until))
                self.server.count_as_known(connection)
                with self.server.place():
                    self._answer(connection)
            except GuardError as error:
                self._refuse(connection, error)

    def _answer(self, connection: socket.socket) -> None:
        until = monotonic() + MESSAGE_SECONDS
        with ExitStack() as rooms:

            def received() -> bytes:
                length = length_of(connection, until)
                if length > SMALL_BYTES:
                    rooms.enter_context(self.server.room.of(length, until))
                return exactly(connection, length, until)

            answer = self.server.guard.answer(received(), received())
        connection.settimeout(SILENT_SECONDS)
        send(connection, ANSWERED, answer)

    def _refuse(self, connection: socket.socket, error: GuardError) -> None:
        log(ERROR, "refused: %s", error)
        connection.settimeout(SILENT_SECONDS)
        send(connection, REFUSED, str(error).encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the guard process until it is told to end; return the exit status: 0 ended, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Answer a node's messages out of reach of the app that is sent to it."
    )
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where it listens")
    parser.add_argument(
        "--node-config",
        required=True,
        metavar="WORDS",
        help="the node's settings, as flower-supernode takes them, or a .toml file",
    )
    options = parser.parse_args(arguments)
    begin_process(Path(sys.argv[0]).name)
    os.umask(0o077)
    if sys.platform == "linux":
        # No process of the same user traces this one or reads its memory and environment.
        ctypes.CDLL(None).prctl(NOT_DUMPABLE, 0, 0, 0, 0)
    try:
        config = settings_in(options.node_config)
        with GuardServer(options.socket, Guard(config)) as server:
            signal.signal(signal.SIGTERM, _interrupt)
            log(INFO, "the guard of client %s listens at %s", config["partition-id"], options.socket)
            try:
                server.serve_forever()
            finally:
                for path in (options.socket, token_file(options.socket)):
                    path.unlink(missing_ok=True)
    except InputError as error:
        print(f"{PROGRAM}: {line_of(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
