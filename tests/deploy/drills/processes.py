"""Carry out the commands of docs/operations.md on local processes, also those of Docker Compose."""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from unittest.mock import patch

import yaml

from deploy.federation import Federation, Node
from deploy.loopback import OPERATOR, LoopbackFederation
from deploy.options import add_federation, federation_of
from deploy.placements import Loopback
from deploy.services import services
from deploy.superlink_client import ONLINE
from deploy.topology import SUPERLINK
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.errors import LaunchError
from gdpfed.launch.home import last_line
from gdpfed.runs.file_formats import LEDGER_FILE
from testing.project import PROJECT
from tests.deploy.drills.day import BUSY_SECONDS, Day
from tests.deploy.drills.page import blocks, commands_of

INTRODUCTION = "Living with a federation"
FILE, PARTIES, VARIABLES = "federation.yml", "federation", ".env"
COMPOSE = ("docker", "compose")
AnyHost = TypeVar("AnyHost", bound="Host")


@contextmanager
def running_from(*folders: Path) -> Iterator[None]:
    """Let programs that are started in a ``with`` block import their code from these folders."""
    places = os.pathsep.join(map(str, folders))
    with patch.dict(os.environ, {"PYTHONPATH": places, "PYTHONSAFEPATH": "1"}):
        yield


@contextmanager
def hosted(kind: type[AnyHost], *, walled: bool = True) -> Iterator[AnyHost]:
    """Start the federation of docs/operations.md as processes of this machine, and stop it at the end.

    `kind`: of the host. `walled`: whether what runs the app is confined, as it is.
    """
    made, *_ = commands_of(blocks(INTRODUCTION)[0])
    with TemporaryDirectory(prefix="gdpfed-drill-") as name, running_from(PROJECT):
        folder = Path(name)
        shell(made, folder)
        running = LoopbackFederation(described(folder / FILE))
        running.walled = walled
        with running:
            yield kind(running, folder)


def described(file: Path) -> Federation:
    """Return the federation of a Compose file, as the arguments of its job ``init`` describe it."""
    words = yaml.safe_load(file.read_text(encoding="utf-8"))["services"]["init"]["entrypoint"]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_federation(parser)
    return federation_of(parser.parse_known_args(words)[0])


def shell(command: str, folder: Path) -> str:
    """Run a shell command with the programs of this Python environment, and return its output.

    Raises LaunchError: it failed; its last line.
    """
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env=os.environ | paths,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LaunchError(f"{command}: {last_line(done.stdout + done.stderr)}")
    return done.stdout


