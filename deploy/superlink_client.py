"""Requests of a SuperLink's operator: register, list and unregister nodes, start and follow runs.

Requests go through Flower's own client of the control API. Starting ``flwr`` for each costs seconds of
processor time, and its list of nodes has no names. Only runs are submitted by ``flwr``, which packs the app.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from click import ClickException
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.utils import flwr_cli_exc_handler
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from deploy.credentials import PUBLIC_KEY_SUFFIX
from gdpfed.errors import FailedError
from gdpfed.launch.flower_run import CONNECTION, write_connection

FLWR = Path(sys.executable).with_name("flwr")
POLL_SECONDS = 0.5
WAIT_SECONDS = 180.0
# For a SuperLink that is restarted; one that was taken down does not come back, and keeps nobody longer.
RESTART_SECONDS = 90.0
ONLINE, UNREGISTERED = "online", "unregistered"
FINISHED, COMPLETED = "finished", "completed"
_STARTED = re.compile(r"Successfully started run ([0-9]+)")


class SuperLinkError(FailedError):
    """Raised if the SuperLink refused a request or did not answer."""


@dataclass(frozen=True)
class RegisteredNode:
    """A node that is registered at the SuperLink.

    `name`: under which it was registered, as node-3; empty if it was registered without one. `node_id`:
    Flower's number, which its logs show. `status`: registered, online, offline or unregistered. `key`: its
    public key as the SuperLink keeps it.
    """

    name: str
    node_id: int
    status: str
    key: bytes


@dataclass(frozen=True)
class SuperLinkClient:
    """A client of the control API of Flower's SuperLink; its settings are in one ``FLWR_HOME`` folder.

    `flower_home`: where the connection is written; made if it is missing. `superlink`: host and port.
    `root_certificates`: whom to trust.
    """

    flower_home: Path
    superlink: str
    root_certificates: Path

    def connect(self) -> None:
        """Write the connection settings to the ``FLWR_HOME`` folder."""
        if not self.root_certificates.is_file():
            raise SuperLinkError(
                f"--ca {self.root_certificates} is not a file: run python -m deploy.init first"
            )
        self.flower_home.mkdir(parents=True, exist_ok=True)
        write_connection(self.flower_home, self.superlink, self.root_certificates.absolute())

    def register(self, public: Path) -> tuple[list[str], list[str]]:
        """Register each public key file ``NAME.pub`` in a directory as the key of a node with this name.

        A name has one key. Where a node of the name has another one, that one is taken away. Returns the
        names whose key is new, and those whose key was unregistered, which the SuperLink never takes again.
        Raises SuperLinkError: a file that holds no key, or a key that the SuperLink refuses.
        """
        keys = {path.stem: public_key(path) for path in sorted(public.glob(f"*{PUBLIC_KEY_SUFFIX}"))}
        if not keys:
            raise SuperLinkError(
                f"{public} holds no node's public key (*{PUBLIC_KEY_SUFFIX}): put the .pub files there "
                "that the nodes' operators send"
            )
        listed = self._all_nodes()
        known = {node.key for node in listed}
        fresh = {name: key for name, key in keys.items() if key not in known}
        for node in _registered(listed):
            if node.name in fresh:
                self._unregister(node)
        for name, key in fresh.items():
            with self.asked() as superlink:
                superlink.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
        gone = {node.key for node in listed if node.status == UNREGISTERED}
        return list(fresh), [name for name, key in keys.items() if key in gone]

    def unregister(self, name: str) -> RegisteredNode:
        """Unregister a node; the SuperLink then refuses the node and never accepts its key again.

        Raises SuperLinkError: no node has the name, or more than one.
        """
        nodes = self.nodes()
        named = [node for node in nodes if name in (node.name, str(node.node_id))]
        if len(named) != 1:
            known = ", ".join(node.name or str(node.node_id) for node in nodes)
            raise SuperLinkError(
                f"{len(named)} registered nodes are called {name}: give the id of one node; registered are "
                f"{known or 'none'}"
            )
        self._unregister(named[0])
        return named[0]

    def nodes(self) -> list[RegisteredNode]:
        """Return the nodes that are registered, by name; node-10 comes after node-9."""
        return _registered(self._all_nodes())

    def wait(self, num_nodes: int, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Return once ``num_nodes`` nodes are online.

        Raises SuperLinkError: there are fewer after the timeout, or the SuperLink does not answer.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            nodes = self.nodes()
            away = [node.name or str(node.node_id) for node in nodes if node.status != ONLINE]
            online = len(nodes) - len(away)
            if online >= num_nodes:
                return
            if time.monotonic() > deadline:
                raise SuperLinkError(
                    f"{online} of {num_nodes} nodes are online after {timeout_seconds:g} s; "
                    f"not online are {', '.join(away) or 'none'} of {len(nodes)} registered nodes: "
                    "read the logs of their SuperNodes, and compare the clocks of the hosts: the SuperLink "
                    "refuses a node whose clock differs from its own"
                )
            time.sleep(POLL_SECONDS)

    def start_stored(self, app: str, bundle: str, run_config: Mapping[str, str | int]) -> str:
        """Start a run of an app that the SuperLink has stored under this bundle hash; return the run's id."""
        with self.asked() as superlink:
            started = superlink.StartRun(
                StartRunRequest(
                    app_spec=app,
                    fab=Fab(hash_str=bundle),
                    override_config=user_config_to_proto(dict(run_config)),
                )
            )
        if not started.HasField("run_id"):
            raise SuperLinkError(f"the SuperLink did not accept a run of {app}: see its log")
        return str(started.run_id)

    def follow(self, command: Sequence[str], name: str, run_id: str | None = None) -> None:
        """Submit a run by a command, print its log, and ask the SuperLink how the run ended.

        The log of a killed ServerApp just stops. If the SuperLink is restarted during the run, the log goes
        on where it stopped. `command`: what submits it, or shows the log of `run_id`, which was submitted.
        `name`: of the run's directory, by which it is resumed. Raises SuperLinkError: it was refused, or
        ended otherwise than by itself.
        """
        shown = 0
        for line in self._lines(*command[1:]):
            print(line, end="", flush=True)
            started = _STARTED.search(line)
            run_id, shown = (started[1], 0) if started else (run_id, shown + 1)
        if run_id is None:
            raise SuperLinkError("Flower did not submit the run: see its output above")
        while (run := self.status(run_id)).status != FINISHED:
            print(f"the SuperLink has broken off the log of run {run_id}, which goes on", flush=True)
            for line in islice(self._lines("log", run_id, CONNECTION, "--stream"), shown, None):
                print(line, end="", flush=True)
                shown += 1
        if run.sub_status != COMPLETED:
            raise SuperLinkError(
                f"run {run_id} ended as {FINISHED}:{run.sub_status} ({run.details or 'no details'}); "
                f"if its first round had begun, continue it with run.resume={name}: what its rounds have "
                "cost stays charged to the budgets of the nodes, and a new run would cost more "
                f"('audit /runs/{name}' says how much)"
            )

    def flwr(self, words: Iterable[str]) -> int:
        """Run one ``flwr`` command on this connection; return the exit status."""
        return subprocess.run([FLWR, *words], env=self._environment(), check=False).returncode  # noqa: S603

    def status(self, run_id: str) -> RunStatus:
        """Return the status of a run from the SuperLink; ask again until it answers.

        Raises SuperLinkError: it does not answer in time.
        """
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                with self.asked() as superlink:
                    runs = superlink.ListRuns(ListRunsRequest(run_id=int(run_id))).run_dict
                if int(run_id) not in runs:
                    raise SuperLinkError(f"the SuperLink does not know run {run_id}")
                status: RunStatus = runs[int(run_id)].status
            except SuperLinkError as error:
                if time.monotonic() > deadline:
                    raise SuperLinkError(
                        f"the SuperLink has not answered for {RESTART_SECONDS:g} s ({error}): start it again "
                        f"and see what became of run {run_id} with flwr list"
                    ) from None
                time.sleep(POLL_SECONDS)
            else:
                return status

    def _all_nodes(self) -> list[RegisteredNode]:
        with self.asked() as superlink:
            listed = superlink.ListNodes(ListNodesRequest()).nodes_info
        return [RegisteredNode(each.name, each.node_id, each.status, each.public_key) for each in listed]

    def _unregister(self, node: RegisteredNode) -> None:
        with self.asked() as superlink:
            superlink.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))

    def _lines(self, *words: str) -> Iterator[str]:
        """Yield what one ``flwr`` command prints, line by line."""
        with subprocess.Popen(  # noqa: S603 - our own program
            [str(FLWR), *words], env=self._environment(), stdout=subprocess.PIPE, text=True
        ) as process:
            yield from process.stdout or ()

    def _environment(self) -> dict[str, str]:
        return os.environ | {"FLWR_HOME": str(self.flower_home)}

    @contextmanager
    def asked(self) -> Iterator[ControlHttpClient]:
        """Yield a client of the control API for one request; convert Flower's errors to SuperLinkError."""
        api = ControlHttpClient.from_server_address(
            server_address=self.superlink,
            insecure=False,
            root_certificates=self.root_certificates.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            with flwr_cli_exc_handler():
                yield api
        except ClickException as error:
            raise SuperLinkError(" ".join(error.format_message().split())) from None
        finally:
            api.close()


def public_key(path: Path) -> bytes:
    """Read a public key file, and return the key in the form that the SuperLink stores.

    Raises SuperLinkError: the file holds none, or one of another kind.
    """
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise SuperLinkError(f"{path} is not a public key of a node: {error}") from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise SuperLinkError(
            f"{path} is not a key on an elliptic curve: take the one that deploy.init has made"
        )
    return public_key_to_bytes(key)


def _registered(nodes: Iterable[RegisteredNode]) -> list[RegisteredNode]:
    """Return the nodes that were not unregistered, sorted by name; node-10 comes after node-9."""
    left = [node for node in nodes if node.status != UNREGISTERED]
    return sorted(left, key=lambda node: (len(node.name), node.name, node.node_id))
