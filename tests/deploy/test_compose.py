"""The committed Compose file is what the topology says, and a promise that an edit breaks is found."""

import copy
import json
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from deploy import check, control, init
from deploy.__main__ import default_text
from deploy.__main__ import main as write_compose
from deploy.placements import CREDENTIALS, Containers
from deploy.topology import NODE_KEY_FILE, TLS_KEY_FILE, Federation, TopologyError, services

TREE = yaml.safe_load(check.at_defaults(check.DEFAULT_FILE.read_text(encoding="utf-8")))
KINDS = [
    [],
    ["--nodes", "12", "--budgets", "0.5,8"],
    ["--party", "server"],
    ["--party", "node-3", "--superlink", "fl.example.org", "--port", "9443"],
    ["--cuda"],
]


def test_the_committed_file_is_up_to_date():
    assert check.DEFAULT_FILE.read_text(encoding="utf-8") == default_text()


def test_every_file_that_can_be_written_is_in_order(tmp_path, capsys):
    files: list[Path] = []
    for words in KINDS:
        assert write_compose(words) == 0
        tree = yaml.safe_load(check.at_defaults(capsys.readouterr().out))
        assert list(check.broken_promises(tree)) == []
        # YAML's reader in check-jsonschema is slow.
        files.append(tmp_path / f"{len(files)}.json")
        files[-1].write_text(json.dumps(tree), encoding="utf-8")
    assert check.schema_problems(*files) == []


def test_a_file_that_is_no_compose_file_is_one_line(tmp_path, capsys):
    file = tmp_path / "compose.yml"
    assert check.main([str(file)]) == 1
    assert "No such file" in capsys.readouterr().err
    file.write_text("services: {superlink: {image: flwr/superlink, mem_limitt: 1g}}", encoding="utf-8")
    assert check.main([str(file)]) == 1
    assert "('mem_limitt' was unexpected)" in capsys.readouterr().err


@pytest.mark.parametrize("service", services(Federation.of(), Containers()), ids=lambda service: service.name)
def test_a_service_reads_the_credentials_that_it_has_and_the_app_sees_no_private_key(service):
    named = {word.rpartition("/")[2] for word in service.command if word.startswith(CREDENTIALS)}
    assert named <= set(service.credentials)
    assert not service.runs_app or {NODE_KEY_FILE, TLS_KEY_FILE}.isdisjoint(service.credentials)


def test_jobs_say_what_their_programs_take_and_images_are_of_the_locked_version():
    parsers = {"deploy.init": init.parser(), "deploy.control": control.parser()}
    for name, service in TREE["services"].items():
        if name in ("init", "register", "train"):
            python, m, module, *words = service["entrypoint"]
            assert (python, m) == ("python", "-m")
            parsers[module].parse_args(words)
        assert f":{version('flwr')}" in service["image"]


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


def with_node_config(text):
    command = TREE["services"]["supernode-1"]["command"]
    return changed("supernode-1", "command", [*command[:-1], f"partition-id=1 {text}"])


def with_volume(service, volume):
    return changed(service, "volumes", [*TREE["services"][service]["volumes"], volume])


def of(folder):
    return {"type": "bind", "source": f"./federation/{folder}", "target": "/extra", "read_only": True}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (changed("superlink", "image", "flwr/superlink:1.30.0"), "image flwr/superlink:1.30.0 is not"),
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
        (changed("node-0-superexec", "networks", None), "network default, which leads outside"),
        (changed("node-0-superexec", "ports", ["9095:9095"]), "publishes a port"),
        (with_volume("supernode-0", of("supernode-1/credentials")), "is seen by"),
        (with_volume("supernode-0", of("authority")), "is seen by supernode-0 and by the authority"),
        (with_volume("supernode-0", "./federation:/all:ro"), "is seen by supernode-0 and by the authority"),
        (with_volume("node-0-superexec", of("supernode-0/credentials")), "is seen by"),
        (with_volume("node-1-superexec", of("node-0-superexec/data")), "is seen by"),
        (with_volume("node-1-superexec", "./federation/node-0-superexec/ledger:/x"), "is seen by"),
        (with_volume("superlink", "./elsewhere:/federation"), "superlink: can change its credentials"),
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
        (with_node_config('ledger="/ledger/l" data="/data/x"'), "has no epsilon"),
        (
            with_node_config('epsilon=1.0 ledger="/ledger/l.json" data="/data/x" identity-file="/x/i.key"'),
            "identity-file=/x/i.key lies on no volume",
        ),
        (with_node_config('epsilon=1.0 roster-file="first-seen"'), "believes the server's word"),
        (with_volume("node-0-superexec", of("consortium")), "and by the consortium"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_a_broken_promise_is_found(tree, words):
    assert words in "\n".join(check.broken_promises(tree))


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
