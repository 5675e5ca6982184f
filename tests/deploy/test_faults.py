"""What goes wrong on the real topology: the run goes on or says why not, and the ledger is right."""

import http.client
import json
import re

import pytest
from faulty_federation import FaultyFederation

from deploy.credentials import Store
from deploy.placements import Loopback
from deploy.processes import LoopbackFederation
from deploy.topology import SUPERLINK, Federation, services
from gdpfed.flower_home import free_ports
from gdpfed.flower_run import LaunchError

FEDERATION = Federation.of(5, (1.0,))
ROUNDS = ("run.num_rounds=2", "run.timeout_seconds=60")
INTERRUPTED = {"round": "interrupted before its end: charged, and not repeated"}


@pytest.fixture(scope="module")
def faulty():
    with LoopbackFederation(FEDERATION) as running:
        yield FaultyFederation(running)


def test_every_service_says_that_it_is_healthy(faulty):
    running = faulty.running
    assert [name for name in running.services if not running.healthy(name)] == []


def test_a_plain_text_client_gets_no_answer(faulty):
    connection = http.client.HTTPConnection("127.0.0.1", faulty.running.place.port(SUPERLINK), timeout=10)
    connection.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.getresponse()
    assert faulty.running.healthy(SUPERLINK)


def test_a_node_whose_key_is_not_registered_is_refused(faulty):
    """A sixth node with credentials of the right authority, whose key nobody has registered."""
    running = faulty.running
    ports = dict(running.place.ports) | dict(
        zip(("supernode-5", "node-5-superexec"), free_ports(2), strict=True)
    )
    place = Loopback(running.home.path, ports)
    six = {service.name: service for service in services(Federation.of(6, (1.0,)), place)}
    Store(running.home.path).provide(list(six.values()))
    process = running.home.spawn(six["supernode-5"].command, log="supernode-5.log", folder="supernode-5/home")
    assert process.wait(timeout=60) == 1
    assert "Failed to activate SuperNode" in running.log("supernode-5")
    assert running.control_client().online() == len(FEDERATION.nodes)


def test_a_superexec_with_another_secret_gets_no_work(faulty):
    running = faulty.running
    service = running.services["server-superexec"]
    at = service.command.index("--superexec-auth-secret-file") + 1
    foreign = running.services["node-0-superexec"].command[at]
    words = [*service.command[:at], foreign, *service.command[at + 1 :]]
    words[words.index("--health-server-address") + 1] = f"127.0.0.1:{free_ports(1)[0]}"
    process = running.home.spawn(words, log="intruder.log", folder="intruder/home")
    process.wait(timeout=60)
    assert re.search(r'acquire-task HTTP/1\.1" 401', running.log(SUPERLINK))


@pytest.mark.slow
def test_a_killed_node_and_a_killed_server_app_cost_no_more_than_their_part(faulty):
    """Round 1 loses a node, which comes back; round 2 loses the ServerApp; then the run is resumed."""
    lost, other = FEDERATION.nodes[1], FEDERATION.nodes[0]
    run = faulty.train("run", ROUNDS)
    faulty.until_received(lost, "train.masked")
    faulty.kill_node(lost)
    faulty.until_received(other, "train.advertise", 2)
    (first,) = faulty.rounds("run")
    assert (first.cohort_sizes, first.survivors, first.failures) == ([5], [4], {})
    faulty.server_app().kill()
    faulty.start_node(lost)
    with pytest.raises(LaunchError, match=r"run \d+ ended as finished:failed .*run\.resume="):
        faulty.finish(run)
    assert ledger_of(faulty)["charged_rounds"] == 2
    faulty.finish(faulty.train("run", ROUNDS))
    one, two = faulty.rounds("run")
    assert one == first
    assert (two.accuracy, two.survivors, two.failures) == (one.accuracy, [], INTERRUPTED)
    ledger = ledger_of(faulty)
    assert ledger["charged_rounds"] == 2
    assert ledger["participations"] == [{str(node.client_id): 2 for node in FEDERATION.nodes}]
    assert 0.9 < two.spent_epsilon[0] <= 1.0
    assert faulty.leaked_secrets() == []
    assert {"flower.log", "rounds.jsonl", "ledger.json"} <= {p.name for p in faulty.written()}


def ledger_of(faulty):
    return json.loads((faulty.files("run") / "ledger.json").read_text())


def test_no_secret_is_in_a_log(faulty):
    assert faulty.leaked_secrets() == []
    assert {"superlink.log", "supernode-4.log", "node-0-superexec.log"} <= {p.name for p in faulty.written()}
