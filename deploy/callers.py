"""Limits on connections and time for unknown callers of the gate, the proxy in front of Flower's SuperLink.

Until a request is signed by a key that the SuperLink has answered, a connection is a stranger's. Strangers
have a bound together and one by address. Beyond it the stranger that has waited longest is hung up on, so
who is silent keeps nobody out who speaks.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

import uvicorn

BACKLOG = 512
PAUSE_SECONDS = 0.1
# Whoever has an IPv6 address has all of its network.
IPV4, SUBSCRIBER_BITS = 4, 64


@dataclass(frozen=True)
class Patience:
    """The limits on unknown callers' connections to the SuperLink's proxy (gate): their number and time.

    Attributes:
        strangers: connections of all strangers together.
        strangers_by_address: of one address, behind which may be several nodes.
        tls_seconds: within which a connection is encrypted, and within which it says goodbye.
        header_seconds: from then on, or from the last answer, until the next request has all its headers.
    """

    strangers: int = 512
    strangers_by_address: int = 128
    tls_seconds: float = 5.0
    header_seconds: float = 15.0


class Caller:
    """One open connection to the SuperLink's proxy (gate): address, and whether the caller's key is known.

    `address`: whose; `asks`: whether it waits for an answer; `known`: whether a known key has signed.
    """

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.address, self.asks, self.known = address, False, False
        self.transport: asyncio.Transport | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._connection = connection

    def hang_up(self) -> None:
        """Close the connection without sending anything."""
        if self.transport is not None:
            self.transport.abort()
            return
        # It is not encrypted yet: the handshake finds that the other side is gone.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class Callers:
    """The open connections of the SuperLink's proxy (gate), by the caller's address and port."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._callers: dict[tuple[str, int], Caller] = {}
        self._strangers: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(
        self, listener: socket.socket, answers: Callable[[], asyncio.Protocol], tls: ssl.SSLContext
    ) -> None:
        """Accept connections to the SuperLink's proxy until cancelled; each has its own protocol object."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError:
                # As many files are open as may be, or the other side has gone already.
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            task = loop.create_task(self._keep(connection, address[:2], answers, tls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Close all connections to the SuperLink's proxy (gate)."""
        for caller in list(self._callers.values()):
            caller.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def asking(self, peer: tuple[str, int]) -> Iterator[None]:
        """While the ``with`` block answers a request, pause the time limit for the next request."""
        caller = self._callers.get(peer)
        if caller is None:
            yield
            return
        caller.asks = True
        if caller.timer is not None:
            caller.timer.cancel()
        try:
            yield
        finally:
            caller.asks = False
            self._await_request(caller)

    def is_known(self, peer: tuple[str, int]) -> None:
        """Record that the SuperLink accepts the key that signed a request of this connection."""
        caller = self._callers.get(peer)
        if caller is not None and not caller.known:
            caller.known = True
            self._forget(caller.address)

    def hang_up_on(self, peer: tuple[str, int]) -> None:
        """Close the connection from this address and port."""
        caller = self._callers.get(peer)
        if caller is not None:
            caller.hang_up()

    async def _keep(
        self,
        connection: socket.socket,
        peer: tuple[str, int],
        answers: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
    ) -> None:
        """Serve a connection over TLS until it ends; close it at once if too many are open."""
        caller = Caller(connection, whose(peer[0]))
        if not self._make_room(caller.address):
            connection.close()
            return
        self._callers[peer] = caller
        self._strangers[caller.address] += 1
        ended = asyncio.get_running_loop().create_future()
        seconds = self._patience.tls_seconds
        try:
            caller.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _that_tells_its_end(answers(), ended),
                connection,
                ssl=tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
            self._await_request(caller)
            await ended
        except OSError:
            # It does not speak TLS, or not in time, or has gone.
            pass
        finally:
            if caller.timer is not None:
                caller.timer.cancel()
            if self._callers.get(peer) is caller:
                del self._callers[peer]
            if not caller.known:
                self._forget(caller.address)

    def _await_request(self, caller: Caller) -> None:
        loop, seconds = asyncio.get_running_loop(), self._patience.header_seconds
        caller.timer = loop.call_later(seconds, caller.hang_up)

    def _make_room(self, address: str) -> bool:
        """If unknown callers have too many connections, close the oldest; return whether there is room."""
        if self._strangers[address] >= self._patience.strangers_by_address:
            return self._hang_up_on_one(address)
        if self._strangers.total() >= self._patience.strangers:
            # Of the address with the most: many connections of one do not push out the few of another.
            return self._hang_up_on_one(max(self._strangers, key=self._strangers.__getitem__))
        return True

    def _hang_up_on_one(self, address: str) -> bool:
        for peer, caller in self._callers.items():
            if caller.address == address and not (caller.known or caller.asks):
                caller.hang_up()
                caller.known = True
                self._forget(address)
                del self._callers[peer]
                return True
        return False

    def _forget(self, address: str) -> None:
        self._strangers[address] -= 1
        if not self._strangers[address]:
            del self._strangers[address]


def _that_tells_its_end(protocol: asyncio.Protocol, ended: asyncio.Future[None]) -> asyncio.Protocol:
    """Make a connection's protocol object set the future `ended` when the connection is lost."""
    lost = protocol.connection_lost

    def connection_lost(error: Exception | None) -> None:
        lost(error)
        if not ended.done():
            ended.set_result(None)

    setattr(protocol, "connection_lost", connection_lost)  # noqa: B010 - of this one object
    return protocol


def whose(address: str) -> str:
    """Return the sender that a connection counts for: an IPv4 address, or an IPv6 address's /64 network."""
    read = ip_address(address.partition("%")[0])
    return address if read.version == IPV4 else str(ip_network((read, SUBSCRIBER_BITS), strict=False))


class PatientServer(uvicorn.Server):
    """A uvicorn web server that limits the number and the time of connections, see :class:`Callers`.

    Args:
        config: of uvicorn; its host and port are listened on, with TLS.
        callers: who is connected.
    """

    def __init__(self, config: uvicorn.Config, callers: Callers) -> None:
        super().__init__(config)
        self._callers = callers
        self._accepting: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that the server listens on, once it has started."""
        if self._listener is None:
            raise RuntimeError("the server has not been started")
        port: int = self._listener.getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the web application, then listen; raise OSError if the address cannot be used."""
        config = self.config
        family, *_, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        # Its own part is the app's start: it gets no socket to listen on.
        await super().startup(sockets=[])
        if self.should_exit or config.ssl is None:
            return
        accepting = self._callers.accept(self._listener, self._protocol, config.ssl)
        self._accepting = asyncio.get_running_loop().create_task(accepting)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, then end as uvicorn does."""
        if self._accepting is not None:
            self._accepting.cancel()
            with suppress(asyncio.CancelledError):
                await self._accepting
        if self._listener is not None:
            self._listener.close()
        await super().shutdown(sockets=sockets)
        await self._callers.end()

    def _protocol(self) -> asyncio.Protocol:
        # The class is chosen by uvicorn among those that are installed.
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made
