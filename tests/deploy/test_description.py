"""Tests of reading docker-compose.yml, the hand-written description of a federation."""

import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.compose import Containers, compose_file
from deploy.description import FILE, bind, described, said, volume, words
from deploy.federation import Federation, TopologyError
from deploy.services import services
from deploy.settings import settings_of
from deploy.topology import HEALTH_PORT, SUPERLINK_PORT, SUPERNODE_PORT
from deploy.warm import WARM_VARIABLE
from gdpfed.child_process import LOG_VARIABLE
from gdpfed.cli.metrics_command import RUN_PORT
from gdpfed.cli.node_command import NODE_PORT
from gdpfed.runs.paths import FOLDERS
from tests.deploy.compose_promises import program


def normal(tree):
    """Return a Compose file's contents without ``x-memory``, which Compose does not read."""
    for service in tree["services"].values():
        service.pop("x-memory", None)
    return tree


def test_it_is_short_enough_to_be_read_and_changed_by_hand():
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 400


def test_what_is_made_for_its_own_federation_is_the_file_itself():
    """The Compose file that is made for the default federation equals docker-compose.yml."""
    assert compose_file(Federation.of()) == normal(described())


def test_what_is_made_for_others_changes_nothing_that_is_read_later():
    before = described()
    compose_file(Federation.of(12, (0.5, 8.0)), cuda=True)
    compose_file(Federation.of(), party="node-3", place=Containers("fl.example.org", alone="node-3"))
    assert described() == before


def test_numbers_and_names_that_programs_have_too_are_theirs():
    tree = described()["services"]
    (locked,) = re.findall(
        r'^name = "flwr"\nversion = "(.+)"', Path("uv.lock").read_text("utf-8"), re.MULTILINE
    )
    for service in tree.values():
        assert service["build"]["args"]["VERSION"] == version("gdpfed")
        assert service["image"] == f"gdpfed-app:{locked}-cpu"
        assert {FOLDERS, LOG_VARIABLE, WARM_VARIABLE} < service["environment"].keys()
    for name, port in (("metrics", RUN_PORT), ("ledger-metrics", NODE_PORT)):
        assert f"0.0.0.0:{port}" in program(tree[name])
        assert tree[name]["ports"] == [f"127.0.0.1:{port}:{port}"]
    ports = {"superlink": SUPERLINK_PORT, "gate": SUPERLINK_PORT, "supernode-5": SUPERNODE_PORT}
    for name, port in ports.items():
        command = program(tree[name])
        assert command[command.index("--port") + 1] == str(port)
    assert f"127.0.0.1:{HEALTH_PORT}" in program(tree["node-0-superexec"])


def test_lines_become_words_and_short_volumes_long_ones():
    assert words("-m client --config 'a=\"/b c\" d=1'") == ["-m", "client", "--config", 'a="/b c" d=1']
    source = "${NODE_0_DATA:-${FEDERATION_DIR:-./federation}/node-0-superexec/data}"
    assert volume(f"{source}:/data:ro") == bind(source, "/data")
    assert volume("./x:/node-0") == bind("./x", "/node-0", writable=True)
    with pytest.raises(
        TopologyError, match="^data in docker-compose.yml is not a volume: write SOURCE:/TARGET"
    ):
        volume("data")


def test_a_file_that_is_not_there_or_says_a_key_twice_is_refused_in_a_line(tmp_path):
    file = tmp_path / "docker-compose.yml"
    with pytest.raises(TopologyError, match="cannot be read: No such file or directory; restore it from"):
        described(file)
    file.write_text("services:\n  init: {}\n  init: {}\n")
    with pytest.raises(TopologyError, match="the key 'init' is there twice, in lines 2 and 3"):
        described(file)


def test_what_no_option_is_about_is_each_nodes_as_it_stands_in_the_file():
    """A node's setting that no option changes keeps the value that it has in docker-compose.yml."""
    federation = replace(Federation.of(), unguarded=True)
    text = 'partition-id=3 epsilon=3 minimum-own-noise=3 minimum-cohort=5 secagg-mode="active"'
    own = settings_of(text, federation, federation.nodes[3], "2.5")
    assert own == text.replace("epsilon=3", "epsilon=2.5")


def test_variables_are_replaced_as_compose_does():
    text = "${A:-${B:-c}} $$0 ${D}"
    assert said(text, {}) == "c $0 "
    assert said(text, {"A": "1", "D": "2"}) == "1 $0 2"
    with pytest.raises(TopologyError, match="^name it$"):
        said("${E:?name it}", {"E": ""})


def test_a_program_is_told_the_ports_hosts_and_paths_of_its_place():
    """A service's command contains the ports, hosts and paths that its placement gives."""

    ports = {"superlink": 9094, "gate": 8001, "supernode-1": 9095, "node-1-superexec": 8000}

    class Place:
        def __init__(self):
            self.variables = {"NODE_1_EPSILON": "2.5"}

        def host(self, service):
            return f"{service}.example.org"

        def listens_on(self, service):
            return f"{service}.here"

        def port(self, service):
            return ports.get(service, 1)

        def credential(self, service, file):
            return f"/own/{service}/{file}"

        def folder(self, service, name):
            return f"/guard/{service}/{name}"

    own = {each.name: each for each in services(Federation.of(3, (8.0,)), Place())}
    gate, app = own["gate"].command, own["node-1-superexec"]
    assert gate[2:10] == (
        *("deploy.gate", "--superlink", "superlink.example.org:9094"),
        *("--host", "gate.here", "--port", "8001", "--ca"),
    )
    assert own["gate"].probe[-2:] == ("https://localhost:8001/health", "/own/gate/ca.crt")
    assert app.command[-2:] == ("--runtime-api-address", "supernode-1.example.org:9095")
    assert app.probe[-1] == "127.0.0.1:8000"
    assert own["supernode-1"].command[-1] == 'guard="/guard/node-1-guard/guard/guard.sock"'
    told = own["node-1-guard"].command[-1]
    assert "epsilon=2.5 max-epsilon-against-server=2.5 " in told
    assert 'ledger="/guard/node-1-superexec/ledger/ledger.json" ' in told
    assert 'identity-file="/own/node-1-guard/identity.key" ' in told
