"""Tests of the gate: a client without a known key gets few connections and requests, little data and time."""

import asyncio
import http.client
import re
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from starlette.requests import Request

from deploy import gate as gate_module
from deploy.callers import Patience, whose
from deploy.certificates import Authority
from deploy.gate import PATHS, Gate, Share, Shares, main, server_of
from gdpfed.launch.home import free_ports
from testing.waiting import until

HOST, FLEET = "127.0.0.1", PATHS[0]
ERROR, SILENCE, LITTLE = "error", "silence", 0.2
ACCEPTED, OTHER = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
SLOW, MANY = 1.0, 30
SMALL = Shares(
    of_key=Share(4, 200_000, 30.0, 30.0),
    of_address=Share(2, 1000, SLOW, 30.0),
    strangers=3,
    patience=Patience(strangers=6, strangers_by_address=4, tls_seconds=SLOW, header_seconds=SLOW),
)


def signed(key, at=None):
    """Return the headers with which Flower's SuperNode signs a request."""
    said = (at or now()).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, said.encode())).decode(),
        TIMESTAMP_HEADER: said,
    }


class SuperLink:
    """A stand-in for a SuperLink: it accepts one key and records the lengths of the bodies it receives.

    `headers`: the names of those of the last request. `faults`: by which it answers the next requests, each
    once: an error of its own, or silence.
    """

    def __init__(self):
        self.got, self.headers, self.well, self.faults = [], [], True, []
        self._known = signed(ACCEPTED)[FLEET_HTTP_PUBLIC_KEY_HEADER]

    async def __call__(self, scope, receive, send):
        request = Request(scope, receive)
        status = 200 if self.well else 500
        self.headers = request.headers.keys()
        if request.method == "POST":
            self.got.append(len(await request.body()))
            status = 200 if request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER) == self._known else 401
            fault = self.faults.pop() if self.faults else None
            if fault == SILENCE:
                await asyncio.sleep(3 * LITTLE)
            status = 500 if fault == ERROR else status
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


class RunningGate:
    def __init__(self, server, superlink, trusted):
        self.server, self.superlink, self._trusted = server, superlink, trusted

    def connect(self):
        raw = socket.create_connection((HOST, self.server.port), timeout=10)
        return self._trusted.wrap_socket(raw, server_hostname=HOST)

    def status(self, key=None, body=b"abc", path=FLEET, method="POST", headers=None):
        connection = http.client.HTTPSConnection(HOST, self.server.port, timeout=10, context=self._trusted)
        with closing(connection) as asked:
            asked.request(method, path, body, headers or ({} if key is None else signed(key)))
            return asked.getresponse().status

    def client(self, key):
        """Return a SuperNode's client of the fleet API, which signs its requests with ``key``."""
        interceptors = [NodeAuthHttpInterceptor(key, key.public_key())]
        made = FleetHttpClient(
            f"https://{HOST}:{self.server.port}", interceptors=interceptors, verify=self._trusted
        )
        return closing(made)

    def health(self):
        return self.status(path="/health", method="GET", body=None)

    def unfinished(self, key, length=500):
        """Send the beginning of a request whose body never comes; return the connection."""
        connection = self.connect()
        lines = [f"POST {FLEET} HTTP/1.1", "Host: x", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in ({} if key is None else signed(key)).items()]
        connection.sendall("\r\n".join([*lines, "", "a"]).encode())
        return connection


@contextmanager
def served(server):
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    assert server.started
    yield server
    server.should_exit = True
    thread.join(15)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write an authority's certificate, a server's certificate and that server's key; return three paths."""
    folder, authority = tmp_path_factory.mktemp("tls"), Authority.create("test")
    certificate, key = authority.issue([HOST])
    paths = [folder / name for name in ("ca.crt", "tls.crt", "tls.key")]
    for path, pem in zip(paths, (authority.certificate_pem, certificate, key), strict=True):
        path.write_bytes(pem)
    return paths


@contextmanager
def running_gate(files, shares):
    ca, certificate, key = files
    superlink, (port,) = SuperLink(), free_ports(1)
    config = uvicorn.Config(
        superlink,
        host=HOST,
        port=port,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        timeout_graceful_shutdown=1,
    )
    trusted = ssl.create_default_context(cafile=str(ca))
    gate = Gate(f"{HOST}:{port}", trusted, shares)
    with served(uvicorn.Server(config)), served(server_of(gate, HOST, 0, certificate, key)) as server:
        yield RunningGate(server, superlink, trusted)


@pytest.fixture
def gate(files):
    with running_gate(files, SMALL) as running:
        yield running


def ended(connection, within=5.0):
    """Return True once the peer has closed the connection; raise TimeoutError after ``within`` seconds."""
    connection.settimeout(within)
    with suppress(ConnectionError, ssl.SSLError):
        while piece := connection.recv(4096):
            del piece
    return True


