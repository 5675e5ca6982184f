"""Describe a federation: which programs run, with which arguments, files and ports.

Containers and processes on loopback derive from it and differ only in the :class:`Placement`: where a
program listens, and under which path it finds its files.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deploy.federation import Federation, Node, TopologyError
from deploy.node_settings import NodePaths, settings_words
from deploy.probes import health_probe, https_probe, socket_probe
from deploy.warm import TRAINS

SUPERLINK, GATE = "superlink", "gate"
SERVER_SUPEREXEC = "server-superexec"
SERVER = "server"

CA_FILE = "ca.crt"
SUPERLINK_CA_FILE = "superlink-ca.crt"
TLS_CERTIFICATE_FILE = "tls.crt"
TLS_KEY_FILE = "tls.key"
SECRET_FILE = "superexec.secret"  # noqa: S105 - a file's name
NODE_KEY_FILE = "node.key"
IDENTITY_FILE, ROSTER_FILE, CONSORTIUM_FILE = "identity.key", "roster.json", "consortium.identity"
TRUST_FILES = (IDENTITY_FILE, ROSTER_FILE, CONSORTIUM_FILE)

STATE, RUNS, DATA, LEDGER, MAILBOX, GUARD = "state", "runs", "data", "ledger", "mailbox", "guard"
SEEN, APP_SIGNATURE = "seen", "app.fab.signature"
SIGNED_SUPERNODE = ("python", "-m", "deploy.supernode")
PATIENT_SUPERLINK = ("python", "-m", "deploy.superlink")
KINDS = {SIGNED_SUPERNODE[-1]: "flower-supernode", PATIENT_SUPERLINK[-1]: "flower-superlink"}
SOCKET_FILE = "guard.sock"
RELAY = "relay"
LEDGER_FILE = "ledger.json"
DATABASE = "superlink.db"

# Each program asks for work this often; Flower's default is a second.
TASK_POLL_VARIABLE, TASK_POLL_SECONDS = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL", 0.2

# On a poor line Flower gives up a chunk that takes three minutes; its own are five times as large.
CHUNK_BYTES = 1 << 20

ENVIRONMENT = {
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(CHUNK_BYTES),
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    TASK_POLL_VARIABLE: str(TASK_POLL_SECONDS),
    "FLWR_TELEMETRY_ENABLED": "0",
}


class Placement(Protocol):
    """A Placement says where a service is and where it finds its files."""

    @property
    def bind_host(self) -> str:
        """The address that a program listens on for others."""

    @property
    def health_host(self) -> str:
        """The address that a program tells its health on."""

    def host(self, service: str) -> str:
        """The name under which others reach a service."""

    def port(self, service: str) -> int:
        """The port of a service's API; of a SuperExec, of its health."""

    def credential(self, service: str, file: str) -> str:
        """Path of one of a service's own credentials."""

    def folder(self, service: str, name: str) -> str:
        """Path of one of a service's own folders."""

    def own(self, node: Node, setting: str, value: str) -> str:
        """A variable with a node's own number, such as its EPSILON, and its default."""


@dataclass(frozen=True)
class Folder:
    """A directory that a service sees beside its credentials.

    `of`: the service beside whose credentials it lies, if that is another one.
    """

    name: str
    writable: bool
    of: str | None = None


@dataclass(frozen=True)
class Service:
    """One long-running program.

    Attributes:
        name: of the service, and its host name among containers.
        party: who operates it; credentials never cross parties, but for public ones.
        command: program and arguments.
        credentials: the files that it reads, in a directory of its own.
        folders: what else it sees.
        probe: a command that succeeds while the service is healthy.
        needs: services that it connects to. One of its own party may come later, it asks again until then.
        runs_app: whether the app's code runs here.
        trains: whether models are trained here.
        offline: whether it is on no network.
    """

    name: str
    party: str
    command: tuple[str, ...]
    credentials: tuple[str, ...]
    probe: tuple[str, ...]
    folders: tuple[Folder, ...] = ()
    needs: tuple[str, ...] = ()
    runs_app: bool = False
    trains: bool = False
    offline: bool = False

    @property
    def kind(self) -> str:
        """What sort of program it is, by which its limits follow."""
        if self.offline:
            return GUARD
        if self.runs_app:
            return "flower-superexec" if self.trains else RELAY
        return KINDS.get(self.command[2], self.command[0])


