"""Tests of three separate nodes over TLS: they train, strangers are refused, and no file leaks a secret."""

import http.client
import json
import re
import ssl
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.cli.build import build_fab_from_disk
from flwr.superlink.routers.control.router import router as control_api
from starlette.routing import Route

from client_app.relay import token_file
from deploy import local
from deploy.confine import lacking
from deploy.credentials import CONSORTIUM, CONSORTIUM_KEY, Store
from deploy.federation import Federation
from deploy.gate import PATHS
from deploy.loopback import OPERATOR, LoopbackFederation
from deploy.operate import train_config, training_words
from deploy.placements import Loopback
from deploy.services import services
from deploy.stored_app import build_bundle, provide_signature, store_app
from deploy.superlink_client import FINISHED, SuperLinkClient, SuperLinkError
from deploy.topology import (
    APP_SIGNATURE,
    CONSORTIUM_FILE,
    DATA,
    DATABASE,
    GATE,
    GUARD,
    NODE_KEY_FILE,
    PUBLIC,
    RUNS,
    SERVER_SUPEREXEC,
    STATE,
    SUPERLINK,
    SUPERLINK_CA_FILE,
    credentials_of,
)
from gdpfed.identities import public_key_of, read_identity
from gdpfed.launch.flower_run import FlowerRun, run_command
from gdpfed.launch.home import free_ports
from gdpfed.signed_apps import SignedApp, sign_app
from testing.known_identities import identity_of
from testing.project import PROJECT
from tests.deploy.faulty_federation import FaultyFederation
from tests.deploy.thieving_app import thieving_app


@pytest.fixture(scope="module")
def running():
    with pytest.MonkeyPatch.context() as shell:
        shell.setenv("OPERATORS_TOKEN", "secret")
        # Four programs that ask for work eight times a second take a third of a processor, by which no answer
        # gets another.
        shell.setattr("deploy.loopback.NODE_POLL_SECONDS", 0.1)
        with LoopbackFederation(Federation.of(3, secagg_mode="active")) as running:
            yield running
    assert list(running.home.processes()) == []
    assert not running.home.path.exists()


def test_every_service_says_that_it_is_healthy(running):
    assert [name for name in running.services if not running.healthy(name)] == []


def test_a_plain_text_client_gets_no_answer(running):
    plain = http.client.HTTPConnection("127.0.0.1", running.place.port(SUPERLINK), timeout=10)
    with closing(plain) as connection:
        connection.request("GET", "/health")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            connection.getresponse()
    assert running.healthy(SUPERLINK)


def test_nodes_reach_the_fleet_api_and_nothing_else_of_the_superlink(running, tmp_path):
    """The gate before the SuperLink passes on requests of the fleet API, and no request of another API."""
    certificate = running.home.path / PUBLIC / SUPERLINK_CA_FILE
    trusted = ssl.create_default_context(cafile=certificate)

    def status(service, path, method="POST"):
        port = running.place.port(service)
        with closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trusted)) as asked:
            asked.request(method, path, b"", {"content-type": "application/protobuf"})
            return asked.getresponse().status

    control = [route.path for route in control_api.routes if isinstance(route, Route)]
    fleet, listing = PATHS[0], "control/list-nodes"
    assert status(SUPERLINK, f"/v1/{listing}") == 200
    around = [f"{fleet}/../../{listing}", f"{fleet}%2f..%2f..%2fcontrol%2flist-nodes", f"/x/../v1/{listing}"]
    others = ["/docs", "/openapi.json", "/v1/runtime/acquire-task"]
    assert {path for path in (*control, *around, *others) if status(GATE, path) not in (404, 405)} == set()
    assert (status(SUPERLINK, fleet), status(GATE, fleet), status(GATE, fleet, "GET")) == (401, 401, 405)
    outsider = SuperLinkClient(tmp_path, f"127.0.0.1:{running.place.port(GATE)}", certificate)
    with pytest.raises(SuperLinkError):
        outsider.nodes()


