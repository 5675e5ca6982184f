"""Tests of a SuperNode's connection: a failure is logged in one line, and the SuperNode is unhealthy."""

import asyncio
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from deploy import connection as connections
from deploy.certificates import Authority, CredentialsError
from deploy.connection import ACTIVATE, Connection, Way, check_roots, watched, with_health
from deploy.credentials import Store
from deploy.federation import Federation
from deploy.proxy import leave_by, proxy_of, read_proxy
from deploy.services import flower_environment, services
from gdpfed.federation.node.connection_file import HEALTHY, UNHEALTHY, ConnectionState
from tests.deploy.connect_proxy import DENIED, OK, ConnectProxy

HOST = "127.0.0.1"
PULL = "/v1/fleet/pull-messages"


@pytest.mark.parametrize(
    ("text", "address", "url", "words"),
    [
        ("", None, None, None),
        ("\n# http://none:3128\n\n", None, None, None),
        ("http://proxy.site:3128\n", "proxy.site:3128", "http://proxy.site:3128", False),
        ("http://me:p%40ss@proxy.site:3128/", "proxy.site:3128", "http://me:p%40ss@proxy.site:3128", True),
        ("http://me@10.0.0.1:80", "10.0.0.1:80", "http://me@10.0.0.1:80", True),
        ("http://me:x@[::1]:3128", "[::1]:3128", "http://me:x@[::1]:3128", True),
    ],
)
def test_a_file_names_a_proxy_or_none(text, address, url, words):
    found = proxy_of(text, "proxy.url")
    if found is None:
        assert address is None
        return
    assert (found.address, found.url, found.has_credentials) == (address, url, words)
    assert "p%40ss" not in repr(found)


SECRET = "hush-hush"  # noqa: S105 - of no account


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"proxy.site:{SECRET}", "names a proxy with no scheme"),
        (f"http://me:{SECRET}@proxy.site", "without its port"),
        (f"https://me:{SECRET}@proxy.site:3128", "names a proxy with https"),
        (f"socks5://me:{SECRET}@proxy.site:1080", "names a proxy with socks5"),
        (f"http://me:a@{SECRET}@proxy.site:3128", "holds no address of a proxy"),
        (f"http://me:{SECRET}#1@proxy.site:3128", "holds no address of a proxy"),
        (f"http://me:{SECRET}/1@proxy.site:3128", "holds no address of a proxy"),
        (f"http://me:{SECRET}%@proxy.site:3128", "holds no address of a proxy"),
        (f"http://me:{SECRET}ß@proxy.site:3128", "holds no address of a proxy"),
        (f"http://me:{SECRET}@proxy.site:99999", "holds no address of a proxy"),
        (f"http://proxy.site:3128/{SECRET}", "holds more than an address of a proxy"),
        (f"http://proxy.site:3128\nhttp://{SECRET}:3128", "has 2 lines"),
    ],
)
def test_what_is_no_proxy_is_refused_without_showing_it(text, said):
    with pytest.raises(CredentialsError) as refused:
        proxy_of(text, "proxy.url")
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_proxy_of_the_shell_counts_for_nothing(tmp_path):
    environment = {"https_proxy": "http://a:1", "ALL_PROXY": "http://b:1", "no_proxy": "*", "PATH": "/bin"}
    leave_by(None, environment)
    assert environment == {"PATH": "/bin"}
    leave_by(proxy_of("http://me:x@proxy.site:3128", ""), environment)
    assert environment == {"PATH": "/bin", "HTTPS_PROXY": "http://me:x@proxy.site:3128"}
    with pytest.raises(CredentialsError, match=r"proxy\.url cannot be read: No such file or directory; run"):
        read_proxy(tmp_path / "proxy.url")
    (tmp_path / "proxy.url").write_bytes(b"http://\xff:x@proxy.site:3128")
    with pytest.raises(CredentialsError, match="is not a text"):
        read_proxy(tmp_path / "proxy.url")
    assert flower_environment()["no_proxy"].startswith("*,")