def test_only_what_a_key_has_signed_now_reaches_the_superlink(gate):
    hour = timedelta(hours=1)
    forged = signed(ACCEPTED) | {FLEET_HTTP_PUBLIC_KEY_HEADER: signed(OTHER)[FLEET_HTTP_PUBLIC_KEY_HEADER]}
    broken = signed(ACCEPTED) | {FLEET_HTTP_SIGNATURE_HEADER: "?"}
    # A key for agreements, which cannot verify anything.
    public = X25519PrivateKey.generate().public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    odd = signed(ACCEPTED) | {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(pem).decode()}
    for headers in (signed(ACCEPTED, now() - hour), signed(ACCEPTED, now() + hour), forged, broken, odd):
        assert gate.status(headers=headers) == 401
    assert gate.status() == 401
    assert gate.superlink.got == []
    assert (gate.status(ACCEPTED), gate.status(OTHER), gate.status(ACCEPTED, method="GET")) == (200, 401, 405)
    assert gate.superlink.got == [3, 3]


def test_a_body_in_chunks_ends_with_the_last_whatever_length_is_stated(gate):
    """Neither two lengths nor bytes beyond ASCII in a header end in an error of the gate's."""
    for odd in (b"Content-Length: 9", b"X-A: \xe9"):
        connection = gate.connect()
        own = "".join(f"{name}: {value}\r\n" for name, value in signed(ACCEPTED).items()).encode()
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\n%s%s" % (FLEET.encode(), own, odd))
        connection.sendall(b"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.close()
    assert gate.superlink.got == [3, 3]


def test_headers_of_a_connection_stay_at_the_gate(gate):
    of_connection = {"TE": "trailers", "Keep-Alive": "5", "Proxy-Connection": "close", "Trailer": "X-A"}
    assert gate.status(headers=signed(ACCEPTED) | of_connection | {"X-A": "b"}) == 200
    assert "x-a" in gate.superlink.headers
    assert not {name.lower() for name in of_connection} & set(gate.superlink.headers)


def test_a_stranger_sends_little_and_a_node_as_much_as_a_message_has(gate):
    # Either may be a node that is not known yet: it is to ask again, and not to drop its message.
    assert gate.status(OTHER, bytes(1001)) == gate.status(ACCEPTED, bytes(1001)) == 503
    assert gate.superlink.got == []
    assert gate.status(ACCEPTED, bytes(1000)) == 200
    assert gate.status(ACCEPTED, bytes(200_000)) == 200
    assert gate.status(ACCEPTED, iter([bytes(100_000)] * 2)) == 200
    assert gate.superlink.got == [1000, 200_000, 200_000]
    assert gate.status(ACCEPTED, bytes(200_001)) == 413
    # Of chunks nobody says how many there will be.
    with suppress(ConnectionError):
        assert gate.status(ACCEPTED, iter([bytes(100_000)] * 3)) == 413
    assert 300_000 not in gate.superlink.got


def test_a_node_that_a_new_gate_does_not_know_sends_its_large_message_after_a_small_one(gate):
    node, patient = Node(), Patient()
    with gate.client(ACCEPTED) as client:

        def push(request):
            if patient.tries == 2:
                client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node))
            return client.PushObject(request)

        patient.invoke(push, PushObjectRequest(node=node, object_content=bytes(2000)))
    assert patient.tries == 2
    assert [length > 2000 for length in gate.superlink.got] == [False, True]


def test_strangers_whose_bodies_never_come_keep_no_node_out(gate):
    assert gate.status(ACCEPTED) == 200
    with ExitStack() as held:
        started = time.monotonic()
        waiting = [held.enter_context(gate.unfinished(OTHER)) for _ in range(SMALL.of_address.at_once)]
        time.sleep(0.1)
        # Who comes anew gets what health says: nothing, for as long as it lasts.
        assert (gate.status(OTHER), gate.health()) == (503, 503)
        assert gate.status(ACCEPTED) == 200
        assert all(ended(connection) for connection in waiting)
        assert SLOW <= time.monotonic() - started < 5
    assert (gate.status(OTHER), gate.health()) == (401, 200)


def test_who_has_no_key_holds_no_place(gate):
    with ExitStack() as held:
        for _ in range(SMALL.patience.strangers_by_address - 1):
            held.enter_context(gate.unfinished(None))
        assert (gate.status(ACCEPTED), gate.health()) == (200, 200)


def test_who_is_connected_and_says_nothing_is_hung_up_on(gate):
    with ExitStack() as held:
        silent = held.enter_context(gate.connect())
        plain = held.enter_context(socket.create_connection((HOST, gate.server.port)))
        dripping = held.enter_context(gate.connect())
        started = time.monotonic()
        for _ in range(3):
            with suppress(OSError):
                dripping.sendall(b"P")
            time.sleep(SLOW / 2)
        assert all(ended(connection) for connection in (silent, plain, dripping))
        assert time.monotonic() - started < 5


def test_headers_without_end_are_not_kept(gate):
    """The gate answers a request of endless headers with status 400, and closes the connection."""
    with gate.connect() as connection:
        # The gate keeps 2**16 bytes, and refuses the last byte that is sent here: then it has read all.
        # With one left unread, its answer is lost to a reset of the connection.
        line = b"GET /health HTTP/1.1\r\n"
        connection.sendall((line + b"aa: bb\r\n" * 2**13)[: 2**16 + 1])
        assert connection.recv(4096).startswith(b"HTTP/1.1 400")
        assert ended(connection)