def test_a_node_that_nobody_registered_is_refused(running):
    """The SuperLink refuses a node whose key is not registered, and a node without a key."""
    ports = dict(running.place.ports) | dict(
        zip(("supernode-3", "node-3-superexec"), free_ports(2), strict=True)
    )
    place = Loopback(running.home.path, ports)
    four = {service.name: service for service in services(Federation.of(4, (1.0,)), place)}
    Store(running.home.path).provide(list(four.values()))
    foreign_key = list(four["supernode-3"].command)
    at = foreign_key.index("--auth-supernode-private-key")
    no_key = foreign_key[:at] + foreign_key[at + 2 :]
    no_key[no_key.index("--port") + 1] = str(free_ports(1)[0])
    answers = {
        "foreign-key": (foreign_key, "Failed to activate SuperNode"),
        "no-key": (no_key, "SuperNodes must be registered via the CLI"),
    }
    processes = {
        name: running.home.spawn(words, log=f"{name}.log", folder=f"{name}/home")
        for name, (words, _) in answers.items()
    }
    for name, (_, answer) in answers.items():
        assert processes[name].wait(timeout=60) == 1
        assert answer in running.log(name)
    statuses = [node.status for node in running.superlink_client().nodes()]
    assert statuses == ["online"] * len(running.federation.nodes)


def test_nodes_are_listed_replaced_and_taken_away_by_name(running, tmp_path):
    control, names = running.superlink_client(), [node.name for node in running.federation.nodes]

    def new_key(name):
        key = ec.generate_private_key(ec.SECP384R1()).public_key()
        public = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (tmp_path / f"{name}.pub").write_bytes(public + b" of a test\n")

    new_key("node-10")
    assert control.register(tmp_path) == (["node-10"], [])
    assert control.register(tmp_path) == ([], [])
    before = control.nodes()
    assert [node.name for node in before] == [*names, "node-10"]
    assert {node.status for node in before[:-1]} == {"online"}
    new_key("node-10")
    assert control.register(tmp_path) == (["node-10"], [])
    after = control.nodes()
    assert after[:-1] == before[:-1]
    assert after[-1].node_id != before[-1].node_id
    assert control.unregister("node-10") == after[-1]
    assert control.nodes() == before[:-1]
    # The SuperLink never takes the key of a node again that was taken away.
    assert control.register(tmp_path) == ([], ["node-10"])
    with pytest.raises(
        SuperLinkError,
        match="0 registered nodes are called node-10: give the id of one node; registered are node-0, node-1",
    ):
        control.unregister("node-10")
    (tmp_path / "node-11.pub").write_text("no key")
    with pytest.raises(SuperLinkError, match=r"node-11\.pub is not a public key of a node"):
        control.register(tmp_path)


def test_a_superexec_with_another_secret_gets_no_work(running):
    service = running.services["server-superexec"]
    at = service.command.index("--superexec-auth-secret-file") + 1
    foreign = running.services["node-0-superexec"].command[at]
    words = [*service.command[:at], foreign, *service.command[at + 1 :]]
    words[words.index("--health-server-address") + 1] = f"127.0.0.1:{free_ports(1)[0]}"
    process = running.home.spawn(words, log="intruder.log", folder="intruder/home")
    process.wait(timeout=60)
    assert re.search(r'acquire-task HTTP/1\.1" 401', running.log(SUPERLINK))


def test_an_app_of_plain_flwr_run_runs_on_no_node(running, tmp_path):
    """No node runs the unsigned app of a plain ``flwr run``; each node answers with a line that says why."""
    before, report = handed_on(running), running.runs / "unsigned.json"
    command = run_command(running.home.path / OPERATOR, thieving_app(tmp_path, {}, report), {})
    FaultyFederation(running).finish(FlowerRun(running.home, command, folder=OPERATOR))
    of_server, *of_nodes = json.loads(report.read_text())
    assert of_server == []
    assert len(of_nodes) == len(running.federation.nodes)
    for (said,) in of_nodes:
        assert said.startswith("the app is not signed, and this node runs signed apps only: ")
        assert "\n" not in said
    assert handed_on(running) == before