def services(federation: Federation, place: Placement) -> tuple[Service, ...]:
    """Return every service of the federation, in an order in which they can be started."""
    nodes = [service for node in federation.nodes for service in services_of_node(federation, node, place)]
    return (superlink(place), gate(place), server_superexec(place), *nodes)


def services_of_node(federation: Federation, node: Node, place: Placement) -> tuple[Service, ...]:
    """Return the services of a node."""
    of_all = (supernode(federation, node, place), node_superexec(federation, node, place))
    return (*of_all, guard(federation, node, place)) if federation.guarded else of_all


def services_of(every: Sequence[Service], parties: Sequence[str]) -> list[Service]:
    """Return the services of these parties, or of all parties if none is named.

    Raises TopologyError: no such party.
    """
    known = sorted({service.party for service in every})
    for party in parties:
        if party not in known:
            raise TopologyError(f"--party {party} is none of {', '.join(known)}")
    return [service for service in every if service.party in (parties or known)]


def superlink(place: Placement) -> Service:
    """The SuperLink: control, fleet and runtime API on one port, behind TLS."""
    database = f"{place.folder(SUPERLINK, STATE)}/{DATABASE}"
    return Service(
        name=SUPERLINK,
        party=SERVER,
        command=(
            *(*PATIENT_SUPERLINK, "--isolation", "process", "--enable-supernode-auth"),
            *_tls_server(SUPERLINK, place),
            *("--database", database),
        ),
        credentials=(CA_FILE, TLS_CERTIFICATE_FILE, TLS_KEY_FILE, SECRET_FILE),
        folders=(Folder(STATE, writable=True),),
        probe=_probe(SUPERLINK, place),
    )


def gate(place: Placement) -> Service:
    """What nodes reach of the SuperLink: its fleet API, under the name that other hosts know."""
    return Service(
        name=GATE,
        party=SERVER,
        command=(
            *("python", "-m", "deploy.gate", "--superlink", _address(SUPERLINK, place)),
            *("--host", place.bind_host, "--port", str(place.port(GATE))),
            *("--ca", place.credential(GATE, CA_FILE)),
            *("--certificate", place.credential(GATE, TLS_CERTIFICATE_FILE)),
            *("--key", place.credential(GATE, TLS_KEY_FILE)),
        ),
        credentials=(CA_FILE, TLS_CERTIFICATE_FILE, TLS_KEY_FILE),
        probe=_probe(GATE, place),
        needs=(SUPERLINK,),
    )


def server_superexec(place: Placement) -> Service:
    """The SuperExec of the server: it runs the ServerApp, which reads test data and writes runs."""
    return Service(
        name=SERVER_SUPEREXEC,
        party=SERVER,
        command=("flower-superexec", *_superexec(SERVER_SUPEREXEC, SUPERLINK, place)),
        credentials=(CA_FILE, SECRET_FILE, ROSTER_FILE, CONSORTIUM_FILE),
        folders=(Folder(RUNS, writable=True), Folder(DATA, writable=False)),
        probe=health_probe(f"{place.health_host}:{place.port(SERVER_SUPEREXEC)}"),
        needs=(SUPERLINK,),
        runs_app=True,
        trains=True,
    )


def supernode(federation: Federation, node: Node, place: Placement) -> Service:
    """The SuperNode of a node: it proves its key to the SuperLink, and offers its SuperExec signed apps."""
    signed = (
        *(*SIGNED_SUPERNODE, "--consortium", place.credential(node.supernode, CONSORTIUM_FILE)),
        *("--roster", place.credential(node.supernode, ROSTER_FILE)),
        *("--seen", place.folder(node.supernode, SEEN)),
    )
    return Service(
        name=node.supernode,
        party=node.name,
        command=(
            *(*(signed if federation.signed_apps else ("flower-supernode",)), "--isolation", "process"),
            *("--root-certificates", place.credential(node.supernode, SUPERLINK_CA_FILE)),
            *("--superlink", _address(GATE, place)),
            *("--auth-supernode-private-key", place.credential(node.supernode, NODE_KEY_FILE)),
            *_tls_server(node.supernode, place),
            *("--node-config", supernode_config(federation, node, place)),
        ),
        credentials=(
            *(CA_FILE, TLS_CERTIFICATE_FILE, TLS_KEY_FILE, SECRET_FILE, SUPERLINK_CA_FILE, NODE_KEY_FILE),
            *((ROSTER_FILE, CONSORTIUM_FILE) if federation.signed_apps else ()),
        ),
        folders=(Folder(SEEN, writable=True),) if federation.signed_apps else (),
        probe=_probe(node.supernode, place),
        needs=(GATE,),
    )


