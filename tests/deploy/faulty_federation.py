"""A running federation whose parts can be killed, restarted and watched."""

import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from deploy.credentials import SECRETS
from deploy.placements import credentials_of
from deploy.processes import LoopbackFederation
from deploy.topology import SERVER_SUPEREXEC, Node
from gdpfed.flower_run import FlowerRun
from gdpfed.report.records import RoundRecord, read_rounds

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.1
# One sum over all nodes, of which one may vanish after sharing: t = 3 of 5.
OVERRIDES = (
    "method=dp_fedavg",
    "privacy.sampling_rate=1",
    "privacy.delta=1e-5",
    "secagg.threshold=0.6",
    "secagg.dropout_tolerance=0.2",
)


class FaultyFederation:
    """Handles to do harm with.

    Attributes:
        running: the federation.
    """

    def __init__(self, running: LoopbackFederation) -> None:
        self.running = running

    def train(self, name: str, overrides: Sequence[str] = ()) -> FlowerRun:
        """Submit a training, or its continuation."""
        return self.running.train(name, [*OVERRIDES, *overrides])

    def rounds(self, name: str) -> list[RoundRecord]:
        """The record of a run so far."""
        return read_rounds(self.files(name))

    def files(self, name: str) -> Path:
        """The directory of a run."""
        return self.running.runs / name

    def until_received(self, node: Node, message_type: str, count: int = 1) -> None:
        """Wait until a node has got so many messages of a type, ``train.masked`` for instance."""
        self.until(
            lambda: self.running.log(node.supernode).count(f"Receiving: {message_type} message") >= count,
            f"{node.name} got {count} {message_type}",
        )

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition; fails with ``what`` if it does not come."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"not within {WAIT_SECONDS:g} s: {what}"
            time.sleep(POLL_SECONDS)

    def finish(self, run: FlowerRun) -> str:
        """Wait for the end of a run; its log.

        Raises:
            LaunchError: it failed.
        """
        self.until(lambda: not run.running(), "the end of the run")
        return run.check()

    def kill_node(self, node: Node) -> None:
        """SIGKILL to a node's SuperNode, SuperExec and app."""
        self.running.kill(node.supernode)
        self.running.kill(node.superexec)

    def start_node(self, node: Node) -> None:
        """Start a killed node, and again until it is let in, as an engine does with ``restart``.

        The SuperLink takes a node that vanished for one that is there until its heartbeat has run out.
        """
        self.running.start(node.superexec)
        self.running.start(node.supernode)

        def let_in() -> bool:
            if self.running.processes[node.supernode].poll() is not None:
                self.running.start(node.supernode)
            return "SuperNode ID" in self.running.log(node.supernode).rpartition("Starting Flower")[2]

        self.until(let_in, f"{node.name} is let in again")

    def server_app(self) -> psutil.Process:
        """The process of the running ServerApp."""
        (process,) = (
            each
            for each in self.running.home.processes(f"{SERVER_SUPEREXEC}/home")
            if any(word.endswith("flwr-serverapp") for word in each.cmdline())
        )
        return process

    def written(self) -> dict[Path, str]:
        """Everything that is written in clear outside the credentials: logs and files of runs."""
        root = self.running.home.path
        return {
            path: path.read_text(encoding="utf-8", errors="replace")
            for pattern in ("*.log", "server-superexec/runs/*/*.json*", "operator/*")
            for path in root.glob(pattern)
            if path.is_file()
        }

    def leaked_secrets(self) -> list[tuple[Path, Path]]:
        """Every private file of a service together with a file of :meth:`written` that tells of it."""
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
    """Text that gives a secret away: a line of a PEM file's body, or raw bytes in the usual forms."""
    if secret.startswith(b"-----BEGIN"):
        return [secret.decode().splitlines()[-2]]
    return [secret.hex(), b64encode(secret).decode(), repr(secret)[2:-1]]