def test_init_makes_the_file_and_keeps_what_is_in_it(tmp_path):
    every = services(Federation.of(3, (1.0,)))
    Store(tmp_path).provide(every)
    file = tmp_path / "supernode-1" / "credentials" / "proxy.url"
    assert read_proxy(file) is None
    file.write_text("http://me:x@proxy.site:3128\n")
    file.chmod(0o644)
    Store(tmp_path).provide(every)
    assert read_proxy(file) == proxy_of("http://me:x@proxy.site:3128", "")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.fixture(scope="module")
def authority():
    return Authority.create("of this test")


@pytest.fixture(scope="module")
def gate(authority, tmp_path_factory):
    """Start a TLS server with the name localhost that answers every request with its ``status``."""
    folder = tmp_path_factory.mktemp("gate")
    for name, pem in zip(("crt", "key"), authority.issue(["localhost"]), strict=True):
        (folder / name).write_bytes(pem)

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(server.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

    class Quiet(ThreadingHTTPServer):
        status = 200

        def handle_error(self, *words):
            """Print nothing where a client refuses the TLS handshake."""

    server = Quiet((HOST, 0), Answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def node(tmp_path, monkeypatch, authority, gate):
    """Return a node's files and log, with a function that sends a request as Flower's client does."""
    logged = []
    monkeypatch.setattr(connections, "log", lambda level, line, *words: logged.append(line % words))
    monkeypatch.setattr(connections, "PROXY_WORDS_SECONDS", 0.0)
    monkeypatch.setattr(connections, "CERTIFICATE_SECONDS", 0.0)
    gate.status = 200
    roots, proxy_file = tmp_path / "ca.crt", tmp_path / "proxy.url"
    roots.write_bytes(authority.certificate_pem)
    proxy_file.touch()

    def ask(host="localhost", port=gate.server_port, path=PULL):
        proxy = read_proxy(proxy_file)
        if made.connection is None:
            way = Way(f"{host}:{port}", proxy, proxy_file, roots)
            made.connection = Connection(way, tmp_path / "connection.json")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=roots.read_text())
        url = None if proxy is None else proxy.url
        with httpx.Client(verify=context, trust_env=False, proxy=url, timeout=5.0) as client:
            send = watched(lambda _, context, stream: client.send(context.request), made.connection)
            request = client.build_request("POST", f"https://{host}:{port}{path}")
            return send(None, SimpleNamespace(request=request))

    made = SimpleNamespace(
        ask=ask,
        connection=None,
        logged=logged,
        roots=roots,
        proxy=proxy_file,
        file=tmp_path / "connection.json",
    )
    return made


def fails(node, said, **words):
    """Send two failing requests; check that a node logs the cause once, in one line; return the error."""
    for _ in range(2):
        with pytest.raises(httpx.TransportError) as raised:
            node.ask(**words)
    (line,) = node.logged
    assert said in line
    assert "\n" not in line
    assert ConnectionState.read(node.file).found() == (UNHEALTHY, line)
    return raised.value


def test_an_answer_makes_it_healthy(node, gate):
    node.ask()
    assert ConnectionState.read(node.file).found() == (HEALTHY, "")
    gate.status = 503
    node.ask()
    assert "has no answer of the SuperLink (HTTP 503)" in node.logged[0]
    assert not node.connection.refused
    gate.status = 200
    node.ask()
    assert node.logged[1:] == [f"localhost:{gate.server_port} answers again"]
    assert ConnectionState.read(node.file).found() == (HEALTHY, "")


@pytest.mark.parametrize(("status", "path"), [(401, PULL), (412, ACTIVATE)])
def test_a_key_that_is_not_registered(node, gate, status, path):
    gate.status = status
    node.ask(path=path)
    assert f"does not let this node in (HTTP {status})" in node.logged[0]
    assert "init --renew node-key" in node.logged[0]
    assert node.connection.refused


def test_no_server(node):
    with ConnectProxy("me", "x") as closed:
        pass
    raised = fails(node, "cannot be reached (Connection refused): it is tried again", port=closed.port)
    assert type(raised) is httpx.ConnectError


def test_a_server_of_another_authority(node):
    node.roots.write_bytes(Authority.create("another").certificate_pem)
    raised = fails(node, "is not signed by an authority of ")
    # Flower ends at it, so that the file is read anew.
    assert "certificate" in str(raised).lower()


def test_a_server_of_another_name(node):
    fails(node, "is for another name: connect by the name", host=HOST)


def test_several_authorities_in_one_file(node, authority):
    other = Authority.create("of the site").certificate_pem
    node.roots.write_bytes(other + authority.certificate_pem)
    check_roots(node.roots)
    node.ask()
    assert node.logged == []


@pytest.mark.parametrize("data", [b"", b"no certificate", b"\xff\xfe", None])
def test_a_file_without_a_certificate_is_refused_at_the_start(tmp_path, data):
    file = tmp_path / "ca.crt"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(
        CredentialsError, match=r"ca\.crt holds no certificate that the SuperNode can trust \("
    ):
        check_roots(file)


def test_no_tls(node):
    def answer():
        for _ in range(2):
            asked, _ = plain.accept()
            with asked:
                asked.recv(1 << 12)
                asked.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server((HOST, 0)) as plain:
        threading.Thread(target=answer, daemon=True).start()
        raised = fails(node, "cannot agree on TLS", host=HOST, port=plain.getsockname()[1])
    # Without the words at which Flower ends: a line that breaks off in between is tried again.
    assert str(raised) == "the connection has failed"


def test_it_leaves_by_the_proxy(node, gate):
    with ConnectProxy("me", "a b:c@") as proxy:
        node.proxy.write_text(f"http://me:a%20b%3Ac%40@{HOST}:{proxy.port}\n")
        node.ask()
    assert proxy.asked == [(f"localhost:{gate.server_port}", OK)]
    assert proxy.passed > 1000
    assert node.logged == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("me:wrong-word@", "does not take the user name and password of "),
        ("", "asks for a user name and a password"),
    ],
)
def test_a_proxy_that_refuses_the_password_is_asked_once(node, words, said):
    with ConnectProxy("me", "x") as proxy:
        node.proxy.write_text(f"http://{words}{HOST}:{proxy.port}\n")
        raised = fails(node, said)
    # Flower ends at it; meanwhile a directory that counts wrong passwords is told no second one.
    assert isinstance(raised, httpx.ProxyError)
    assert [status for _, status in proxy.asked] == [DENIED]
    assert "wrong-word" not in node.logged[0]


