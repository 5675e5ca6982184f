"""Drills on changes: nodes are added and removed by name, and parties change to a new version in turn."""

import json
import re
import shutil
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Collection
from pathlib import Path

from deploy.loopback import LoopbackFederation
from deploy.topology import SERVER
from gdpfed.audit.run_audit import audit_run
from gdpfed.installed import project_version
from gdpfed.launch.flower_run import FlowerRun
from testing.project import PROJECT
from tests.deploy.checks import Checks
from tests.deploy.drills.day import LITTLE, TWO
from tests.deploy.drills.page import blocks
from tests.deploy.drills.processes import Host, running_from
from tests.deploy.faulty_app import FILES, FOLDERS, copy_of_project

FOUR = (*LITTLE, "run.num_rounds=4")
FOUR_ROUNDS = [0, 1, 2, 3]
NEXT, OTHER_FORMAT = "0.999.0", "0.999.1"
NAMES, UPGRADE = "Adding and removing a node", "Upgrading"
FORMAT = ("gdpfed/runs/file_formats.py", "FORMAT_VERSION = 4", "FORMAT_VERSION = 5")


def names(host: Host, check: Checks) -> None:
    """Add a node by its name, remove it, and let it return."""
    add, remove, again = blocks(NAMES)
    three = listed(host)
    numbers = [int(json.loads(host.roster.read_bytes())["number"])]

    def resumed() -> bool:
        host.finish(host.submit("begun", TWO))
        return host.sums("begun") == [[3], [3]]

    def higher() -> bool:
        numbers.append(int(json.loads(host.roster.read_bytes())["number"]))
        return numbers[-1] > numbers[-2]

    def added() -> bool:
        host.follow(add)
        four = listed(host)
        return set(four) - set(three) == {"node-3"} and three.items() <= four.items() and higher()

    def removed() -> bool:
        host.follow(remove)
        return listed(host) == three and higher()

    def returned() -> bool:
        host.follow(again)
        return {*listed(host)} == {*three, "node-3"} and higher()

    def charged() -> bool:
        return host.charged_by(host.nodes[-1]) == [[0], [0]]

    check("a run of two rounds pauses after the first", lambda: host.until_round("begun", 1, TWO))
    check("a node is added: the others keep name and id, and the roster has a higher number", added)
    check("the run that had begun goes on with its three", resumed)
    check("all four are in the sum of the next run", lambda: host.trained("four"))
    check("it is removed by its name, and the roster has a higher number", removed)
    check("three are in the sum of the next run", lambda: host.trained("three"))
    check("it returns under a new key", returned)
    check(
        "all four train, and its ledger holds both of its runs",
        lambda: host.trained("returned") and charged(),
    )


def listed(host: Host) -> dict[str, str]:
    """Return the id of every node that is online, by the node's name."""
    lines = [line.split() for line in host.job("nodes", ()).splitlines()]
    return {name: node_id for name, node_id, status in lines if status == "online"}


class Upgrading(Host):
    """A host with all parties, each of which changes to the next version of the project when it is told to.

    `pulled`: where the code is that ``git pull`` has brought. `flower`: the folder of another Flower that
    comes with it, if one does.
    """

    pulled: tuple[Path, ...] = (PROJECT,)
    flower: tuple[Path, ...] = ()

    def bring_flower(self, version: str) -> None:
        """Install another version of Flower in a folder of its own, for the next version of the project."""
        uv, folder = shutil.which("uv") or str(PROJECT / ".uv/bin/uv"), self.folder / "flower"
        words = ("pip", "install", "--quiet", "--no-deps", "--target", str(folder), f"flwr=={version}")
        subprocess.run((uv, *words, "--python", sys.executable), check=True)
        self.flower = (folder,)

    def carry_out(self, command: str) -> str:
        """Carry out a command; translate ``git pull`` and Compose commands for one party into an upgrade."""
        words = command.split()
        if words == ["git", "pull"]:
            self.pulled = (next_version(self.folder / NEXT, NEXT), *self.flower)
            return ""
        match words:
            case ["docker", "compose", "-f", file, "build"]:
                self.build(Path(file).stem)
                return ""
            case ["docker", "compose", "-f", file, "up", *_]:
                self.change(Path(file).stem)
                return ""
            case ["docker", "compose", "-f", _, *rest]:
                return self.compose(rest)
        return super().carry_out(command)

    @abstractmethod
    def build(self, party: str) -> None:
        """Build the code that a party runs next, from what ``git pull`` brought."""

    @abstractmethod
    def change(self, party: str) -> None:
        """Restart the services of a party with the code that was built for it."""

    @abstractmethod
    def serve(self, checkout: Path) -> None:
        """Let the server submit the app of another checkout, signed by the consortium."""