def node_superexec(federation: Federation, node: Node, place: Placement) -> Service:
    """The SuperExec of a node: it runs the ClientApp, and sees the guard's socket or, without one, all."""
    of_guard = (Folder(GUARD, writable=False, of=node.guard),)
    return Service(
        name=node.superexec,
        party=node.name,
        command=(
            *("python", "-m", "deploy.warm", *(() if federation.guarded else (TRAINS,))),
            *_superexec(node.superexec, node.supernode, place),
        ),
        credentials=(CA_FILE, SECRET_FILE, *(() if federation.guarded else TRUST_FILES)),
        folders=of_guard if federation.guarded else own_folders(federation, node),
        probe=health_probe(f"{place.health_host}:{place.port(node.superexec)}"),
        needs=(node.supernode,),
        runs_app=True,
        trains=not federation.guarded,
    )


def own_folders(federation: Federation, node: Node) -> tuple[Folder, ...]:
    """A node's data and ledger, in one place whether it has a guard or not: what was spent stays spent.

    Of an edge client the folder that it shares with its edge's run.
    """
    if federation.of_edges:
        return (Folder(MAILBOX, writable=True, of=node.superexec),)
    return (
        Folder(DATA, writable=False, of=node.superexec),
        Folder(LEDGER, writable=True, of=node.superexec),
    )


def guard(federation: Federation, node: Node, place: Placement) -> Service:
    """The guard of a node: it answers the messages that the app hands to its socket."""
    socket = socket_of(node, place)
    copy = () if federation.of_edges else (Folder(STATE, writable=True),)
    return Service(
        name=node.guard,
        party=node.name,
        command=(
            *("python", "-m", "client_app.guard", "--socket", socket),
            *("--node-config", node_config(federation, node, place)),
        ),
        credentials=TRUST_FILES,
        folders=(*own_folders(federation, node), Folder(GUARD, writable=True), *copy),
        probe=socket_probe(socket),
        trains=not federation.of_edges,
        offline=True,
    )


def socket_of(node: Node, place: Placement) -> str:
    """Return the path of the socket of a node's guard."""
    return f"{place.folder(node.guard, GUARD)}/{SOCKET_FILE}"


def supernode_config(federation: Federation, node: Node, place: Placement) -> str:
    """Return what a SuperNode tells the app: where the guard is, or without one the node's settings."""
    if federation.guarded:
        return f'guard="{socket_of(node, place)}"'
    return node_config(federation, node, place)


def node_config(federation: Federation, node: Node, place: Placement) -> str:
    """Return the operator's settings of a node, with the paths of its guard or, without one, of its app."""
    holder = node.guard if federation.guarded else node.superexec
    paths = NodePaths(
        identity=place.credential(holder, IDENTITY_FILE),
        roster=place.credential(holder, ROSTER_FILE),
        consortium=place.credential(holder, CONSORTIUM_FILE),
        ledger=f"{place.folder(node.superexec, LEDGER)}/{LEDGER_FILE}",
        data=f"{place.folder(node.superexec, DATA)}/{federation.examples}",
        mailbox=place.folder(node.superexec, MAILBOX),
        ledger_copy=place.folder(node.guard, STATE) if federation.guarded else "",
    )
    return settings_words(federation, node, paths, place.own)


def _tls_server(name: str, place: Placement) -> tuple[str, ...]:
    return (
        *("--host", place.bind_host, "--port", str(place.port(name))),
        *("--ssl-ca-certfile", place.credential(name, CA_FILE)),
        *("--ssl-certfile", place.credential(name, TLS_CERTIFICATE_FILE)),
        *("--ssl-keyfile", place.credential(name, TLS_KEY_FILE)),
        *("--superexec-auth-secret-file", place.credential(name, SECRET_FILE)),
    )


def _superexec(name: str, runtime: str, place: Placement) -> tuple[str, ...]:
    return (
        *("--runtime-api-address", _address(runtime, place)),
        *("--root-certificates", place.credential(name, CA_FILE)),
        *("--superexec-auth-secret-file", place.credential(name, SECRET_FILE)),
        *("--health-server-address", f"{place.health_host}:{place.port(name)}"),
    )


def _probe(name: str, place: Placement) -> tuple[str, ...]:
    return https_probe(f"https://localhost:{place.port(name)}/health", place.credential(name, CA_FILE))


def _address(name: str, place: Placement) -> str:
    return f"{place.host(name)}:{place.port(name)}"
