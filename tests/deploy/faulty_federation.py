"""A running federation whose parts can be killed, restarted and watched."""

import json
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from deploy.credentials import SECRETS
from deploy.federation import Federation, Node
from deploy.loopback import OPERATOR, LoopbackFederation
from deploy.operate import training_words
from deploy.run_words import secagg_words
from deploy.topology import SERVER_SUPEREXEC, SUPERLINK, credentials_of
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.launch.flower_run import FlowerRun, run_command, training_config
from gdpfed.runs.round_log import RoundLogEntry, read_rounds
from tests.deploy.faulty_app import make_faulty_app

WAIT_SECONDS = 300.0
POLL_SECONDS = 0.1
# One sum over all nodes, of which one may vanish after sharing: t = 3 of 5. Every node allows several runs.
# Without guards: what breaks the rules, or is killed, is then what holds the node's ledger and sessions. Apps
# that break them are signed by nobody.
FEDERATION = replace(Federation.of(5, (8.0,)), unguarded=True, unsigned_apps=True)
BUDGET = 1.0
OVERRIDES = (
    "method=dp_fedavg",
    f"privacy.budgets=[{BUDGET}]",
    "run.num_rounds=1",
    "run.timeout_seconds=60",
    "secagg.threshold=0.6",
    "secagg.dropout_tolerance=0.2",
)


class FaultyFederation:
    """A running federation, with methods that kill, pause and restart its parts and read their files.

    Attributes:
        running: the federation.
    """

    def __init__(self, running: LoopbackFederation) -> None:
        self.running = running

    def train(self, name: str, overrides: Sequence[str] = ()) -> FlowerRun:
        """Submit a training run; an existing run of this name is resumed."""
        return self.running.train(name, [*OVERRIDES, *overrides])

    def train_with(self, faults: Mapping[int, Mapping[int, str]], name: str, *overrides: str) -> FlowerRun:
        """Submit a training with faulty clients; ``faults`` maps round (from 1) and client id to a fault."""
        operator, files = self.running.home.path / OPERATOR, self.files(name)
        app = make_faulty_app(self.running.home.path / f"{name}-app")
        running = self.running
        words = [*OVERRIDES, *overrides, *secagg_words(running.federation, running.place)]
        config = training_config(
            training_words(len(running.federation.nodes), words),
            directory=files,
            resuming=False,
        )
        command = run_command(operator, app, config | {"faults": json.dumps(faults)})
        return FlowerRun(running.home, command, folder=OPERATOR, log_directory=files)

    def sent(self, node: Node, run_index: int = -1) -> int:
        """Return how many updates a node has sent in a run of its own ledger, by default the last run."""
        audit = audit_node_ledger(self.running.ledger_of(node))
        assert audit.passed
        return audit.runs[run_index].sent

    def rounds(self, name: str) -> list[RoundLogEntry]:
        """Return the log of a run's rounds so far."""
        return read_rounds(self.files(name))

    def files(self, name: str) -> Path:
        """Return the directory of a run."""
        return self.running.runs / name

    def train_until(self, node: Node, stage: str, name: str, overrides: Sequence[str] = ()) -> FlowerRun:
        """Submit a training; return once a node has received a message of this stage (such as "mask")."""
        message_type = f"train.{stage}"
        before = self.received(node, message_type)
        run = self.train(name, overrides)

        def there() -> bool:
            if not run.running():
                run.check()
            return self.received(node, message_type) > before

        self.until(there, f"{node.name} is in stage {stage}")
        return run

    def received(self, node: Node, message_type: str) -> int:
        """Return how many messages of a type a node has received since it was made."""
        return self.running.log(node.supernode).count(f"Receiving: {message_type} message")

    def until(self, holds: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until ``holds()`` is true; fail with the text ``what`` if this takes too long."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
            time.sleep(POLL_SECONDS)

    def finish(self, run: FlowerRun) -> str:
        """Wait for the end of a run; return its log.

        Raises:
            LaunchError: it failed.
        """
        self.until(lambda: not run.running(), "the end of the run")
        return run.check()

    def kill_node(self, node: Node) -> None:
        """Send SIGKILL to a node's SuperNode, SuperExec and app."""
        self.running.kill(node.supernode)
        self.running.kill(node.superexec)

    def pause_node(self, node: Node) -> None:
        """Suspend a node's processes: its connections stay open, but the node sends nothing."""
        for process in self._processes_of(node):
            process.suspend()

    def go_on_with(self, node: Node) -> None:
        """Let a paused node go on."""
        for process in self._processes_of(node):
            process.resume()

    def _processes_of(self, node: Node) -> list[psutil.Process]:
        return [
            process
            for service in (node.supernode, node.superexec)
            for process in self.running.home.processes(f"{service}/home")
        ]

    def start_node(self, node: Node) -> None:
        """Start a killed node, and restart it until the SuperLink accepts it, as Docker's ``restart`` does.

        The SuperLink takes a node that vanished for one that is there until its heartbeat has run out.
        """
        self.running.start(node.superexec)
        self.until_let_in(node)

    def until_let_in(self, node: Node) -> None:
        """Start a node's SuperNode, and restart it until the SuperLink accepts it."""
        before = len(self.running.log(node.supernode))
        self.running.start(node.supernode)

        def let_in() -> bool:
            if self.running.processes[node.supernode].poll() is not None:
                self.running.start(node.supernode)
            return "SuperNode ID" in self.running.log(node.supernode)[before:]

        self.until(let_in, f"{node.name} is let in")

    def restart_superlink(self) -> None:
        """Kill the SuperLink, start it again with its stored state, and wait until all nodes are back."""
        self.running.kill(SUPERLINK)
        self.running.start(SUPERLINK)
        self.running.wait_until_healthy(SUPERLINK)
        self.running.wait_for_nodes()

    def server_app(self) -> psutil.Process:
        """Return the process of the running ServerApp."""
        (process,) = (
            each
            for each in self.running.home.processes(f"{SERVER_SUPEREXEC}/home")
            if any(word.endswith("flwr-serverapp") for word in each.cmdline())
        )
        return process

    def written(self) -> dict[Path, str]:
        """Return the text of each log, and of each file of a run, by path; credentials are left out."""
        root = self.running.home.path
        return {
            path: path.read_text(encoding="utf-8", errors="replace")
            for pattern in ("*.log", "server-superexec/runs/*/*.json*", "operator/*")
            for path in root.glob(pattern)
            if path.is_file()
        }

    def leaked_secrets(self) -> list[tuple[Path, Path]]:
        """Return pairs: a service's private file, and a file of :meth:`written` that contains its secret."""
        written, root = self.written(), self.running.home.path
        return [
            (secret, file)
            for service in self.running.services.values()
            for secret in (credentials_of(root, service.name) / name for name in SECRETS)
            if secret.exists()
            for trace in traces(secret.read_bytes())
            for file, text in written.items()
            if trace in text
        ]


def traces(secret: bytes) -> list[str]:
    """Return strings that reveal a secret: a line of a PEM file, or the bytes as hex, base64 and repr."""
    if secret.startswith(b"-----BEGIN"):
        return [secret.decode().splitlines()[-2]]
    return [secret.hex(), b64encode(secret).decode(), repr(secret)[2:-1]]
