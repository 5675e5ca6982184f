"""Tests of the Compose files of a cloud and its edges, and of the credentials that their hosts make."""

import json
import shlex

import pytest
import yaml

from conf.load import load
from deploy import init, operate
from deploy.__main__ import main as write_compose
from deploy.compose import host_file
from deploy.edges import Layers
from deploy.topology import SERVER
from gdpfed.methods import make_method
from tests.deploy.compose_promises import assert_promises, at_defaults, running
from tests.deploy.containers.layered import documented_words

LAYERS = Layers.of(2, 6, trusted_edges=1)
CLIENT_APP, CLIENT_NODE = "edge-client-1-superexec", "edge-client-supernode-1"
CLIENT_GUARD = "edge-client-1-guard"
WORDS = ("--edges", "2", "--nodes", "6")


def read(tree):
    return json.loads(at_defaults(json.dumps(tree)))


EDGE = read(host_file(LAYERS, "edge-1"))


def init_words(tree):
    """Return the options that the init job gives `deploy.init`, without the container's folder and user."""
    _, _, _, *words = tree["services"]["init"]["entrypoint"]
    for option in ("--directory", "--owner"):
        at = words.index(option)
        del words[at : at + 2]
    return words


def mounted(tree, service):
    """Return the volumes of a service by target: the source, and whether the volume is read-only."""
    return {
        each["target"]: (each["source"], bool(each.get("read_only")))
        for each in tree["services"][service]["volumes"]
    }


def told(tree, supernode):
    """Return the settings with which a SuperNode is started."""
    words = tree["services"][supernode]["command"][-1]
    return dict(word.partition("=")[::2] for word in shlex.split(words))


def test_the_files_of_all_sites_are_written_and_one_is_printed(tmp_path, capsys):
    assert write_compose([*WORDS, "--trusted-edges", "1", "--into", str(tmp_path)]) == 0
    files = [tmp_path / f"{host}.yml" for host in ("cloud", "edge-0", "edge-1")]
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    texts = [file.read_text(encoding="utf-8") for file in files]
    for file, text in zip(files, texts, strict=True):
        assert text.startswith(f"# Made by: python -m deploy {' '.join(WORDS)} ")
        assert f" --host {file.stem}\n" in text
    assert write_compose([*WORDS, "--host", "edge-1", "--trusted-edges", "1"]) == 0
    assert capsys.readouterr().out.split("\n", 1)[1] == texts[2].split("\n", 1)[1]


def test_an_edge_has_its_own_federation_and_one_node_of_the_clouds():
    services = EDGE["services"]
    assert {"superlink", "server-superexec", "supernode-2", "node-2-superexec"} <= services.keys()
    assert {"init", "register", "train", "audit"} <= services.keys()
    assert [name for name in services if "edge-client" in name] == [CLIENT_NODE, CLIENT_APP, CLIENT_GUARD]
    command = services[CLIENT_NODE]["command"]
    assert command[command.index("--superlink") + 1] == "cloud:8000"
    assert told(EDGE, CLIENT_NODE) == {"guard": "/guard/guard.sock"}
    assert told(EDGE, CLIENT_GUARD)["edge"] == "/mailbox"
    assert told(EDGE, CLIENT_GUARD)["partition-id"] == "1"
    shared = ("./federation/cloud/edge-client-1-superexec/mailbox", False)
    assert mounted(EDGE, CLIENT_APP).keys() == {"/federation", "/guard"}
    assert mounted(EDGE, CLIENT_GUARD)["/mailbox"] == mounted(EDGE, "server-superexec")["/mailbox"] == shared
    for name in (CLIENT_NODE, CLIENT_APP, CLIENT_GUARD):
        source, read_only = mounted(EDGE, name)["/federation"]
        assert (source, read_only) == (f"./federation/cloud/{name}/credentials", True)
    # The app of the edge client reaches its SuperNode, that one the cloud, and no device either.
    assert services[CLIENT_APP]["networks"] == ["edge-client-1"]
    assert services[CLIENT_NODE]["networks"] == ["edge-client-1", "federation"]
    others = {
        network
        for name, each in services.items()
        if name not in (CLIENT_APP, CLIENT_NODE)
        for network in each.get("networks", [])
    }
    assert others.isdisjoint({"edge-client-1", "federation"})
    assert not any("ports" in each for each in services.values() if "profiles" not in each)


def test_the_cloud_has_a_server_and_no_node():
    tree = read(host_file(LAYERS, "cloud"))
    assert list(running(tree)) == [
        *("superlink", "gate", "server-superexec"),
    ]
    assert tree["services"]["gate"]["ports"] == ["8000:8000"]
    train = tree["services"]["train"]["entrypoint"]
    assert train[train.index("--nodes") + 1] == "2"
    assert {"method=edge_average", "secagg=off", "training.local_steps=2"} <= set(train)
    assert not any(word.startswith("secagg.mode") for word in train)