@pytest.fixture
def intruder(running):
    """Start a node that the SuperLink accepts, but that claims to be client 1 with another node's key."""
    ports = dict(running.place.ports) | dict(
        zip(("supernode-3", "node-3-superexec"), free_ports(2), strict=True)
    )
    place = Loopback(running.home.path, ports)
    four = services(Federation.of(4, (1.0,)), place)
    store = Store(running.home.path)
    store.provide(four)
    provide_signature(store)
    running.operate("register", "--public", str(running.home.path / PUBLIC))
    own = {service.name: service for service in four if service.party == "node-3"}
    command = own["node-3-guard"].command
    claims = {"partition-id=3": "partition-id=1", "node-3-superexec/data": "node-1-superexec/data"}
    for old, new in claims.items():
        command = tuple(word.replace(old, new) for word in command)
    running.services |= own | {"node-3-guard": replace(own["node-3-guard"], command=command)}
    before, running.place = running.place, place
    for name in own:
        running.start(name)
    FaultyFederation(running).until(
        lambda: "SuperNode ID" in running.log("supernode-3"), "the intruder is let in"
    )
    yield
    for name in own:
        running.kill(name)
        del running.services[name]
    running.place = before


def test_three_nodes_train_although_the_server_may_lie(running, tmp_path, monkeypatch, capsys, intruder):
    """``make deploy-local`` trains three nodes in active mode (with signatures) and excludes an intruder."""
    monkeypatch.setattr(local, "LoopbackFederation", lambda federation, *others: nullcontext(running))
    directory = tmp_path / "run"
    words = ["--nodes", "3", "--secagg", "active", "run.num_rounds=1"]
    assert local.main([*words, f"run.directory={directory}"]) == 0
    out = capsys.readouterr().out
    assert "every node is online, over TLS and under its own key" in out
    assert re.search(r"round 1/1  accuracy \d+\.\d %  epsilon against [a-z ]+ 1.00/1 3.00/3 6.00/6", out)
    assert re.findall(r"node-\d: its own ledger holds epsilon (.*) sent", out) == [
        f"{epsilon:.2f} of {epsilon} (1 of 1 updates" for epsilon in (1, 3, 6)
    ]
    assert "Every budget held, and the files agree." in out
    (record,) = (json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines())
    assert (record["cohort_sizes"], record["survivors"], record["failures"]) == ([1, 1, 1], [3], {})
    assert record["seconds"].keys() >= {"advertise", "share", "mask", "check", "unmask"}
    ledger = json.loads((directory / "ledger.json").read_text())
    assert ledger["participations"] == [{"0": 1}, {"1": 1}, {"2": 1}]
    refusal = r"SuperNode \d+ does not join: .*roster\.json does not have this node's key, \w+, for client 1"
    assert re.search(refusal, (directory / "flower.log").read_text())


def handed_on(running):
    """Return how many messages each SuperNode has handed to an app."""
    logs = [running.log(node.supernode) for node in running.federation.nodes]
    return [log.count("Received successfully") for log in logs]


def signature(running):
    """Return the consortium's public key, and its signature of the app."""
    public = running.home.path / PUBLIC
    key = public_key_of(str(public / CONSORTIUM_FILE))
    return key, SignedApp.read((public / APP_SIGNATURE).read_bytes(), key)


def test_nodes_run_no_code_that_their_consortium_has_not_signed(running):
    """A node refuses an app that its consortium has not signed, and no message reaches the app."""
    client, content = running.superlink_client(), build_bundle()
    key, signed = signature(running)
    foreign = sign_app(content + b"\0\0", identity_of(91), signed.statement.roster_number)
    database = Path(running.place.folder(SUPERLINK, STATE)) / DATABASE
    run_config = train_config(running.runs / "refused", training_words(3, ["run.timeout_seconds=15"]))

    def stored(bundle, app):
        store_app(database, bundle, app, key)
        return client.start_stored("@gdpfed/gdpfed", sha256(bundle).hexdigest(), run_config)

    before = handed_on(running)
    refusals = {
        stored(content + b"\0", signed): "is not the one that was signed",
        stored(content + b"\0\0", foreign): "the app is not signed by the consortium with key",
    }
    for run_id, line in refusals.items():
        ended = partial(lambda asked: client.status(asked).status == FINISHED, run_id)
        FaultyFederation(running).until(ended, f"the end of run {run_id}")
        assert re.search(rf"SuperNode \d+ does not join: .*{line}", client.status(run_id).details)
    assert handed_on(running) == before


