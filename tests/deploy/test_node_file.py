"""Tests of node.yml, the hand-written file for one node's host: it equals a part of docker-compose.yml."""

import json
import shutil
import subprocess

import pytest
import yaml

from deploy.compose import Containers, compose_file
from deploy.description import FILE, described, said, to_text, volume, words
from deploy.federation import Federation
from testing.project import PROJECT

NODE_FILE = PROJECT / "node.yml"
OWN = {
    **{"NODE": "3", "NODES": "6", "SUPERLINK": "fl.example.org:9443", "EPSILON": "2.5"},
    "DATA": "/srv/study",
}
NAMES = {"supernode": "supernode-3", "superexec": "node-3-superexec", "guard": "node-3-guard"}
PLACE = Containers("fl.example.org", 9443, alone="node-3", epsilon=2.5, data="/srv/study")
PARTY = compose_file(Federation.of(), party="node-3", place=PLACE)


class Overriding(yaml.SafeLoader):
    """A YAML loader for values with the tag ``!override``, which replace extended values in Compose."""


def _overriding(loader, node):
    made = {yaml.MappingNode: loader.construct_mapping, yaml.SequenceNode: loader.construct_sequence}
    return {"override": made[type(node)](node, deep=True)}


Overriding.add_constructor("!override", _overriding)


def expanded():
    """Return the services of node.yml, each merged with the service that it extends, as Compose does."""
    base, made = described()["services"], {}
    text = said(NODE_FILE.read_text(encoding="utf-8"), OWN)
    written = yaml.load(text, Loader=Overriding)  # noqa: S506 - a safe one
    for name, service in written["services"].items():
        extended = service.pop("extends")
        assert extended["file"] == FILE.name
        for key, value in service.items():
            # A command is replaced, and all else is put together with what is extended, or has to say so.
            assert key in ("entrypoint", "command") or value.keys() == {"override"}, (name, key)
        own = {key: value["override"] for key, value in service.items() if isinstance(value, dict)}
        own |= {key: words(service[key]) for key in ("entrypoint", "command") if key in service}
        if "volumes" in own:
            own["volumes"] = [volume(each) if isinstance(each, str) else each for each in own["volumes"]]
        made[name] = base[extended["service"]] | own
        made[name].pop("x-memory", None)
    return json.loads(said(json.dumps(made), OWN))


def normal(service):
    """Return a service for comparison: its command's words sorted, its names as in docker-compose.yml."""
    own = dict(service)
    whole = [*own["entrypoint"], *(own.get("command") or [])]
    own["entrypoint"], own["command"] = whole[:3], sorted(whole[3:])
    own["networks"] = sorted("node-3" if each == "node" else each for each in own.get("networks") or ())
    own["depends_on"] = {NAMES.get(name, name): each for name, each in (own.get("depends_on") or {}).items()}
    return own


@pytest.mark.parametrize("name", [name for name in PARTY["services"] if name != "init"])
def test_each_service_is_that_of_the_party(name):
    theirs = {NAMES.get(each, each): service for each, service in expanded().items()}
    ours = json.loads(said(json.dumps(PARTY), OWN))["services"]
    assert theirs.keys() == ours.keys()
    assert normal(theirs[name]) == normal(ours[name])


def test_its_credentials_have_the_name_by_which_its_app_calls_the_supernode():
    own = expanded()
    assert own["supernode"]["networks"] == {"node": {"aliases": ["supernode-3"]}, "federation": {}}
    assert own["superexec"]["command"] == ["--runtime-api-address", "supernode-3:9094"]
    made = own["init"]["entrypoint"]
    assert made[-4:] == ["--owner", "49999", "--party", "node-3"]


def test_it_is_short_and_every_variable_of_the_node_has_to_be_said():
    text = NODE_FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert all(f"${{{name}:?set {name}, " in text for name in OWN)


def test_compose_reads_both_files_as_they_are_read_here(tmp_path):
    compose = [str(shutil.which("docker")), "compose"]
    if compose[0] == "None" or subprocess.run([*compose, "version"], check=False).returncode != 0:
        pytest.skip("no Docker Compose on this machine")

    def config(*options):
        words = [*compose, "--project-directory", str(PROJECT), *options, "--profile", "*", "config"]
        done = subprocess.run([*words, "--format", "json"], capture_output=True, check=True)
        return json.loads(done.stdout)["services"]

    made, own, party = tmp_path / "made.yml", tmp_path / ".env", tmp_path / "party.yml"
    made.write_text(to_text(compose_file(Federation.of()), "all"))
    party.write_text(to_text(PARTY, "one"))
    own.write_text("".join(f"{name}={value}\n" for name, value in OWN.items()))
    pairs = [(config("--file", str(FILE)), config("--file", str(made)))]
    node = config("--file", str(NODE_FILE), "--env-file", str(own))
    pairs.append(({NAMES.get(name, name): each for name, each in node.items()}, config("--file", str(party))))
    for written, generated in pairs:
        assert written.keys() == generated.keys()
        for name in written.keys() - {"init"}:
            written[name].pop("x-memory", None)
            assert normal(written[name]) == normal(generated[name]), name
