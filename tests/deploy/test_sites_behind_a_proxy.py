"""Tests of nodes behind a proxy with a password: a fault is logged in one line, and other nodes train."""

import time
from contextlib import suppress

import psutil
import pytest

from deploy.federation import Federation
from deploy.superlink_client import ONLINE
from deploy.topology import GATE, PROXY_FILE, SUPERLINK_CA_FILE
from gdpfed.audit.run_audit import audit_run
from gdpfed.federation.node.connection_file import CONNECTION_FILE, ConnectionState
from tests.deploy.broken_sites import SitesBehindAProxy
from tests.deploy.connect_proxy import DENIED, OK, ConnectProxy
from tests.deploy.faulty_federation import FaultyFederation

pytestmark = pytest.mark.slow
FEDERATION = Federation.of(7, (8.0,), "active")
*ARRIVING, WRONG_WORDS, SWAPPED, UNREGISTERED, AWAY = (node.name for node in FEDERATION.nodes)
PASSWORD, WRONG = "a pass:word@site", "another-word"
ESCAPED = "a%20pass%3Aword%40site"
LINES = {
    WRONG_WORDS: "does not take the user name and password of ",
    SWAPPED: "is not signed by an authority of ",
    UNREGISTERED: "does not let this node in (HTTP 401)",
}
MINUTE = 60.0


@pytest.fixture(scope="module")
def proxy():
    with ConnectProxy("site", PASSWORD) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def sites(proxy):
    right, wrong = (f"http://site:{words}@127.0.0.1:{proxy.port}\n" for words in (ESCAPED, WRONG))
    files = {node.name: wrong if node.name == WRONG_WORDS else right for node in FEDERATION.nodes}
    with SitesBehindAProxy(
        FEDERATION, files, arriving=(*ARRIVING, UNREGISTERED), away=AWAY, swapped=SWAPPED
    ) as sites:
        yield FaultyFederation(sites)


def state_of(sites, name):
    folder = sites.running.place.folder(f"super{name}", "seen")
    return ConnectionState.read(type(sites.running.home.path)(folder) / CONNECTION_FILE).found()


@pytest.mark.timeout(600)
def test_four_sites_fail_each_in_one_line_and_three_train(sites, proxy):
    running, gate = sites.running, f"127.0.0.1:{sites.running.place.port(GATE)}"
    running.superlink_client().unregister(UNREGISTERED)
    began = time.monotonic()
    run = sites.train("sites", ["run.num_rounds=2", "run.minimum_nodes=3"])
    for name, line in LINES.items():
        told = lambda name=name, line=line: line in running.log(f"super{name}")  # noqa: E731
        sites.until(told, f"{name} says: {line}", MINUTE - (time.monotonic() - began))
    sites.finish(run)
    assert [(each.survivors, each.failures) for each in sites.rounds("sites")] == [([3], {})] * 2
    assert audit_run(sites.files("sites")).passed
    for name, line in LINES.items():
        assert running.log(f"super{name}").count(line) == 1
        assert not running.healthy(f"super{name}")
        state, reason = state_of(sites, name)
        assert (state, line in reason) == ("unhealthy", True)
    for name in ARRIVING:
        assert running.healthy(f"super{name}")
        assert state_of(sites, name) == ("healthy", "")
    known = {node.name: node.status for node in running.superlink_client().nodes()}
    assert [name for name, status in known.items() if status == ONLINE] == ARRIVING
    # All that the nodes sent went through the proxy, and the wrong password was tried once.
    assert {target for target, _ in proxy.asked} == {gate}
    assert [status for _, status in proxy.asked if status != OK] == [DENIED]
    assert proxy.passed > 1e5


def test_no_password_is_written_or_listed(sites):
    processes = []
    for process in sites.running.home.processes():
        with suppress(psutil.Error):
            processes += [*process.cmdline(), *process.environ().values()]
    assert any(word.endswith("proxy.url") for word in processes)
    for text in (*sites.written().values(), *processes):
        assert [word for word in (PASSWORD, ESCAPED, WRONG) if word in text] == []


@pytest.mark.timeout(300)
def test_what_an_operator_mends_is_read_anew(sites):
    """A SuperNode ends when its proxy or certificate file changes, and is accepted after a restart."""
    running = sites.running
    for name, file in ((WRONG_WORDS, PROXY_FILE), (SWAPPED, SUPERLINK_CA_FILE)):
        right = running.supernode_file(ARRIVING[0], file).read_bytes()
        running.supernode_file(name, file).write_bytes(right)
        sites.until(lambda name=name: running.processes[f"super{name}"].poll() == 1, f"{name} ends", MINUTE)
        sites.until_let_in(next(node for node in FEDERATION.nodes if node.name == name))
        assert running.healthy(f"super{name}")


@pytest.mark.timeout(300)
def test_a_proxy_that_is_away_for_a_while_is_waited_for(sites, proxy):
    running, name = sites.running, f"super{ARRIVING[0]}"
    proxy.end()
    sites.until(lambda: not running.healthy(name), "the node is unhealthy", MINUTE)
    assert f"the proxy 127.0.0.1:{proxy.port} cannot be reached (Connection refused)" in running.log(name)
    with ConnectProxy("site", PASSWORD, proxy.port):
        sites.until(lambda: running.healthy(name), "the node is healthy again", MINUTE)
    assert "answers again" in running.log(name)
