"""Tests of docker-compose.yml and of files made from it: keys, images, budgets, networks and options."""

import json
import re
import tomllib
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path

import pytest
import yaml

import deploy
from deploy import init, operate
from deploy.__main__ import main as write_compose
from deploy.compose import MOST_NODES, Containers, compose_file, host_file
from deploy.description import described, to_text
from deploy.edges import Layers
from deploy.federation import Federation, TopologyError
from deploy.options import federation_of
from deploy.services import services
from deploy.topology import NODE_KEY_FILE, TLS_KEY_FILE
from testing.project import PROJECT
from tests.deploy.compose_promises import COMMITTED, assert_fits_the_schema, assert_promises, at_defaults

WRITTEN = COMMITTED.read_text(encoding="utf-8")
TREE = json.loads(at_defaults(json.dumps(described())))
LAYERS = Layers.of(2, 6, trusted_edges=1)
(LOCKED,) = re.findall(
    r'^name = "flwr"\nversion = "(.+)"', (PROJECT / "uv.lock").read_text("utf-8"), re.MULTILINE
)
KINDS = [
    compose_file(Federation.of()),
    compose_file(Federation.of(12, (0.5, 8.0)), cuda=True),
    compose_file(replace(Federation.of(), unguarded=True)),
    compose_file(Federation.of(), party="server"),
    compose_file(Federation.of(), party="node-3", place=Containers("fl.example.org", 9443)),
    *(host_file(LAYERS, host) for host in LAYERS.hosts),
]


def test_every_file_that_can_be_written_is_in_order(tmp_path):
    files = [tmp_path / COMMITTED.name]
    files[0].write_text(at_defaults(WRITTEN), encoding="utf-8")
    for kind in KINDS:
        # Writing and reading YAML is slow, and JSON is YAML.
        text = at_defaults(json.dumps(kind))
        assert_promises(json.loads(text))
        files.append(tmp_path / f"{len(files)}.json")
        files[-1].write_text(text, encoding="utf-8")
    assert_fits_the_schema(*files)


def test_the_app_sees_no_private_key_but_its_identity():
    apps = [service for service in services(Federation.of()) if service.runs_app]
    assert len(apps) == 7
    assert all({NODE_KEY_FILE, TLS_KEY_FILE}.isdisjoint(service.credentials) for service in apps)


def test_jobs_say_what_their_programs_take_and_images_are_of_the_locked_version():
    parsers = {"deploy.init": init.parser(), "deploy.operate": operate.parser()}
    jobs = {name: each for name, each in TREE["services"].items() if each["restart"] == "no"}
    assert set(jobs) == {"init", "register", "train", "nodes", "flwr", "audit"}
    for service in jobs.values():
        python, m, module, *words = service["entrypoint"]
        assert (python, m) == ("python", "-m")
        if module == "gdpfed.cli":
            assert words == ["audit"]
        else:
            parsers[module].parse_args(words)
    assert all(f":{LOCKED}" in service["image"] for service in TREE["services"].values())


def test_images_are_pinned_by_hashes_and_can_be_named_by_their_digests():
    folder = Path(deploy.__file__).parent
    dockerfile = (folder / "Dockerfile").read_text("utf-8")
    assert dockerfile.count("--require-hashes") == 2
    assert f"SUPEREXEC_IMAGE=flwr/superexec:{LOCKED}\n" in dockerfile
    uv = (folder / "uv.txt").read_text("utf-8")
    assert re.search(r"^uv==[0-9.]+ \\\n    --hash=sha256:", uv, re.MULTILINE)
    text = {"supernode": text_of_words("--unsigned-apps")}
    for program in ("supernode", "superexec"):
        named = f"${{{program.upper()}_IMAGE:-flwr/{program}:{LOCKED}}}"
        assert named in text.get(program, WRITTEN)
    arguments = TREE["services"]["init"]["build"]["args"]
    assert (arguments["VERSION"], arguments["REVISION"]) == (version("gdpfed"), "unknown")


def test_in_production_images_have_digests_or_the_file_is_refused(monkeypatch, capsys):
    words, digest = ["--party", "server", "--production"], f"@sha256:{'0' * 64}"
    monkeypatch.setenv("SUPEREXEC_IMAGE", "flwr/superexec:1.41.0")
    assert write_compose(words) == 2
    assert "SUPEREXEC_IMAGE=flwr/superexec:1.41.0 names no digest: set it to" in capsys.readouterr().err
    for program in ("supernode", "superexec"):
        monkeypatch.setenv(f"{program.upper()}_IMAGE", f"flwr/{program}{digest}")
    nodes = yaml.safe_load(text_of_words(*words[2:], "--unsigned-apps"))["services"]
    assert nodes["supernode-0"]["image"] == f"flwr/supernode{digest}"
    services = yaml.safe_load(text_of_words(*words))["services"]
    assert services["gate"]["build"]["args"]["SUPEREXEC_IMAGE"] == f"flwr/superexec{digest}"


