"""Drills on a federation of three nodes: renewal of keys and rosters, full disks, and wrong clocks."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from deploy import init
from deploy.credentials import CONSORTIUM, CONSORTIUM_KEY
from deploy.federation import Federation, Node
from deploy.loopback import LoopbackFederation
from deploy.options import federation_words
from deploy.services import flower_environment
from deploy.topology import GATE, PUBLIC, ROSTER_FILE, SUPERLINK, credentials_of
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import LaunchError
from gdpfed.identities import read_identity, read_roster, signed_roster
from gdpfed.launch.flower_run import FlowerRun
from gdpfed.runs.round_log import read_rounds
from tests.deploy.checks import Checks
from tests.deploy.faulty_federation import FaultyFederation

NODES, BUDGET = 3, 100.0
LITTLE = (
    "method=dp_fedavg",
    "privacy.budgets=[0.5]",
    "run.num_rounds=1",
    "run.timeout_seconds=600",
    "secagg.dropout_tolerance=0",
)
TWO = (*LITTLE, "run.num_rounds=2")
PAUSED = (*TWO, "run.stop_after_round=1")
CLOCK = Path(__file__).with_name("clock.c")
HOUR = 3600
FILLER = "filler"
SMALL = "size=256k"
BUSY_SECONDS = 1800.0
MOUNT, UNMOUNT = "/bin/mount", "/bin/umount"


def scenario(parts: Collection[str], check: Checks) -> None:
    """Start three nodes, run these parts of ``PARTS`` on them, and take them down."""
    with LoopbackFederation(Federation.of(NODES, (BUDGET,))) as running:
        day = Day(running)
        for name, part in PARTS.items():
            if name in parts:
                part(day, check)


class Day(FaultyFederation):
    """A running federation, with methods that do what the operators of its parties do."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that belong to the federation at this moment."""
        return self.running.federation.nodes

    def init(self, *words: str) -> bool:
        """Run ``python -m deploy.init`` for this federation."""
        return init.main([*self.words, *words]) == 0

    @property
    def words(self) -> list[str]:
        """The arguments of every command of ``deploy.init`` for this federation."""
        return [*federation_words(self.running.federation), "--directory", str(self.root)]

    @property
    def root(self) -> Path:
        """The folder that holds the parties' files."""
        return self.running.home.path

    @property
    def roster(self) -> Path:
        """The path of the roster that the consortium hands to all parties."""
        return self.root / PUBLIC / ROSTER_FILE

    def submit(self, name: str, overrides: Collection[str]) -> FlowerRun:
        """Submit a training with these overrides, or continue the run if it exists."""
        return self.running.train(name, list(overrides))

    def trained(self, name: str, overrides: Collection[str] = LITTLE) -> bool:
        """Train a run to its end; return whether it passes its audit and all nodes are in its last sum."""
        self.finish(self.submit(name, overrides))
        rounds = read_rounds(self.files(name))
        return rounds[-1].survivors == [len(self.nodes)] and audit_run(self.files(name)).passed

    def refused(self, name: str, words: str, overrides: Collection[str] = LITTLE) -> bool:
        """Return whether a training fails with an error of the server or a node that matches `words`."""
        try:
            self.finish(self.submit(name, overrides))
        except LaunchError as error:
            said = f"{error} {' '.join(self.running.home.read('flower.log').split())}"
            if re.search(words, said):
                return True
            raise
        return False

    def paused(self, name: str) -> bool:
        """Train the first of a run's two rounds, and return whether exactly one round is recorded."""
        self.finish(self.submit(name, PAUSED))
        return len(read_rounds(self.files(name))) == 1

    def finish(self, run: FlowerRun) -> str:
        """Wait for the end of a run, longer than usual if the host is busy, and return its log."""
        self.until(lambda: not run.running(), "the end of the run", BUSY_SECONDS)
        return run.check()

    def again(self, *names: str) -> bool:
        """Kill services, start them again, and wait until all nodes are online."""
        for name in names:
            self.running.kill(name)
        for name in names:
            if not name.startswith("supernode"):
                self.running.start(name)
        if SUPERLINK in names:
            self.running.wait_until_healthy(SUPERLINK)
        for node in self.nodes:
            if node.supernode in names:
                self.until_let_in(node)
        self.running.wait_for_nodes()
        return True


def _rotation(day: Day, check: Checks) -> None:
    """Drill: renew keys, certificates and the roster by the documented commands; train before and after."""
    node = day.nodes[1]

    def number() -> int:
        return int(json.loads(day.roster.read_bytes())["number"])

    def identity() -> bool:
        before = number()
        day.init("--party", node.name, "--renew", "identity")
        return day.init() and number() > before

    def consortium() -> bool:
        before = number()
        renewed = day.init("--renew", CONSORTIUM) and number() > before
        return renewed and day.again(*(each.supernode for each in day.nodes))

    def old_roster() -> bool:
        handed = credentials_of(day.root, node.guard) / ROSTER_FILE
        handed.write_bytes(_signed_before(day))
        words = rf"has number 1, signed on \S+, and this node has seen {number()}: ask the consortium"
        return day.refused("old-roster", words) and day.init()

    def renewed(kind: str, party: str, *names: str) -> bool:
        day.init(*(("--party", party) if party else ()), "--renew", kind)
        if kind == "node-key":
            day.running.kill(node.supernode)
            day.running.operate("register", "--public", str(day.root / PUBLIC))
        return day.again(*names)

    check("a run of two rounds pauses after the first", lambda: day.paused("paused"))
    check("an identity is rotated: the roster gets a higher number", identity)
    check("a run that began with the old roster is not resumed", lambda: day.refused("paused", "roster", TWO))
    check("the consortium's key is rotated", consortium)
    for kind, party, names, said in (
        ("tls", "server", (SUPERLINK, GATE), "the server's certificates are"),
        ("secret", node.name, (node.supernode, node.superexec), "a party's secret is"),
        ("node-key", node.name, (node.supernode,), "a node's key is"),
        ("authority", "", tuple(day.running.services), "the authority is"),
    ):
        check(f"{said} rotated, and every node comes back", partial(renewed, kind, party, *names))
    check("after all of it a training completes with all in its sum", lambda: day.trained("rotated"))
    check("a node refuses a roster with a lower number, in one line", old_roster)