def test_a_proxy_that_does_not_reach_the_server_is_tried_again(node):
    with ConnectProxy("me", "x") as closed:
        pass
    with ConnectProxy("me", "x") as proxy:
        node.proxy.write_text(f"http://me:x@{HOST}:{proxy.port}\n")
        raised = fails(node, "does not connect to ", port=closed.port)
    assert "(HTTP 502): it is tried again" in node.logged[0]
    assert type(raised) is httpx.ConnectError
    assert len(proxy.asked) == 2


def test_a_changed_file_ends_the_wait(node, monkeypatch):
    monkeypatch.setattr(connections, "PROXY_WORDS_SECONDS", 60.0)
    monkeypatch.setattr(connections, "_POLL_SECONDS", 0.01)
    with ConnectProxy("me", "x") as proxy:
        node.proxy.write_text(f"http://me:wrong@{HOST}:{proxy.port}\n")
        threading.Timer(0.1, node.proxy.write_text, [f"http://me:x@{HOST}:{proxy.port}\n"]).start()
        began = time.monotonic()
        with pytest.raises(httpx.ProxyError):
            node.ask()
    assert 0.05 < time.monotonic() - began < 30.0


def test_health_is_that_of_the_connection(node, gate):
    def create():
        app = FastAPI()
        app.get("/health")(lambda: "well")
        app.get("/other")(lambda: "well")
        return app

    async def asked(*paths):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
            return [await client.get(path) for path in paths]

    node.ask()
    app = with_health(create, node.connection)()
    assert [each.status_code for each in asyncio.run(asked("/health", "/other"))] == [200, 200]
    gate.status = 401
    node.ask()
    health, other = asyncio.run(asked("/health", "/other"))
    assert (health.status_code, other.status_code) == (503, 200)
    assert node.connection.reason not in health.text