def test_every_package_of_the_lock_has_a_hash():
    """Every package of uv.lock that comes from a registry has a SHA-256 hash for each of its files."""
    lock = tomllib.loads(Path("uv.lock").read_text("utf-8"))
    fetched = [each for each in lock["package"] if "registry" in each["source"]]
    files = [file for each in fetched for file in each.get("wheels", [each.get("sdist")])]
    assert len(fetched) > 100
    assert all(file["hash"].startswith("sha256:") for file in files)


def test_a_nodes_own_file_has_its_budget_and_data_or_compose_refuses():
    """A node's own Compose file has no default for budget and data: Compose refuses to run without them."""
    alone = Containers("fl.example.org", alone="node-3")
    said = " ".join(to_text(compose_file(Federation.of(), party="node-3", place=alone), "").split())
    assert said.count("${NODE_3_EPSILON:?set NODE_3_EPSILON or make this file with --epsilon}") == 2
    assert "source: ${NODE_3_DATA:?set NODE_3_DATA or make this file with --data}" in said
    assert "${NODE_3_EPSILON:-" not in said
    written = text_of_words("--party", "node-3", "--epsilon", "2.5", "--data", "/srv/study")
    assert "epsilon=2.5 max-epsilon-against-server=${NODE_3_MAX_EPSILON_AGAINST_SERVER:-2.5} " in written
    assert "NODE_3_EPSILON" not in written
    volumes = yaml.safe_load(at_defaults(written))["services"]["node-3-guard"]["volumes"]
    (data,) = (each for each in volumes if each["target"] == "/data")
    assert (data["source"], data["bind"]["create_host_path"]) == ("/srv/study", False)
    for text in (to_text(compose_file(Federation.of(), party="node-3", place=alone), ""), written):
        assert_promises(yaml.safe_load(at_defaults(text)))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--epsilon", "2"], "--epsilon belongs to one node: name the node, as in --party node-3"),
        (["--party", "server", "--data", "/srv"], "--data belongs to one node"),
        (["--party", "node-3", "--data", "study"], "'study' is not an absolute path, as in /srv/study"),
        (["--party", "node-3", "--epsilon", "inf"], "'inf' is not a budget: give a number above 0"),
    ],
)
def test_what_is_no_nodes_own_is_one_line(capsys, words, reason):
    if "belongs to one node" in reason:
        assert write_compose(words) == 2
    else:
        with pytest.raises(SystemExit, match="2"):
            write_compose(words)
    assert reason in capsys.readouterr().err


def text_of_words(*words):
    with redirect_stdout(StringIO()) as said:
        assert write_compose(words) == 0
    return said.getvalue()


def test_memory_follows_from_the_model_and_a_program_that_ended_says_its_status():
    def memory(tree, name):
        return int(tree["services"][name]["deploy"]["resources"]["limits"]["memory"].removesuffix("M"))

    small, large = (compose_file(replace(Federation.of(), parameters=d)) for d in (650, 100_000_000))
    names = ("superlink", "supernode-0", "node-0-superexec", "node-0-guard")
    assert [memory(small, name) for name in names] == [768, 512, 1024, 2304]
    # 400 MB a model; the SuperLink holds some for every node.
    assert memory(large, "superlink") >= 512 + 3 * 6 * 400
    assert memory(large, "supernode-0") >= 400 + 4 * 400
    twelve = compose_file(replace(Federation.of(12), parameters=100_000_000))
    assert memory(twelve, "superlink") > memory(large, "superlink")
    assert "ended with status $? " in TREE["services"]["supernode-0"]["entrypoint"][2].replace("$$", "$")
    assert write_compose(["--parameters", "0"]) == 2


def test_a_new_node_changes_neither_budget_nor_network_of_those_that_are_there():
    small, large = (compose_file(Federation.of(count)) for count in (6, 9))
    for name in small["services"]:
        if name.startswith(("supernode", "node")):
            assert small["services"][name] == large["services"][name]
    assert small["networks"] == {name: large["networks"][name] for name in small["networks"]}
    ranges = re.findall(r"subnet: (\S+)", at_defaults(to_text(large, "")))
    networks = [ip_network(each) for each in ranges]
    assert len(networks) == 3 + 2 * 9
    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))


