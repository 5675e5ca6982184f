"""``python -m deploy.gate``: a proxy that forwards to Flower's SuperLink only requests meant for nodes.

A SuperLink serves everything on one port, and takes runs from whoever reaches it: whoever submits a run has
their code executed on every node. The gate is the port that other hosts get. It forwards the paths of the
fleet API of the installed Flower, and those only, to a SuperLink that no other host reaches.

It forwards nothing that no key has signed. A key that the SuperLink has not answered yet gets little: small
messages, a few at once for each address, and a short time. So strangers take nothing of what nodes have.

A SuperNode repeats what is answered with 503. With most other errors it drops the message that it is about,
and its heartbeats end. So whatever may pass is answered with 503 here, an error of the SuperLink's own too.
"""

import argparse
import asyncio
import logging
import math
import os
import resource
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn
from flwr.superlink.routers.fleet.router import router as fleet_api
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from deploy.callers import Callers, Patience, PatientServer, whose
from deploy.node_signatures import UNAUTHORIZED, KnownKeys, signer
from deploy.options import address, exit_status, port
from gdpfed.errors import LaunchError

# A SuperNode gives up a question after 30 seconds, and asks again.
TIMEOUT_SECONDS, HEALTH_SECONDS = 30.0, 4.0
NOT_ALLOWED, TOO_LARGE, BROKEN, UNAVAILABLE = 405, 413, 500, 503
# Flower's SuperLink closes a connection that is silent for 5 seconds, and a SuperNode does.
REUSE_SECONDS, KEEP_ALIVE_SECONDS, TELL_SECONDS = 2.0, 10, 60.0
# Of one connection and not of the message; uvicorn and httpx set their own.
OF_CONNECTIONS = frozenset(
    {b"connection", b"host", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
    | {b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"}
)
CLOSE = {"connection": "close"}
# Known only to nodes and SuperLinks of one version of Flower.
PATHS = tuple(sorted({route.path for route in fleet_api.routes if isinstance(route, Route)}))

logger = logging.getLogger("uvicorn.error")


@dataclass(frozen=True)
class Share:
    """The limits on one sender at the SuperLink's proxy (gate): its open requests, bytes and seconds.

    Attributes:
        at_once: requests that are answered at the same time.
        body_bytes: of a request. Flower cuts messages into chunks of 5 MiB, and `deploy` into smaller ones.
        body_seconds: within which they have come; a chunk takes minutes on a poor line.
        answer_seconds: within which the answer has gone.
    """

    at_once: int
    body_bytes: int
    body_seconds: float
    answer_seconds: float


@dataclass(frozen=True)
class Shares:
    """The limits at the SuperLink's proxy (gate) on each known node and on all unknown callers.

    Attributes:
        of_key: what each known key has.
        of_address: what all strangers at one address have together.
        strangers: requests of all strangers at once.
        patience: with connections of strangers.
        end_seconds: that requests have to come to their end once the gate is told to.
    """

    of_key: Share = Share(32, 16 << 20, 200.0, 600.0)
    of_address: Share = Share(16, 64 << 10, 10.0, 10.0)
    strangers: int = 128
    end_seconds: int = 4
    patience: Patience = field(default_factory=Patience)


class BodyTooLargeError(Exception):
    """Raised for a request whose body has more bytes than its sender may send."""


class Gate:
    """Forwards nodes' requests (Flower's fleet API) to a SuperLink; ``/health`` reports its state.

    Args:
        superlink: host and port.
        trusted: by which its certificate is checked.
        shares: what askers may have.
    """

    def __init__(self, superlink: str, trusted: ssl.SSLContext, shares: Shares | None = None) -> None:
        self._superlink, self._trusted, self.shares = superlink, trusted, shares or Shares()
        self.callers, self._known = Callers(self.shares.patience), KnownKeys()
        self._busy: Counter[Hashable] = Counter()
        self._strangers, self._told = 0, dict[str, float]()
        # Each route forwards to its own path: what a caller writes into a URL never becomes one.
        forwarded = [Route(path, _Endpoint(self, path)) for path in PATHS]
        health = Route("/health", self._healthy)
        self._app = Starlette(routes=[health, *forwarded], lifespan=self._connected)
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, as an ASGI app does."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self.callers.asking(scope["client"]):
            await self._app(scope, receive, send)

    async def forward(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request for a path of Flower's fleet API, forward it, and answer."""
        request = Request(scope, receive)
        if request.method != "POST":
            await Response(status_code=NOT_ALLOWED, headers={"allow": "POST"})(scope, receive, send)
            return
        key = signer(request.headers)
        if key is None:
            await Response(status_code=UNAUTHORIZED, headers=CLOSE)(scope, receive, send)
            return
        known = key in self._known
        if known:
            self.callers.is_known(scope["client"])
        with self._taken(key if known else None, scope["client"]) as share:
            if share is None:
                if known:
                    self._tell(f"a node has {self.shares.of_key.at_once} requests at once")
                await Response(status_code=UNAVAILABLE, headers=CLOSE)(scope, receive, send)
                return
            await self._exchange(request, path, key, share, send)

    async def _exchange(self, request: Request, path: str, key: bytes, share: Share, send: Send) -> None:
        """Stream a request to the SuperLink without holding it whole in memory, and send the answer back."""
        client, answer, status = self._ready_client, None, UNAVAILABLE
        headers = _of_message(request.headers.raw)
        if "transfer-encoding" in request.headers:
            # A body in chunks ends with the last of them, whatever length is stated as well.
            headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        try:
            asked = client.build_request("POST", path, headers=headers, content=_body(request, share))
            answer = await client.send(asked, stream=True)
        except httpx.TransportError as error:
            self._tell(f"the SuperLink does not answer ({type(error).__name__})")
        except BodyTooLargeError:
            # A stranger may be a node that this gate does not know yet, and that may send as much.
            status = TOO_LARGE if key in self._known else UNAVAILABLE
        except (ClientDisconnect, TimeoutError):
            pass
        if answer is not None and answer.status_code == BROKEN:
            self._tell(f"the SuperLink answers with {BROKEN}, and its log says why")
            await answer.aclose()
            answer = None
        if answer is None:
            await Response(status_code=status, headers=CLOSE)(request.scope, request.receive, send)
            return
        self._known.learn(key, answer.status_code)
        await self._send_back(answer, request, share, send)

    async def _send_back(self, answer: httpx.Response, request: Request, share: Share, send: Send) -> None:
        """Send the SuperLink's answer back to the node that asked, in pieces."""
        response = StreamingResponse(answer.aiter_raw(), answer.status_code)
        response.raw_headers = _of_message(answer.headers.raw)
        try:
            async with asyncio.timeout(share.answer_seconds):
                await response(request.scope, request.receive, send)
        except (TimeoutError, httpx.TransportError):
            # Half an answer has gone: only an end of the connection says that the rest will not come.
            self.callers.hang_up_on(request.scope["client"])
        finally:
            await answer.aclose()

    def _tell(self, reason: str) -> None:
        """Log why nodes get no answer, each reason at most once a minute."""
        now = time.monotonic()
        if now >= self._told.get(reason, -math.inf) + TELL_SECONDS:
            self._told[reason] = now
            logger.warning("%s: nodes are told %d, and ask again", reason, UNAVAILABLE)

    @contextmanager
    def _taken(self, key: bytes | None, peer: tuple[str, int]) -> Iterator[Share | None]:
        """Yield a sender's limits while its request counts as open; yield None if too many are open."""
        asker = whose(peer[0]) if key is None else key
        share = self.shares.of_address if key is None else self.shares.of_key
        if self._busy[asker] >= share.at_once or (key is None and self._strangers >= self.shares.strangers):
            yield None
            return
        self._busy[asker] += 1
        self._strangers += key is None
        try:
            yield share
        finally:
            self._strangers -= key is None
            self._busy[asker] -= 1
            if not self._busy[asker]:
                del self._busy[asker]

    async def _healthy(self, request: Request) -> Response:
        """Answer a health check: 503 if the SuperLink is not healthy or too many requests are open."""
        with self._taken(None, request.scope["client"]) as share:
            if share is None:
                return Response(status_code=UNAVAILABLE)
            try:
                answer = await self._ready_client.get("/health", timeout=HEALTH_SECONDS)
            except httpx.TransportError:
                return Response(status_code=UNAVAILABLE)
            return Response(status_code=200 if answer.is_success else UNAVAILABLE)

    @asynccontextmanager
    async def _connected(self, _: Starlette) -> AsyncIterator[None]:
        # What strangers and each node may have bounds the connections.
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=32, keepalive_expiry=REUSE_SECONDS
        )
        async with httpx.AsyncClient(
            base_url=f"https://{self._superlink}",
            verify=self._trusted,
            timeout=TIMEOUT_SECONDS,
            limits=limits,
            trust_env=False,
        ) as client:
            self._client = client
            yield

    @property
    def _ready_client(self) -> httpx.AsyncClient:
        if self._client is None:
            raise RuntimeError("the gate has not been started")
        return self._client


class _Endpoint:
    """One path of Flower's fleet API as an endpoint of the web framework."""

    def __init__(self, gate: Gate, path: str) -> None:
        self._gate, self._path = gate, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gate.forward(self._path, scope, receive, send)


async def _body(request: Request, share: Share) -> AsyncIterator[bytes]:
    """Yield the pieces of a request's body.

    Raises:
        BodyTooLargeError: it has more than its asker may send.
        TimeoutError: it has not come in time.
        ClientDisconnect: whoever sent it has gone.
    """
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdecimal() and int(told) > share.body_bytes:
        raise BodyTooLargeError
    until, taken, more = asyncio.get_running_loop().time() + share.body_seconds, 0, True
    while more:
        async with asyncio.timeout_at(until):
            event = await request.receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = event.get("body", b"")
        taken += len(piece)
        if taken > share.body_bytes:
            raise BodyTooLargeError
        more = event.get("more_body", False)
        yield piece


def _of_message(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in OF_CONNECTIONS]


def server_of(gate: Gate, host: str, port: int, certificate: Path, key: Path) -> PatientServer:
    """Return the web server of the SuperLink's proxy (gate); it ends within a time limit after a signal."""
    config = uvicorn.Config(
        gate,
        host=host,
        port=port,
        loop="asyncio",
        # Its parser bounds what comes before a body, to 64 KiB; httptools keeps headers without end.
        http="h11",
        ws="none",
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=gate.shares.end_seconds,
    )
    return PatientServer(config, gate.callers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the SuperLink's proxy (gate) until a signal; return the exit status, 2 if it cannot start."""
    options = parser().parse_args(arguments)
    return exit_status(lambda: _serve(options))


def _serve(options: argparse.Namespace) -> None:
    # Two connections a request, and each is an open file.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gate = Gate(options.superlink, ssl.create_default_context(cafile=str(options.ca)))
    try:
        server_of(gate, options.host, options.port, options.certificate, options.key).run()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise LaunchError(
            f"the gate cannot listen on {options.host}:{options.port} ({reason}): free the port, or give "
            "another --host or --port"
        ) from None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options of the SuperLink's proxy (gate)."""
    made = argparse.ArgumentParser(prog="python -m deploy.gate", description=__doc__)
    made.add_argument("--superlink", type=address, required=True, metavar="HOST:PORT", help="where it is")
    made.add_argument("--host", required=True, help="address to listen on")
    made.add_argument("--port", type=port, required=True, help="port to listen on")
    for name, what in (
        ("ca", "certificate authority of the SuperLink"),
        ("certificate", "own certificate"),
        ("key", "its key"),
    ):
        made.add_argument(f"--{name}", type=Path, required=True, help=f"file with the {what}")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