def test_a_node_that_has_asked_and_drips_its_next_headers_is_hung_up_on(gate):
    with gate.connect() as connection:
        lines = [f"POST {FLEET} HTTP/1.1", "Host: x", "Content-Length: 0"]
        lines += [f"{name}: {value}" for name, value in signed(ACCEPTED).items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(b"POST / HT")
        assert ended(connection)


def test_the_longest_silent_make_room_for_who_speaks(gate):
    """Where one address has too many connections, a new one replaces the one that was silent longest."""
    with ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection((HOST, gate.server.port)))
            for _ in range(3 * SMALL.patience.strangers_by_address)
        ]
        assert gate.status(ACCEPTED) == 200
        assert ended(silent[0])


def test_each_key_has_places_of_its_own(gate):
    assert gate.status(ACCEPTED) == 200
    with ExitStack() as held:
        for _ in range(SMALL.of_key.at_once):
            held.enter_context(gate.unfinished(ACCEPTED))
        time.sleep(0.2)
        assert gate.status(ACCEPTED) == 503
        assert (gate.status(OTHER), gate.health()) == (401, 200)


class Patient:
    """A sender that repeats a request as Flower does, but without pauses; `tries` counts the attempts."""

    def __init__(self):
        self.tries = 0
        self._invoker = make_simple_http_retry_invoker()
        self._invoker.wait_function = lambda _: None

    def invoke(self, ask, request):
        def counted():
            self.tries += 1
            assert self.tries < MANY
            return ask(request)

        self.tries = 0
        return self._invoker.invoke(counted)


def test_a_supernode_repeats_all_that_it_is_refused_for_now(files, monkeypatch, capsys):
    """If the SuperLink fails to answer, the gate sends status 503, and the SuperNode repeats its request."""
    monkeypatch.setattr(gate_module, "TIMEOUT_SECONDS", LITTLE)
    node, patient = Node(), Patient()
    with running_gate(files, SMALL) as gate, gate.client(ACCEPTED) as client:
        for ask, request, *faults in (
            (client.PullMessages, PullMessagesRequest(node=node), SILENCE, ERROR),
            (client.PullObject, PullObjectRequest(node=node), ERROR),
            (client.PushObject, PushObjectRequest(node=node, object_content=bytes(2000)), SILENCE, ERROR),
            (client.ConfirmMessageReceived, ConfirmMessageReceivedRequest(node=node), ERROR),
        ):
            gate.superlink.faults, least = faults, len(faults) + 1
            patient.invoke(ask, request)
            assert gate.superlink.faults == []
            assert patient.tries >= least
        gate.superlink.faults = [ERROR]
        with pytest.raises(httpx.HTTPStatusError) as refused:
            client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node))
    # Of these alone Flower's heartbeats know that they may pass.
    assert refused.value.response.status_code in (502, 503, 504)
    said = Counter(re.findall("the SuperLink .*", capsys.readouterr().err))
    for reason in ("answers with 500, and its log says why", "does not answer (ReadTimeout)"):
        assert said[f"the SuperLink {reason}: nodes are told 503, and ask again"] == 1


def test_health_is_that_of_the_superlink(gate):
    assert gate.health() == 200
    gate.superlink.well = False
    assert gate.health() == 503


def test_strangers_are_counted_by_what_a_subscriber_has():
    addresses = [
        "192.0.2.1",
        "192.0.2.2",
        "2001:db8:1:2::1",
        "2001:db8:1:2:3::4",
        "2001:db8:1:3::1",
        "fe80::1%lo",
    ]
    counted = Counter(map(whose, addresses))
    assert counted["2001:db8:1:2::/64"] == 2
    assert len(counted) == 5


def test_it_ends_within_ten_seconds_with_requests_that_do_not(files):
    with ExitStack() as held:
        with running_gate(files, Shares(end_seconds=1)) as gate:
            assert gate.status(ACCEPTED) == 200
            held.enter_context(gate.connect())
            held.enter_context(gate.unfinished(ACCEPTED))
            held.enter_context(socket.create_connection((HOST, gate.server.port)))
            time.sleep(0.1)
            started = time.monotonic()
        assert time.monotonic() - started < 4


def test_a_port_that_another_listens_on_is_one_line(files, capsys):
    ca, certificate, key = files
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        words = [f"--superlink={HOST}:1", f"--host={HOST}", f"--port={port}", f"--ca={ca}"]
        assert main([*words, f"--certificate={certificate}", f"--key={key}"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("deploy: ")]
    assert f"the gate cannot listen on {HOST}:{port} (Address already in use): free the port" in said


def test_the_shares_have_room_for_what_flower_sends():
    shares, chunk = Shares(), 5 << 20
    assert shares.of_key.body_bytes >= 3 * chunk
    assert shares.of_address.at_once < shares.strangers
    assert shares.end_seconds + shares.patience.tls_seconds < 10