def test_a_nodes_app_starts_beside_a_supernode_that_is_refused():
    """A node's app waits until its SuperNode has started, not until the SuperNode is healthy."""
    for party, apps in (("node-3", 1), (None, 6)):
        tree = compose_file(Federation.of(), party=party)
        waits = [each["depends_on"] for name, each in tree["services"].items() if name.endswith("superexec")]
        waits = [each for each in waits if "superlink" not in each]
        assert len(waits) == apps
        on_supernodes = [each[name] for each in waits for name in each if name.startswith("supernode")]
        assert on_supernodes == [{"condition": "service_started"}] * apps


def test_what_a_node_sends_costs_no_more_than_its_budget_whatever_the_server_says_of_its_draws():
    config = compose_file(Federation.of())["services"]["node-1-guard"]["command"][-1]
    own = "${NODE_1_EPSILON:-3.0}"
    assert f" epsilon={own} " in config
    assert f"max-epsilon-against-server=${{NODE_1_MAX_EPSILON_AGAINST_SERVER:-{own}}} " in config
    assert " epsilon=3.0 max-epsilon-against-server=3.0 " in at_defaults(config)


def test_nodes_have_budgets_for_their_records_and_tables():
    tree = compose_file(Federation.of(6, (1.0, 3.0, 6.0), unit="record", examples="examples.csv"))
    config = tree["services"]["node-4-guard"]["command"][-1]
    assert "epsilon-record=${NODE_4_EPSILON:-3.0} " in config
    assert "max-epsilon-against-server" not in config
    assert " epsilon=" not in config
    assert 'data="/data/examples.csv"' in config
    assert_promises(json.loads(at_defaults(json.dumps(tree))))
    train = tree["services"]["train"]["entrypoint"]
    assert {"privacy=record_level", "method=dp_sum", "privacy.num_groups=3"} <= set(train)
    # init makes the same federation of the same words.
    job = tree["services"]["init"]["entrypoint"]
    words = job[job.index("deploy.init") + 1 : job.index("--superlink-host")]
    made = init.parser().parse_args(words)
    assert federation_of(made) == Federation.of(6, (1.0, 3.0, 6.0), unit="record", examples="examples.csv")


@pytest.mark.parametrize("name", ["examples", "../examples.csv", "examples.txt", "a b.csv", "a.npz.gz", ""])
def test_a_name_that_is_none_of_a_file_of_examples_is_refused(name, capsys):
    with pytest.raises(SystemExit):
        write_compose(["--examples", name])
    assert "is not a name of a file of examples, as in examples.csv" in capsys.readouterr().err


def test_a_host_has_networks_for_thousands_of_nodes():
    assert MOST_NODES == 4094
    place = compose_file(Federation.of(3))["networks"]["server"]["ipam"]["config"][0]["subnet"]
    assert ip_network(at_defaults(place)).num_addresses == 16
    with pytest.raises(TopologyError, match="4096 nodes are more than the 4094 of one host"):
        compose_file(Federation.of(4096, (1.0,)))


@pytest.mark.parametrize(
    ("nodes", "budgets", "words"),
    [
        (7, (1.0, 3.0), "7 nodes do not divide among 2 budgets: take 8"),
        (2, (1.0,), "2 nodes are fewer than the 3 of the smallest sum"),
        (6, (1.0, -3.0), "must be positive numbers"),
        (6, (), "must be positive numbers"),
        (6, (3.0, 1.0), "must be strictly increasing"),
    ],
)
def test_a_federation_that_cannot_be_is_refused(nodes, budgets, words):
    with pytest.raises(TopologyError, match=words):
        Federation.of(nodes, budgets)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--superlink", "http://fl.example.org:1"], "is not a host: give a name or an address alone"),
        (["--superlink", "fl.example.org:1"], "is not a host"),
        (["--superlink", "fl.example.org/x"], "is not a host"),
        (["--port", "70000"], "is not a port: give a number from 1 to 65535"),
    ],
)
def test_a_superlink_that_is_no_host_is_refused(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        write_compose(words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "superlink", ["http://fl.example.org:8000", "fl.example.org", "fl.example.org:0", ":8000"]
)
def test_a_job_takes_a_host_and_a_port(superlink, capsys):
    with pytest.raises(SystemExit, match="2"):
        operate.main(["nodes", "--ca", "ca.crt", "--superlink", superlink])
    assert re.search("is not a (host|port)|has no port", capsys.readouterr().err)


def test_a_bad_option_is_one_line(capsys):
    assert write_compose(["--party", "node-6"]) == 2
    assert capsys.readouterr().err == (
        "deploy: --party node-6 is not known: use node-0, node-1, node-2, node-3, node-4, node-5 or server "
        "[topology]\n"
    )
