"""Report the state of a SuperNode's connection to its server: in the log, in /health, and in a file.

Flower's SuperNode says of a proxy or a gate that it cannot reach that it tries again, and not why; it calls
itself healthy meanwhile. It ends where a proxy answers a ``CONNECT`` with an error, and its process stays
without work where its connection is over. Two functions of Flower's are wrapped here: the one that sends a
request, and the one that makes the app behind ``/health``.
"""

import os
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from pathlib import Path
from socket import gaierror
from typing import Any

import httpx
from fastapi import FastAPI
from flwr.common.logger import log
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from deploy.certificates import CredentialsError
from deploy.proxy import FORM, Proxy
from gdpfed.federation.node.connection_file import ConnectionState
from gdpfed.files import read_regular

ACTIVATE = "/v1/fleet/activate-node"
UNAUTHORIZED, PROXY_WORDS, UNAVAILABLE = 401, 407, 503
AWAY = (502, 503, 504)
WRITE_SECONDS = 30.0
# Where only other files help. A directory locks an account after some wrong passwords.
PROXY_WORDS_SECONDS, CERTIFICATE_SECONDS = 600.0, 30.0
_POLL_SECONDS = 1.0
# OpenSSL's numbers of what is wrong with a certificate (X509_V_ERR_*).
_NOT_YET, _EXPIRED, _OTHER_NAME = 9, 10, (62, 64)
_NOT_LET_IN_YET = "the SuperNode has had no answer of the gate yet"


@dataclass(frozen=True)
class Way:
    """How a SuperNode (Flower's client process) reaches the server: address, proxy, trusted certificates.

    Attributes:
        gate: host and port.
        proxy: by which it leaves its site, if by one.
        proxy_file: where that is written.
        roots: the file with the certificates that it trusts.
    """

    gate: str
    proxy: Proxy | None
    proxy_file: Path
    roots: Path

    def why_not(self, error: Exception) -> str:
        """Return one line that explains a connection error and says what to do."""
        causes = [*_causes(error)]
        wrong = next((each for each in causes if isinstance(each, ssl.SSLCertVerificationError)), None)
        if wrong is not None:
            return self._certificate(wrong)
        refused = _status_of_proxy(error)
        if refused is not None:
            return self._proxy(refused)
        other = next((each for each in causes if isinstance(each, ssl.SSLError)), None)
        if other is not None:
            return (
                f"{self.gate} and this node cannot agree on TLS ({other.reason or 'cut off'}): check that "
                "this is the gate's port, and that nothing on the way cuts TLS connections off"
            )
        first, named = (
            (f"the proxy {self.proxy.address}", self.proxy_file) if self.proxy else (self.gate, "--superlink")
        )
        if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            through = f" through the proxy {self.proxy.address}" if self.proxy else ""
            return (
                f"the connection to {self.gate}{through} breaks off, or brings no answer in time "
                f"({type(error).__name__}): it is tried again; see whether the server runs"
            )
        unknown = next((each for each in causes if isinstance(each, gaierror)), None)
        if unknown is not None:
            return (
                f"the name of {first} cannot be resolved ({unknown.strerror}): check {named} and the site's "
                "DNS"
            )
        numbers = [each.errno for each in causes if isinstance(each, OSError) and each.errno]
        reason = os.strerror(numbers[0]) if numbers else "no answer in time"
        remedy = (
            f"see that it runs, and {self.proxy_file}"
            if self.proxy
            else f"see that the server runs, and that the firewall lets this node out; a proxy is named in "
            f"{self.proxy_file}"
        )
        return f"{first} cannot be reached ({reason}): it is tried again; {remedy}"

    def _proxy(self, status: int) -> str:
        where = self.proxy.address if self.proxy else self.gate
        if status != PROXY_WORDS:
            return (
                f"the proxy {where} does not connect to {self.gate} (HTTP {status}): it is tried again; ask "
                "the proxy's operator to allow CONNECT to this host and port, and see whether the server runs"
            )
        if self.proxy is None or not self.proxy.has_credentials:
            return (
                f"the proxy {where} asks for a user name and a password: write {FORM} into {self.proxy_file}"
            )
        return (
            f"the proxy {where} does not take the user name and password of {self.proxy_file} (HTTP 407): "
            f"write the right ones there; they are tried again after a change of the file, or after "
            f"{PROXY_WORDS_SECONDS / 60:.0f} minutes"
        )

    def _certificate(self, wrong: ssl.SSLCertVerificationError) -> str:
        if wrong.verify_code in _OTHER_NAME:
            return (
                f"the certificate at {self.gate} is for another name: connect by the name that the server's "
                "operator gave as SUPERLINK_HOST, or have it added there"
            )
        if wrong.verify_code in (_NOT_YET, _EXPIRED):
            said = "has expired" if wrong.verify_code == _EXPIRED else "is not valid yet"
            return (
                f"the certificate at {self.gate} {said}: compare the clock of this host, and ask the "
                "server's operator for a new one"
            )
        return (
            f"the certificate at {self.gate} is not signed by an authority of {self.roots} "
            f"({wrong.verify_message}): nothing was sent. Ask the server's operator, by a channel on which "
            "no one can replace it, whether superlink-ca.crt is another one now, put that into public/ and "
            "run init again; if this site's proxy opens TLS, have it leave this host alone"
        )


