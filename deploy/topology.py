"""The parts of a federation: its services, the files of each, and their names.

``docker-compose.yml`` says which programs run, and how; :mod:`deploy.services` reads it. Containers, units
and processes on loopback differ only in the :class:`Placement`: where a program listens, and under which path
it finds its files.

    server    superlink            routes messages; its database outlives it
              gate                 lets nodes reach what the SuperLink has for nodes, and nothing else of it
              server-superexec     runs the ServerApp: plan, rounds, ledger, files of the run
    node i    supernode-i          speaks for the node; holds the key by which the SuperLink knows it
              node-i-guard         answers the node's messages: the only place where its data and ledger are
                                   and the identity by which other nodes know it; on no network
              node-i-superexec     runs the ClientApp, which hands each message to the guard
    edge i    edge-client-supernode-i, edge-client-i-guard, edge-client-i-superexec
                                 those of an edge, as a node of its cloud: no data and no ledger, but the
                                 folder that the guard shares with the edge's run

A program sees only the files that are named in its service. In particular those that run the app see neither
a TLS key nor the key that the SuperLink knows, nor what a guard holds: whoever submits a run sends the app's
code. Of a node without a guard it sees data, ledger and identity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SUPERLINK, GATE = "superlink", "gate"
SERVER_SUPEREXEC = "server-superexec"
SERVER = "server"
SUPERLINK_PORT, SUPERNODE_PORT, HEALTH_PORT = 8000, 9094, 9095

CREDENTIALS = "/federation"
CA_FILE = "ca.crt"
SUPERLINK_CA_FILE = "superlink-ca.crt"
TLS_CERTIFICATE_FILE = "tls.crt"
TLS_KEY_FILE = "tls.key"
SECRET_FILE = "superexec.secret"  # noqa: S105 - a file's name
NODE_KEY_FILE = "node.key"
PROXY_FILE = "proxy.url"
IDENTITY_FILE, ROSTER_FILE, CONSORTIUM_FILE = "identity.key", "roster.json", "consortium.identity"

STATE, RUNS, DATA, LEDGER, MAILBOX, GUARD = "state", "runs", "data", "ledger", "mailbox", "guard"
APP_SIGNATURE = "app.fab.signature"
LEDGER_FILE = "ledger.json"
DATABASE = "superlink.db"
PUBLIC, PUBLIC_PATH = "public", "/public"
LOOPBACK = "127.0.0.1"


class Placement(Protocol):
    """The interface that says where services run: the paths of their files, their hosts and ports."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Values for some variables of docker-compose.yml; the others keep their default values."""

    def host(self, service: str) -> str:
        """Return the name under which other services reach a service."""

    def listens_on(self, service: str) -> str:
        """Return the address that a service listens on."""

    def port(self, service: str) -> int:
        """Return the port of a service's API or, for a SuperExec, the port of its health check."""

    def credential(self, service: str, file: str) -> str:
        """Return the path at which a service finds one of its credential files."""

    def folder(self, service: str, name: str) -> str:
        """Return the path at which a service finds one of its folders."""


@dataclass(frozen=True)
class Folder:
    """A directory that a service sees besides the directory of its credentials.

    `of`: the service beside whose credentials it lies, if that is another one.
    """

    name: str
    writable: bool
    of: str | None = None


@dataclass(frozen=True)
class Service:
    """One long-running program of a federation, such as Flower's SuperLink or a SuperNode.

    Attributes:
        name: of the service, and its host name among containers.
        party: who operates it; credentials never cross parties, but for public ones.
        command: program and arguments.
        credentials: the files that it reads, in a directory of its own.
        folders: what else it sees.
        probe: a command that succeeds while the service is healthy.
        needs: services that it connects to. One of its own party may come later, it asks again until then.
        runs_app: whether the app's code runs here.
        offline: whether it is on no network.
        memory: the most that it may take, as in 768M.
        processes: how many it may have at most.
    """

    name: str
    party: str
    command: tuple[str, ...]
    credentials: tuple[str, ...]
    probe: tuple[str, ...]
    folders: tuple[Folder, ...]
    needs: tuple[str, ...]
    runs_app: bool
    offline: bool
    memory: str
    processes: int


def credentials_of(root: Path, service: str) -> Path:
    """Return the directory of a service's credentials on the machine that made them."""
    return root / service / "credentials"