def test_the_jobs_say_what_their_programs_take():
    for host in LAYERS.hosts:
        jobs = host_file(LAYERS, host)["services"]
        train = jobs["train"]["entrypoint"]
        operate.parser().parse_args(train[3:])
        made = init.parser().parse_args([*init_words(read({"services": jobs})), "--directory", "x"])
        assert (made.edges, made.nodes, made.host) == (2, 6, host)
        assert made.party == ([SERVER] if host == "cloud" else [])
    trusted, summed = (host_file(LAYERS, host)["services"]["train"]["entrypoint"] for host in LAYERS.edges)
    assert {"method.trust=trusted", "secagg=off", "run.mailbox=/mailbox"} <= set(trusted)
    assert "run.mailbox=/mailbox" in summed
    assert "secagg=off" not in summed


def test_the_documented_trainings_are_ones_that_can_be_planned():
    own = ["privacy.client_budgets=[8,8,8]", "privacy.delta=1e-5"]
    for host, more, method in (("cloud", [], "edge_average"), ("edge-1", own, "h2fdp")):
        words = LAYERS.words(host, documented_words(f"{host}.yml"))
        assert make_method(load([*words, *more])).name == method


def test_hosts_make_credentials_and_hand_over_public_ones(tmp_path, capsys):
    """The hosts of a cloud and of an edge make their own credentials, and exchange only public files."""
    cloud, edge = tmp_path / "cloud-host", tmp_path / "edge-host"
    assert init.main([*WORDS, "--host", "cloud", "--party", "server", "--directory", str(cloud)]) == 0
    edge_words = [*WORDS, "--host", "edge-1", "--directory", str(edge)]
    assert init.main(edge_words) == 2
    assert f"{edge}/cloud/public/superlink-ca.crt is missing" in capsys.readouterr().err
    certificate = (cloud / "public" / "superlink-ca.crt").read_bytes()
    (edge / "cloud" / "public" / "superlink-ca.crt").write_bytes(certificate)
    assert init.main(edge_words) == 0
    said = capsys.readouterr().out
    assert f"send {edge}/cloud/public/edge-client-1.identity to the consortium" in said
    assert said.count("consortium;") == 1
    # The edge signs who its own devices are, and the edge client is none of them.
    roster = json.loads((edge / "public" / "roster.json").read_text())
    assert json.dumps(roster).count((edge / "public" / "node-2.identity").read_text().strip()) == 1
    above = (edge / "cloud" / "public" / "edge-client-1.identity").read_text().strip()
    assert above not in json.dumps(roster)
    edge_client = edge / "cloud" / CLIENT_NODE / "credentials"
    assert (edge_client / "superlink-ca.crt").read_bytes() == certificate
    assert (edge / "public" / "superlink-ca.crt").read_bytes() != certificate
    assert (edge / "cloud" / CLIENT_APP / "mailbox").is_dir()
    assert (edge / "cloud" / "public" / "edge-client-1.pub").exists()
    assert not list((edge / "public").glob("edge-client*"))
    assert not (edge / "cloud" / "consortium").exists()
    key = (edge_client / "node.key").read_bytes()
    assert init.main([*edge_words, "--party", "server", "--renew", "node-key"]) == 0
    assert (edge_client / "node.key").read_bytes() != key


def test_devices_of_an_edge_may_be_on_hosts_of_their_own(capsys):
    server = read(host_file(LAYERS, "edge-1", party=SERVER))
    assert CLIENT_APP in server["services"]
    assert "supernode-0" not in server["services"]
    assert server["services"]["gate"]["ports"] == ["8000:8000"]
    assert_promises(server)
    words = [*WORDS, "--host", "edge-0", "--trusted-edges", "1"]
    assert write_compose([*words, "--party", "node-2", "--superlink", "edge.example.org"]) == 0
    node = yaml.safe_load(at_defaults(capsys.readouterr().out))
    assert list(running(node)) == [
        *("supernode-2", "node-2-superexec", "node-2-guard"),
    ]
    assert told(node, "node-2-guard")["edge-trusted"] == "true"
    assert_promises(node)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--host", "edge-1"], "--host and --trusted-edges need --edges"),
        ([*WORDS, "--host", "edge-2"], "--host edge-2 is not known: use cloud, edge-0 or edge-1"),
        (
            [*WORDS, "--party", "server"],
            "--party server belongs to one edge: name the edge, as in --host edge-0",
        ),
        ([*WORDS, "--host", "cloud", "--party", "node-1"], "--party node-1 is not on the cloud's host"),
        (
            [*WORDS, "--host", "edge-0", "--party", "node-3"],
            "--party node-3 is not known: use node-0, ",
        ),
        ([*WORDS, "--unit", "client"], "--unit client: behind edges budgets are of records"),
        (
            [*WORDS, "--budgets", "1,3"],
            "--budgets [1.0, 3.0] has 2 numbers, and all nodes behind edges share one",
        ),
        ([*WORDS, "--max-participations", "2"], "which is not played behind edges: leave them out"),
        ([*WORDS, "--aversions", "0.2", "--first-budgets", "2"], "which is not played behind edges"),
        ([*WORDS, "--trusted-edges", "3"], "--trusted-edges 3 is not from 0 to 2"),
        ([*WORDS, "--into", "/nowhere"], "/nowhere/cloud.yml cannot be written: No such file"),
    ],
)
def test_words_that_name_no_site_are_refused_in_a_line(words, reason, capsys):
    assert write_compose(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert reason in err


def test_init_needs_the_site_beside_the_edges(tmp_path, capsys):
    assert init.main(["--edges", "2", "--directory", str(tmp_path)]) == 2
    assert "--edges and --host go together" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