class Versions(Upgrading):
    """An upgradable host whose parties are processes; `of_party` has the code folders of each party."""

    def __init__(self, running: LoopbackFederation, folder: Path) -> None:
        super().__init__(running, folder)
        self.of_party = {each.party: self.pulled for each in running.services.values()}

    def build(self, party: str) -> None:
        self.of_party[party] = self.pulled

    def change(self, party: str) -> None:
        mine = [each.name for each in self.running.services.values() if each.party == party]
        self.stop(*mine)
        with running_from(*self.of_party[party]):
            self.up(*mine)

    def serve(self, checkout: Path) -> None:
        self.of_party[SERVER] = (checkout, *self.flower)
        with running_from(*self.of_party[SERVER]):
            self.job("init", ())

    def submit(self, name: str, overrides: Collection[str]) -> FlowerRun:
        """Submit a training of the app that the server's checkout has."""
        with running_from(*self.of_party[SERVER]):
            return super().submit(name, overrides)


def next_version(checkout: Path, version: str, *changes: tuple[str, str, str]) -> Path:
    """Copy this checkout under another version; each of `changes` is a file, its old and its new text."""
    if checkout.exists():
        return checkout
    checkout.mkdir()
    copy_of_project(checkout, (*FOLDERS, "deploy"), (*FILES, "docker-compose.yml"))
    here = f'version = "{project_version()}"'
    for file, code, other in (("pyproject.toml", here, f'version = "{version}"'), *changes):
        text = (checkout / file).read_text(encoding="utf-8")
        if code not in text:
            raise ValueError(f"{file} has no {code}: mend the drill")
        (checkout / file).write_text(text.replace(code, other, 1), encoding="utf-8")
    # What an installation would leave, by which a package knows its version.
    installed = checkout / f"gdpfed-{version}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gdpfed\nVersion: {version}\n")
    return checkout


def upgrade(host: Upgrading, check: Checks) -> None:
    """Drill: upgrade the server and then the nodes in the middle of a run, and finish the run."""
    server, node, resume = blocks(UPGRADE)
    nodes, name = host.nodes, "upgraded"

    def round_after(number: int, words: str) -> bool:
        host.follow(words)
        return host.until_round(name, number, FOUR)

    def differing() -> str:
        said = " ".join(host.running.home.read("flower.log").split())
        found = re.search(r"clients have other versions than the server .*? at ([\d, ]+)", said)
        return found[1].strip() if found else ""

    def ended() -> bool:
        for which in ("node-1", "node-2"):
            host.follow(node.replace("node-1", which))
        host.follow(resume, run=name)
        return differing() == "" and host.sums(name) == [[len(nodes)]] * len(FOUR_ROUNDS)

    def refused() -> bool:
        host.serve(next_version(host.folder / OTHER_FORMAT, OTHER_FORMAT, FORMAT))
        return host.refused(name, "this gdpfed reads version 5", FOUR)

    check("a run of four rounds pauses after the first", lambda: host.until_round(name, 1, FOUR))
    check("the server changes its version, and the run goes on", lambda: round_after(2, server))
    check("its log names the nodes that have another one", lambda: differing() == "0, 1, 2")
    first = node.replace("node-1", "node-0")
    check("node-0 changes, and the run goes on", lambda: round_after(3, first))
    check("its log names the two that are left", lambda: differing() == "1, 2")
    check("they change, and the run is resumed to its end, with all in each sum", ended)
    check("the run passes its audit", lambda: audit_run(host.files(name)).passed)
    check(
        "each round is charged once, in the ledger of each node",
        lambda: all(host.charged_by(each) == [FOUR_ROUNDS] for each in nodes),
    )
    check("a version with another format of a run's files refuses it, in one line", refused)


PARTS = {"names": names}
