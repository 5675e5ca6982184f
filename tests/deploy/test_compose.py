"""The committed Compose file is what the topology says, and every promise about it is checked."""

import copy

import pytest
import yaml

from deploy import check
from deploy.__main__ import default_text
from deploy.__main__ import main as write_compose
from deploy.topology import Federation, TopologyError

TREE = yaml.safe_load(check.DEFAULT_FILE.read_text(encoding="utf-8"))


def test_the_committed_file_is_up_to_date():
    assert check.DEFAULT_FILE.read_text(encoding="utf-8") == default_text()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--nodes", "12", "--budgets", "0.5,8"],
        ["--party", "server"],
        ["--party", "node-3", "--superlink", "fl.example.org", "--port", "9443"],
        ["--cuda"],
    ],
    ids=" ".join,
)
def test_every_file_that_can_be_written_is_in_order(words, tmp_path, capsys):
    assert write_compose(words) == 0
    (tmp_path / "compose.yml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert check.problems_of(tmp_path / "compose.yml") == []


def test_a_node_of_another_host_has_nothing_of_the_server(capsys):
    write_compose(["--party", "node-3", "--superlink", "fl.example.org"])
    tree = yaml.safe_load(capsys.readouterr().out)
    assert set(tree["services"]) == {"init", "supernode-3", "node-3-superexec"}
    assert "fl.example.org:8000" in tree["services"]["supernode-3"]["command"]


def test_only_the_server_publishes_a_port(capsys):
    assert not any("ports" in service for service in TREE["services"].values())
    write_compose(["--party", "server"])
    tree = yaml.safe_load(capsys.readouterr().out)
    assert [name for name, service in tree["services"].items() if "ports" in service] == ["superlink"]


def changed(service, key, value):
    """The committed tree with one value of a service changed, or removed by None."""
    tree = copy.deepcopy(TREE)
    if value is None:
        del tree["services"][service][key]
    else:
        tree["services"][service][key] = value
    return tree


def with_word(service, old, *new):
    command = TREE["services"][service]["command"]
    at = command.index(old)
    return changed(service, "command", [*command[:at], *new, *command[at + 1 :]])


def with_node_config(text):
    command = TREE["services"]["supernode-1"]["command"]
    return changed("supernode-1", "command", [*command[:-1], f"partition-id=1 {text}"])


def volume(source, target="/extra"):
    return {"type": "bind", "source": source, "target": target, "read_only": True}


def with_volume(service, name):
    source = f"./federation/{name}"
    return changed(service, "volumes", [*TREE["services"][service]["volumes"], volume(source)])


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (changed("superlink", "mem_limitt", "1g"), "services.superlink"),
        (changed("superlink", "image", "flwr/superlink:1.30.0"), "image flwr/superlink:1.30.0 is not"),
        (
            with_word("supernode-0", "--host", "--clientappio-api-address"),
            "no longer supported",
        ),
        (with_word("supernode-0", "--isolation", "--isolation", "none", "--isolation"), "invalid choice"),
        (with_word("superlink", "--database", "--fleet-api-address"), "--fleet-api-address is deprecated"),
        (with_word("node-1-superexec", "--runtime-api-address", "--appio"), "--appio is no option"),
        (changed("supernode-0", "user", "0:0"), "supernode-0: runs as root"),
        (changed("supernode-0", "user", None), "supernode-0: runs as root"),
        (changed("init", "network_mode", "host"), "init: is root and has a network"),
        (changed("superlink", "cap_drop", []), "superlink: keeps capabilities"),
        (changed("superlink", "cap_add", ["NET_ADMIN"]), "superlink: adds capabilities NET_ADMIN"),
        (changed("superlink", "privileged", True), "superlink: is privileged"),
        (changed("superlink", "read_only", False), "superlink: can write to its image"),
        (changed("superlink", "security_opt", None), "superlink: can gain privileges"),
        (changed("superlink", "deploy", None), "superlink: has no limit of cpus, memory, pids"),
        (changed("supernode-5", "healthcheck", None), "supernode-5: has no health check"),
        (changed("node-0-superexec", "networks", ["federation"]), "which leads outside"),
        (changed("node-0-superexec", "ports", ["9095:9095"]), "publishes a port"),
        (with_word("superlink", "/federation/tls.key", "/federation/other.key"), "is not made by init"),
        (
            with_volume("supernode-0", "supernode-1/credentials"),
            "is held by node-0, node-1",
        ),
        (with_volume("supernode-0", "authority"), "sees the authority's key"),
        (
            with_volume("node-0-superexec", "supernode-0/credentials"),
            "runs the app and sees tls.key",
        ),
        (with_volume("node-1-superexec", "node-0-superexec/data"), "is seen by"),
        (with_volume("node-1-superexec", "node-0-superexec/ledger"), "is seen by"),
        (
            with_node_config('epsilon=1.0 ledger="/tmp/l.json" data="/data/x.npz"'),
            "ledger=/tmp/l.json lies on no",
        ),
        (
            with_node_config('epsilon=1.0 ledger="/data/l.json" data="/data/x.npz"'),
            "a volume that is read-only",
        ),
        (
            with_node_config('epsilon=1.0 ledger="/ledger/l.json" data="/ledger/x"'),
            "a volume that is writable",
        ),
        (with_node_config('ledger="/ledger/l" data="/data/x"'), "epsilon is None"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_a_broken_promise_is_found(tree, words):
    assert words in "\n".join(check.tree_problems(tree))


@pytest.mark.parametrize(
    ("nodes", "budgets", "words"),
    [
        (7, (1.0, 3.0), "7 nodes do not divide among 2 budgets: take 8"),
        (2, (1.0,), "2 nodes are fewer than the 3 of the smallest sum"),
        (6, (1.0, -3.0), "must be positive numbers"),
        (6, (), "must be positive numbers"),
    ],
)
def test_a_federation_that_cannot_be_is_refused(nodes, budgets, words):
    with pytest.raises(TopologyError, match=words):
        Federation.of(nodes, budgets)


def test_a_bad_option_is_one_line(capsys):
    assert write_compose(["--party", "node-6"]) == 2
    assert capsys.readouterr().err == (
        "deploy: --party node-6 is none of node-0, node-1, node-2, node-3, node-4, node-5, server\n"
    )