def _signed_before(day: Day) -> bytes:
    """Return today's roster, signed anew with the number 1, as if it were an earlier roster."""
    consortium = read_identity(day.root / CONSORTIUM / CONSORTIUM_KEY)
    return signed_roster(dict(read_roster(day.roster, consortium.public_bytes())), consortium, 1)


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """Mount a small file system, with a copy of a folder's files, on that folder during a ``with`` block.

    Gives a function that fills it up. Afterwards the files are on the old file system again.
    """
    kept = folder.with_name(f"{folder.name}.kept")
    shutil.copytree(folder, kept)
    subprocess.run([MOUNT, "-t", "tmpfs", "-o", SMALL, "tmpfs", str(folder)], check=True)
    shutil.copytree(kept, folder, dirs_exist_ok=True)

    def fill() -> None:
        with (folder / FILLER).open("wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    try:
        yield fill
    finally:
        shutil.rmtree(kept)
        shutil.copytree(folder, kept, ignore=shutil.ignore_patterns(FILLER))
        subprocess.run([UNMOUNT, str(folder)], check=True)
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        shutil.rmtree(kept)


def _disk(day: Day, check: Checks) -> None:
    """Drill: a node's disk is full before a run begins, or becomes full in the middle of a round."""
    node = day.nodes[1]
    full = "cannot be written: No space left on device"
    folder = day.running.ledger_of(node).parent

    def begin(fill: Callable[[], None]) -> bool:
        before = _sent(day, node)
        fill()
        return day.refused("full", rf"ledger=\S+ {full}") and _sent(day, node) == before

    def in_round(fill: Callable[[], None]) -> bool:
        before = _sent(day, node)
        run = day.running.train("filled", list(LITTLE))
        day.until(lambda: _begun(day, node, "filled"), "the run has begun", BUSY_SECONDS)
        fill()
        with suppress(LaunchError):
            day.finish(run)
        said = day.running.log(node.guard) + day.running.home.read("flower.log")
        no_sum = not any(any(each.survivors) for each in day.rounds("filled"))
        return _sent(day, node) == before and full in " ".join(said.split()) and no_sum

    with small_disk(folder) as fill:
        check("a node whose disk is full refuses a run, in one line", partial(begin, fill))
        (folder / FILLER).unlink()
        check("its disk fills up in a round: nothing leaves, and there is no sum", partial(in_round, fill))
    check("with room again all train", lambda: day.trained("room"))


def _sent(day: Day, node: Node) -> int:
    """Return how many updates a node has sent, over all runs in its ledger."""
    ledger = day.running.ledger_of(node)
    return sum(run.sent for run in audit_node_ledger(ledger).runs) if ledger.exists() else 0


def _begun(day: Day, node: Node, name: str) -> bool:
    return day.received(node, "train.advertise") > 0 and (day.files(name) / "ledger.json").exists()


def _clocks(day: Day, check: Checks) -> None:
    """Drill: the clock of a SuperNode, an app or an issuer of credentials is an hour ahead or behind."""
    node = day.nodes[1]

    library = day.root / "clock.so"
    subprocess.run(["/usr/bin/cc", "-shared", "-fPIC", "-o", str(library), str(CLOCK)], check=True)

    def set_to(offset: int) -> dict[str, str]:
        return {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}

    def start(name: str, offset: int) -> None:
        day.running.kill(name)
        day.running.processes[name] = day.running.home.spawn(
            day.running.services[name].command,
            log=f"{name}.log",
            folder=f"{name}/home",
            environment=flower_environment() | set_to(offset),
        )

    def refused(offset: int) -> bool:
        before = len(day.running.log(node.supernode))
        start(node.supernode, offset)
        ended = day.running.processes[node.supernode]
        day.until(
            lambda: ended.poll() is not None or "SuperNode ID" in day.running.log(node.supernode)[before:],
            "the SuperNode is refused or let in",
        )
        return ended.poll() is not None

    def made(offset: int) -> bool:
        program = ["-m", "deploy.init", *day.words, "--party", "server", "--renew", "tls"]
        day.running.home.spawn(["python", *program], log="init.log", environment=set_to(offset)).wait()
        return day.again(SUPERLINK, GATE)

    for offset, said in ((HOUR, "an hour ahead"), (-HOUR, "an hour behind")):
        check(f"a SuperNode whose clock is {said} is refused", partial(refused, offset))
    check("with its clock set right it is let in", lambda: day.again(node.supernode))
    check("certificates that were made an hour ahead are good at once", lambda: made(HOUR))


PARTS = {"rotation": _rotation, "disk": _disk, "clocks": _clocks}
