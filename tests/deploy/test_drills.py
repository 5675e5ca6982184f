"""Tests of the drills, which carry out commands of docs/operations.md on processes, not on containers.

What they find is for ``python -m tests.deploy.drills``, in many minutes.
"""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from deploy.federation import Federation
from deploy.loopback import LoopbackFederation
from deploy.placements import Loopback
from deploy.services import services
from deploy.topology import LEDGER, LEDGER_FILE
from gdpfed.errors import LaunchError
from gdpfed.runs.file_formats import FORMAT_VERSION
from tests.deploy.drills import changed, kept, without_containers
from tests.deploy.drills.page import blocks, commands_of
from tests.deploy.drills.processes import FILE, INTRODUCTION, VARIABLES, described, running_from, shell

SECTIONS = {
    INTRODUCTION: 1,
    kept.BACKUP: 2,
    kept.PUT_BACK: 2,
    kept.LOST: 2,
    changed.NAMES: 3,
    changed.UPGRADE: 3,
    without_containers.SECTION: 4,
}


class Noted(changed.Versions):
    """A host that records actions on its processes instead of performing them."""

    def __init__(self, folder: Path) -> None:
        federation = Federation.of(3, (8.0,))
        place = Loopback.on_free_ports(folder / "root", federation)
        running = SimpleNamespace(
            home=SimpleNamespace(path=folder / "root"),
            place=place,
            federation=federation,
            services={each.name: each for each in services(federation, place)},
            runs=Path("/the/runs"),
            ledger_of=lambda node: Path(place.folder(node.superexec, LEDGER)) / LEDGER_FILE,
        )
        self.done: list[tuple[str, ...]] = []
        running.home.path.mkdir()
        super().__init__(cast("LoopbackFederation", running), folder)

    def carry_out(self, command):
        if command.split()[0] in ("docker", "git"):
            return super().carry_out(command)
        subprocess.run(["/bin/bash", "-n", "-c", command], check=True)
        self.done.append(("shell", command.split()[0]))
        return ""

    def stop(self, *names):
        self.done.append(("stop", *names))

    def describe(self):
        if (self.folder / FILE).exists():
            super().describe()

    def up(self, *names):
        self.done.append(("up", *names))

    def change(self, party):
        self.done.append(("change", party, self.of_party[party][0].name))
        return ""

    def python(self, module, *words):
        self.done.append((module, *words))
        return ""

    def operate(self, command, *words):
        self.done.append((command, *words))
        return ""

    def submit(self, name, overrides):
        self.done.append(("train", name, *overrides))

    def finish(self, run):
        return ""


@pytest.fixture
def host(tmp_path):
    return Noted(tmp_path)


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_has_the_blocks_that_its_drill_takes(title):
    assert len(blocks(title)) == SECTIONS[title]


def test_a_section_that_is_gone_is_named():
    with pytest.raises(LookupError, match="no commands below 'Moving house'"):
        blocks("Moving house")


def test_the_server_is_stopped_copied_and_restored(host):
    keep, restore = blocks(kept.BACKUP)
    server = ("server-superexec", "gate", "superlink")
    host.follow(keep)
    assert host.done == [("stop", *server), ("shell", "install"), ("shell", "tar"), ("up",)]
    assert set(server) == set(kept.OF_SERVER)
    host.done.clear()
    host.follow(restore, run="night")
    assert host.done == [("stop", *server), ("shell", "tar"), ("up",), ("train", "night")]


def test_paths_of_a_container_become_those_of_its_process(host, tmp_path):
    accept, _ = blocks(kept.PUT_BACK)
    host.follow(accept)
    (words,) = host.done
    root = tmp_path / "root"
    ledger, state = root / "node-1-superexec/ledger/ledger.json", root / "node-1-guard/state"
    assert words == ("gdpfed.cli", "node", "accept-ledger", str(ledger), "--copy", str(state))
    spent, _ = blocks(kept.LOST)
    host.done.clear()
    host.follow(spent, run="night")
    assert host.done == [("gdpfed.cli", "audit", "/the/runs/night")]
    assert host.paths_of("audit", ["/node-2/ledger.json"]) == [
        str(root / "node-2-superexec/ledger/ledger.json")
    ]


def test_nodes_are_added_and_removed_by_their_names(host):
    for block in blocks(changed.NAMES):
        host.follow(block)
    assert ("nodes", "--unregister", "node-3") in host.done
    assert host.done[-2][0] == "deploy.init"
    assert host.done[-2][-4:] == ("--party", "node-3", "--renew", "node-key")
    assert [each for each in host.done if each[0] == "up"] == [("up",)] * 3


def test_each_party_gets_the_next_version_when_it_is_told_to(host, monkeypatch):
    monkeypatch.setattr(changed, "next_version", lambda checkout, *rest: checkout)
    server, node, resume = blocks(changed.UPGRADE)
    for words in (server, node, resume):
        host.follow(words, run="night")
    assert host.done == [
        *(("shell", "python"), ("change", "server", changed.NEXT)),
        *(("shell", "python"), ("change", "node-1", changed.NEXT)),
        ("train", "night"),
    ]


def test_a_copy_says_that_it_is_the_next_version(tmp_path):
    checkout = changed.next_version(tmp_path / "next", "0.999.2", changed.FORMAT)
    asked = (
        "from gdpfed.installed import project_version as version; "
        "from gdpfed.runs.file_formats import FORMAT_VERSION; print(version(), FORMAT_VERSION)"
    )
    with running_from(checkout):
        assert shell(f"python -c '{asked}'", tmp_path).split() == ["0.999.2", str(FORMAT_VERSION + 1)]
    with pytest.raises(ValueError, match="has no 'gone': mend the drill"):
        changed.next_version(tmp_path / "other", "1", ("README.md", "'gone'", ""))


def test_what_the_file_and_the_variables_say_anew_is_ended(host, tmp_path):
    made, *_ = commands_of(blocks(INTRODUCTION)[0])
    shell(made, tmp_path)
    assert described(tmp_path / FILE) == host.running.federation
    before = dict(host.running.place.ports)
    host.describe()
    assert host.done == []
    (tmp_path / VARIABLES).write_text("NODE_1_EPSILON=7.5\nNODE_1_LOST_ROUNDS=2\n")
    host.describe()
    assert host.done == [("stop", "node-1-guard")]
    words = host.running.services["node-1-guard"].command[-1]
    assert " epsilon=7.5 max-epsilon-against-server=7.5 " in words
    assert " lost-rounds=2 " in words
    add, *_ = blocks(changed.NAMES)
    shell(commands_of(add)[0], tmp_path)
    host.describe()
    assert "supernode-3" in host.running.services
    assert before.items() <= host.running.place.ports.items()


def test_what_is_not_known_on_processes_is_named(host):
    with pytest.raises(ValueError, match="docker compose pause gate is not known on processes"):
        host.follow("docker compose pause gate\n")
    with pytest.raises(ValueError, match="run --rm flwr is not known"):
        host.follow("docker compose run --rm flwr list\n")
    with pytest.raises(LaunchError, match="false:"):
        shell("false", host.folder)