class Connection:
    """Records whether a SuperNode's last request to the server succeeded, and reports changes.

    Args:
        way: to the gate.
        file: in which it is written down.

    `reason`: why the gate does not answer, and what to do; empty where it does. `refused`: whether the
    SuperLink has refused the node's key.
    """

    def __init__(self, way: Way, file: Path) -> None:
        self.reason, self.refused = _NOT_LET_IN_YET, False
        self._way, self._file, self._lock = way, file, threading.Lock()
        self._since, self._written = time.time(), 0.0
        self._locked_out: tuple[Exception, float] | None = None
        self._read = self._files()
        self._write()

    def answered(self, path: str, status: int) -> None:
        """Record that the SuperLink's proxy (gate) answered a request, and with which HTTP status."""
        if status in AWAY:
            self._tell(
                f"the gate {self._way.gate} has no answer of the SuperLink (HTTP {status}): it is tried "
                "again; the server's operator sees why"
            )
        elif status == UNAUTHORIZED or (path == ACTIVATE and status >= 400):
            self.refused = True
            self._tell(
                f"the SuperLink at {self._way.gate} does not let this node in (HTTP {status}): its key was "
                "not registered, or was unregistered, its last process was there a minute ago, or this "
                "host's clock is wrong. Ask the server's operator what 'nodes' lists; a key that was "
                "unregistered never comes back: make another with init --renew node-key, and send its .pub"
            )
        else:
            self._tell("")

    def failed(self, error: httpx.TransportError) -> httpx.TransportError:
        """Record a connection error; return the error to raise, which makes Flower retry or end.

        Where only other files help, Flower is to end, so that they are read anew. This waits until they are
        others, or for a while.
        """
        self._tell(self._way.why_not(error))
        for_words = _status_of_proxy(error) == PROXY_WORDS
        if for_words or any(isinstance(each, ssl.SSLCertVerificationError) for each in _causes(error)):
            seconds = PROXY_WORDS_SECONDS if for_words else CERTIFICATE_SECONDS
            self._locked_out = (error, time.monotonic() + seconds)
            self._wait()
            return error
        # Flower ends at an error that has one of the words of TLS, and at a proxy's; both may pass.
        return httpx.ConnectError("the connection has failed")

    def refuse_again(self) -> None:
        """Raise the last connection error again if another attempt would fail in the same way."""
        if self._locked_out is not None:
            self._wait()
            raise self._locked_out[0]

    def _wait(self) -> None:
        """In the main thread, wait for a limited time until the file of the proxy or certificates changes."""
        if threading.current_thread() is not threading.main_thread() or self._locked_out is None:
            return
        while time.monotonic() < self._locked_out[1] and self._files() == self._read:
            time.sleep(_POLL_SECONDS)

    def _files(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        for path in (self._way.proxy_file, self._way.roots):
            try:
                found.append(read_regular(path))
            except OSError:
                found.append(None)
        return found

    def _tell(self, reason: str) -> None:
        with self._lock:
            before, self.reason = self.reason, reason
            if reason != before:
                self._since = time.time()
                if reason:
                    log(ERROR, "%s", reason)
                elif before != _NOT_LET_IN_YET:
                    log(INFO, "%s answers again", self._way.gate)
            if reason != before or time.time() - self._written > WRITE_SECONDS:
                self._write()

    def _write(self) -> None:
        self._written = time.time()
        try:
            ConnectionState(self.reason, self._since, self._written).write(self._file)
        except OSError as error:
            log(WARNING, "%s cannot be written: %s; make room there", self._file, error.strerror)


def watched(send: Callable[..., httpx.Response], connection: Connection) -> Callable[..., httpx.Response]:
    """Wrap Flower's method that sends requests to the server, so that every result is recorded."""

    def noted(self: Any, context: Any, *, stream: bool = False) -> httpx.Response:
        connection.refuse_again()
        try:
            response = send(self, context, stream=stream)
        except httpx.TransportError as error:
            raised = connection.failed(error)
            if raised is error:
                raise
            raise raised from error
        connection.answered(context.request.url.path, response.status_code)
        return response

    return noted


def with_health(create: Callable[..., FastAPI], connection: Connection) -> Callable[..., FastAPI]:
    """Wrap Flower's function that makes the SuperNode's app: its /health answers 503 while disconnected."""

    def made(*words: Any, **named: Any) -> FastAPI:
        app = create(*words, **named)

        @app.middleware("http")
        async def health(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
            if request.url.path == "/health" and connection.reason:
                return PlainTextResponse("unhealthy: the SuperNode's log says why\n", UNAVAILABLE)
            return await answer(request)

        return app

    return made


def check_roots(file: Path) -> None:
    """Raise CredentialsError if a file contains no trusted certificates."""
    reason: str | None = "it has none in PEM"
    try:
        certificates = read_regular(file).decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError):
        pass
    except OSError as error:
        reason = error.strerror
    else:
        return
    raise CredentialsError(
        f"{file} holds no certificate that the SuperNode can trust ({reason}): put the server's "
        "superlink-ca.crt (PEM, one certificate or several) into public/, and run python -m deploy.init again"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then the error that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status_of_proxy(error: Exception) -> int | None:
    """Return the HTTP status by which a proxy refused to connect: 0 if unknown; None for other errors."""
    if not isinstance(error, httpx.ProxyError):
        return None
    number = str(error)[:3]
    return int(number) if number.isascii() and number.isdecimal() else 0