def has_ended(client, run_id):
    return client.status(run_id).status == FINISHED


@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_an_app_that_steals_gets_nothing_of_its_node_or_another(running, tmp_path):
    """A malicious app with a valid signature can reach only the folders and services that it works with."""
    root, ports = running.home.path, running.place.ports
    others = [name for name in running.services if not running.services[name].runs_app]
    patterns = ("*/credentials/*.key", "*/ledger/*", "*/data/*", "*/state/*", "*/guard/*.token", "*.log")
    files = [path for pattern in patterns for path in root.glob(pattern) if path.is_file()]
    folders = [Path("/proc"), PROJECT, root, *(path for path in root.glob("*/*") if path.is_dir())]
    aims = {
        "files": [*map(str, files), str(PROJECT / "pyproject.toml")],
        "folders": [*map(str, folders)],
        "processes": [each.pid for name in others for each in running.home.processes(f"{name}/home")],
        "ports": [*ports.values()],
        "variables": ["OPERATORS_TOKEN", "FLWR_HOME"],
    }
    assert {path.name for path in files} >= {"identity.key", "node.key", "examples.npz", DATABASE}
    assert len(aims["processes"]) >= len(others)
    report = running.runs / "stolen.json"
    bundle = build_fab_from_disk(thieving_app(tmp_path, aims, report))
    consortium = read_identity(root / CONSORTIUM / CONSORTIUM_KEY, None)
    key = consortium.public_bytes()
    number = signature(running)[1].statement.roster_number
    signed = sign_app(bundle, consortium, number)
    store_app(Path(running.place.folder(SUPERLINK, STATE)) / DATABASE, bundle, signed, key)
    client = running.superlink_client()
    for _ in range(3):
        report.unlink(missing_ok=True)
        run_id = client.start_stored(signed.statement.app, signed.statement.bundle, {})
        ended = FaultyFederation(running)
        ended.until(partial(has_ended, client, run_id), "the end of the thief")
        of_server, *of_nodes = json.loads(report.read_text())
        # On a busy machine Flower may miss a node's heartbeat, and asks it nothing: the thief comes again.
        if not any("heartbeat" in line for told in of_nodes for line in told):
            break

    def got(name, superlink_or_node, *seen):
        """Return what a malicious app in a SuperExec may access, such as its own folders and two ports."""
        own = [root / name / folder for folder in ("credentials", "home")]
        reached = (f"connect {ports[superlink_or_node]}", f"bind {ports[name]}")
        return {*reached, *(f"list {path}" for path in (*own, *seen)), "variable FLWR_HOME"}

    read = {f"read {path}" for path in (root / SERVER_SUPEREXEC / DATA).iterdir()}
    own = [root / SERVER_SUPEREXEC / folder for folder in (DATA, RUNS)]
    assert set(of_server) == got(SERVER_SUPEREXEC, SUPERLINK, *own) | read
    expected = [
        got(n.superexec, n.supernode, root / n.guard / GUARD)
        | {f"read {token_file(root / n.guard / GUARD / 'guard.sock')}"}
        for n in running.federation.nodes
    ]
    assert sorted(map(sorted, of_nodes)) == sorted(map(sorted, expected))


def test_a_secret_in_a_log_is_found(running):
    root = running.home.path
    key = credentials_of(root, "supernode-1") / NODE_KEY_FILE
    log = root / "careless.log"
    log.write_text(f"read {key.read_text()}")
    assert (key, log) in FaultyFederation(running).leaked_secrets()
    log.unlink()


def test_no_secret_is_in_a_log_or_in_a_file_of_a_run(running):
    faulty = FaultyFederation(running)
    assert faulty.leaked_secrets() == []
    names = {path.name for path in faulty.written()}
    assert names >= {"superlink.log", "supernode-2.log", "node-0-superexec.log", "flower.log", "rounds.jsonl"}