class Host(Day):
    """One host with all parties, whose operators run the commands of docs/operations.md.

    `folder`: where they type them: it has the Compose file, and ``federation``, the folder of all parties.
    """

    def __init__(self, running: LoopbackFederation, folder: Path) -> None:
        super().__init__(running)
        self.folder = folder
        self._began: dict[str, int] = {}
        if self.root != folder / PARTIES:
            (folder / PARTIES).symlink_to(self.root)

    def follow(self, block: str, **given: str) -> str:
        """Carry out the commands of a block, one after the other, and return their output.

        `given`: what stands for ``<name>`` in them. Raises LaunchError: one failed.
        """
        said = ""
        for command in commands_of(block):
            for name, value in given.items():
                command = command.replace(f"<{name}>", value)
            said += self.carry_out(command)
        return said

    def carry_out(self, command: str) -> str:
        """Carry out one command and return its output."""
        words = shlex.split(command, comments=True)
        if tuple(words[:2]) == COMPOSE:
            return self.compose(words[2:])
        return shell(command, self.folder)

    def compose(self, words: Sequence[str]) -> str:
        """Carry out a Compose command on processes instead of containers, and return its output.

        Raises ValueError: it is not known here how.
        """
        match words:
            case ["down", *_]:
                self.stop(*self.running.services)
            case ["stop", *names]:
                self.stop(*names)
            case ["up", "--detach", "--wait", *names]:
                self.up(*(name for name in names if name != "--remove-orphans"))
            case ["run", "--rm", job, *rest]:
                self.describe()
                return self.job(job, rest)
            case ["exec", service, "python", "-m", module, *rest]:
                return self.python(module, *self.paths_of(service, rest))
            case _:
                raise ValueError(f"docker compose {' '.join(words)} is not known on processes")
        return ""

    def until_round(self, name: str, number: int, overrides: Collection[str]) -> bool:
        """Train a run up to this round; return whether the server has charged that many rounds."""
        self.finish(self.submit(name, [*overrides, f"run.stop_after_round={number}"]))
        return self.charged(name) == number

    def charged(self, name: str) -> int:
        """Return how many rounds of a run the server has charged."""
        return int(json.loads((self.files(name) / LEDGER_FILE).read_bytes())["charged_rounds"])

    def sums(self, name: str) -> list[list[int]]:
        """Return, for each round of a run, the number of clients in each of the round's sums."""
        return [each.survivors for each in self.rounds(name)]

    def charged_by(self, node: Node) -> list[list[int]]:
        """Return each run's charged rounds in a node's own ledger; raise LaunchError if its audit fails."""
        ledger = self.running.ledger_of(node)
        if not audit_node_ledger(ledger).passed:
            raise LaunchError(f"{ledger} does not pass its audit")
        runs = json.loads(ledger.read_bytes())["ledger"]["runs"]
        return [sorted(run["rounds"]) for run in runs]

    def lose(self, *folders: str) -> None:
        """End services and delete their folders."""
        self.stop(*folders)
        for name in folders:
            shutil.rmtree(self.root / name)

    def stop(self, *names: str) -> None:
        """End services; each has time to end by itself before it is killed."""
        for name in names:
            self.running.home.end(f"{name}/home")

    def up(self, *names: str) -> None:
        """Make missing files, register new nodes, and start the services in `names`, or all if none is named.

        It returns once every node of them is online.
        """
        self.describe()
        self.job("init", ())
        wanted = [name for name in self.running.services if name in (names or self.running.services)]
        nodes = {node.supernode for node in self.nodes}
        if not self.runs(SUPERLINK):
            self.running.start(SUPERLINK)
        self.running.wait_until_healthy(SUPERLINK)
        self.job("register", ())
        for name in wanted:
            if name not in nodes and not self.runs(name):
                self.running.start(name)
        for name in wanted:
            if self.running.services[name].offline:
                self.running.wait_until_healthy(name)
        self.until(self.all_online, "every node is online", BUSY_SECONDS)

    def all_online(self) -> bool:
        """Return whether all nodes are online; start each SuperNode that has ended.

        The SuperLink takes a node that has vanished for one that is there until its heartbeat has run out.
        """
        for node in self.nodes:
            if not self.runs(node.supernode):
                self._began[node.supernode] = len(self.running.log(node.supernode))
                self.running.start(node.supernode)
        if not all(map(self._let_in, self.nodes)):
            return False
        listed = self.running.superlink_client().nodes()
        return [each.status for each in listed] == [ONLINE] * len(self.nodes)

    def _let_in(self, node: Node) -> bool:
        since = self._began.get(node.supernode, 0)
        return self.runs(node.supernode) and "SuperNode ID" in self.running.log(node.supernode)[since:]

    def runs(self, name: str) -> bool:
        """Return whether a service runs."""
        process = self.running.processes.get(name)
        return process is not None and process.poll() is None

    def describe(self) -> None:
        """Read the Compose file and its variables again, and stop services that changed or are gone."""
        running, federation = self.running, described(self.folder / FILE)
        ports = Loopback.on_free_ports(self.root, federation).ports
        running.place = Loopback(self.root, {**ports, **running.place.ports}, self.variables())
        running.federation = federation
        after = {each.name: each for each in services(federation, running.place)}
        for name, before in running.services.items():
            if name not in after or after[name].command != before.command:
                self.stop(name)
        for name in after:
            (self.root / f"{name}.log").touch()
        running.services = after

    def variables(self) -> dict[str, str]:
        """Return the variables that Compose reads from a file beside the Compose file."""
        file = self.folder / VARIABLES
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def job(self, name: str, words: Sequence[str]) -> str:
        """Run a job of the Compose file to its end, and return its output.

        Raises LaunchError: it failed; ValueError: it is not known here how.
        """
        match name:
            case "init":
                return self.python("deploy.init", *self.words, "--demo-data", *words)
            case "register":
                return self.operate("register", "--public", str(self.root / "public"))
            case "nodes":
                return self.operate("nodes", *words)
            case "train":
                (run,) = (word.partition("=")[2] for word in words if word.startswith("run.resume="))
                others = [word for word in words if not word.startswith("run.resume=")]
                return self.finish(self.submit(run, others))
            case "audit":
                return self.python("gdpfed.cli", "audit", *self.paths_of(name, words))
        raise ValueError(f"docker compose run --rm {name} is not known on processes")

    def operate(self, command: str, *words: str) -> str:
        """Run a command of ``deploy.operate`` to its end, and return its output."""
        _, _, module, *rest = self.running.operate_words(command, *words)
        return self.python(module, *rest)

    def python(self, module: str, *words: str) -> str:
        """Run a module of the project to its end, and return its output."""
        home = shlex.quote(str(self.root / OPERATOR))
        return shell(f"FLWR_HOME={home} python -m {module} {shlex.join(words)}", self.folder)

    def paths_of(self, service: str, words: Sequence[str]) -> list[str]:
        """Return the words with paths in containers replaced by the paths on this machine."""
        if service in self.running.services:
            seen = {
                f"/{each.name}": self.running.place.folder(each.of or service, each.name)
                for each in self.running.services[service].folders
            }
        else:
            ledgers = {f"/{node.name}": str(self.running.ledger_of(node).parent) for node in self.nodes}
            seen = {"/runs": str(self.running.runs), **ledgers}
        found = []
        for word in words:
            first = re.match(r"/[\w-]+", word)
            found.append(word.replace(first[0], seen[first[0]], 1) if first and first[0] in seen else word)
        return found
