"""Describe a federation: which programs run, with which arguments, files and ports.

Containers and processes on loopback derive from it and differ only in the :class:`Placement`: where a
program listens, and under which path it finds its files.

    server    superlink            routes messages; its database outlives it
              gate                 lets nodes reach what the SuperLink has for nodes, and nothing else of it
              server-superexec     runs the ServerApp: plan, rounds, ledger, files of the run
    node i    supernode-i          speaks for the node; holds the key by which the SuperLink knows it
              node-i-superexec     runs the ClientApp: the only place where the node's data and ledger are
                                   and the identity by which other nodes know it
    edge i    edge-client-supernode-i, edge-client-i-superexec
                                 those of an edge, as a node of its cloud: no data and no ledger, but the
                                 folder that it shares with the edge's run

A program sees only the files that are named in its service. In particular the two that run the app see
neither a TLS key nor the key that the SuperLink knows: whoever submits a run sends the app's code. It does
see the node's identity, by which it signs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deploy.federation import Federation, Node, TopologyError
from gdpfed.federation.node.node_config import (
    AVERSION_KEY,
    CAP_KEY,
    FIRST_BUDGET_KEY,
    MOST_ROUNDS_KEY,
    RAISED_KEY,
    SETTING_OF,
)
from secagg import ACTIVE

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

STATE, RUNS, DATA, LEDGER, MAILBOX = "state", "runs", "data", "ledger", "mailbox"
LEDGER_FILE = "ledger.json"
DATABASE = "superlink.db"
CAP_SETTING = CAP_KEY.replace("-", "_").upper()

# Each program asks for work this often; Flower's default is a second.
TASK_POLL_SECONDS = 0.2
# How long an edge client waits for its edge: as long as several exchanges of the edge may take.
INTERVAL_SECONDS = 3600

# On a poor line Flower gives up a chunk that takes three minutes; its own are five times as large.
CHUNK_BYTES = 1 << 20

ENVIRONMENT = {
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(CHUNK_BYTES),
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(TASK_POLL_SECONDS),
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
    """A directory that a service sees beside its credentials."""

    name: str
    writable: bool


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
    """

    name: str
    party: str
    command: tuple[str, ...]
    credentials: tuple[str, ...]
    probe: tuple[str, ...]
    folders: tuple[Folder, ...] = ()
    needs: tuple[str, ...] = ()
    runs_app: bool = False


def services(federation: Federation, place: Placement) -> tuple[Service, ...]:
    """Return every service of the federation, in an order in which they can be started."""
    nodes = [
        service
        for node in federation.nodes
        for service in (supernode(federation, node, place), node_superexec(federation, node, place))
    ]
    return (superlink(place), gate(place), server_superexec(place), *nodes)


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
            *("flower-superlink", "--isolation", "process", "--enable-supernode-auth"),
            *_tls_server(SUPERLINK, place),
            *("--database", database),
        ),
        credentials=(CA_FILE, TLS_CERTIFICATE_FILE, TLS_KEY_FILE, SECRET_FILE),
        folders=(Folder(STATE, writable=True),),
        probe=_https_probe(SUPERLINK, place),
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
        probe=_https_probe(GATE, place),
        needs=(SUPERLINK,),
    )


def server_superexec(place: Placement) -> Service:
    """The SuperExec of the server: it runs the ServerApp, which reads test data and writes runs."""
    return Service(
        name=SERVER_SUPEREXEC,
        party=SERVER,
        command=_superexec(SERVER_SUPEREXEC, SUPERLINK, place),
        credentials=(CA_FILE, SECRET_FILE, ROSTER_FILE, CONSORTIUM_FILE),
        folders=(Folder(RUNS, writable=True), Folder(DATA, writable=False)),
        probe=_health_probe(SERVER_SUPEREXEC, place),
        needs=(SUPERLINK,),
        runs_app=True,
    )


def supernode(federation: Federation, node: Node, place: Placement) -> Service:
    """The SuperNode of a node: it proves its key to the SuperLink, and offers its own SuperExec an API."""
    return Service(
        name=node.supernode,
        party=node.name,
        command=(
            *("flower-supernode", "--isolation", "process"),
            *("--root-certificates", place.credential(node.supernode, SUPERLINK_CA_FILE)),
            *("--superlink", _address(GATE, place)),
            *("--auth-supernode-private-key", place.credential(node.supernode, NODE_KEY_FILE)),
            *_tls_server(node.supernode, place),
            *("--node-config", node_config(federation, node, place)),
        ),
        credentials=(
            *(CA_FILE, TLS_CERTIFICATE_FILE, TLS_KEY_FILE, SECRET_FILE),
            *(SUPERLINK_CA_FILE, NODE_KEY_FILE),
        ),
        probe=_https_probe(node.supernode, place),
        needs=(GATE,),
    )


def node_superexec(federation: Federation, node: Node, place: Placement) -> Service:
    """The SuperExec of a node: it runs the ClientApp, and sees the data and the ledger of the node only.

    That of an edge client sees the folder that it shares with its edge's run.
    """
    own = (Folder(DATA, writable=False), Folder(LEDGER, writable=True))
    return Service(
        name=node.superexec,
        party=node.name,
        command=_superexec(node.superexec, node.supernode, place),
        credentials=(CA_FILE, SECRET_FILE, IDENTITY_FILE, ROSTER_FILE, CONSORTIUM_FILE),
        folders=(Folder(MAILBOX, writable=True),) if federation.of_edges else own,
        probe=_health_probe(node.superexec, place),
        needs=(node.supernode,),
        runs_app=True,
    )


def node_config(federation: Federation, node: Node, place: Placement) -> str:
    """Return the operator's settings of a node: number, budget, ledger, data, limits on sums.

    The budget is also its limit against the server, for which it need not believe that it is drawn at the
    rate that it is told. It falls short where a rate is below 1, and the operator may raise it.

    The paths are those of the node's SuperExec, which runs the app that reads them. A node that lets updates
    leave in clear says so by a word of its own: to the edge that it trusts, or, an edge client, to the cloud.
    """
    identity = (
        f'identity-file="{place.credential(node.superexec, IDENTITY_FILE)}" '
        f'roster-file="{place.credential(node.superexec, ROSTER_FILE)}" '
        f'consortium-key="{place.credential(node.superexec, CONSORTIUM_FILE)}"'
    )
    if federation.of_edges:
        folder = place.folder(node.superexec, MAILBOX)
        edge_client = f'edge="{folder}" edge-seconds={INTERVAL_SECONDS} secagg-mode="off"'
        return f"partition-id={node.client_id} {edge_client} {identity}"
    mode = "edge-trusted=true" if federation.trusts_edge else f'secagg-mode="{federation.secagg_mode}"'
    ledger = f"{place.folder(node.superexec, LEDGER)}/{LEDGER_FILE}"
    data = f"{place.folder(node.superexec, DATA)}/{federation.examples}"
    epsilon = place.own(node, "EPSILON", repr(node.epsilon))
    # Records are drawn on the node, and an edge that is trusted sees everything: neither draws on belief.
    believes = not federation.about_records and not federation.trusts_edge
    raised = f"{RAISED_KEY}={place.own(node, 'RAISED_FROM', '0.0')} "
    most = f"{CAP_KEY}={place.own(node, CAP_SETTING, epsilon)} " if believes else ""
    return (
        f"partition-id={node.client_id} {SETTING_OF[federation.unit]}={epsilon} {most}{raised}"
        f'ledger="{ledger}" data="{data}" minimum-cohort={federation.minimum_cohort} {mode} '
        f"{_types(federation, node, place)}{identity}"
    )


def _types(federation: Federation, node: Node, place: Placement) -> str:
    """How a node plays a game about budgets, and in how many rounds it takes part; empty where unsaid."""
    most = "" if federation.most_rounds is None else f"{MOST_ROUNDS_KEY}={federation.most_rounds} "
    if node.aversion is None or node.first_budget is None:
        return most
    return (
        f"{AVERSION_KEY}={place.own(node, 'AVERSION', repr(node.aversion))} "
        f"{FIRST_BUDGET_KEY}={place.own(node, 'FIRST_BUDGET', repr(node.first_budget))} {most}"
    )


def secagg_words(federation: Federation, place: Placement) -> tuple[str, ...]:
    """Return the overrides by which the server goes by the consortium's roster, in the nodes' mode."""
    return (
        *(("secagg.mode=active",) if federation.secagg_mode == ACTIVE else ()),
        f"secagg.roster_file={place.credential(SERVER_SUPEREXEC, ROSTER_FILE)}",
        f"secagg.consortium_key={place.credential(SERVER_SUPEREXEC, CONSORTIUM_FILE)}",
    )


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
        *("flower-superexec", "--runtime-api-address", _address(runtime, place)),
        *("--root-certificates", place.credential(name, CA_FILE)),
        *("--superexec-auth-secret-file", place.credential(name, SECRET_FILE)),
        *("--health-server-address", f"{place.health_host}:{place.port(name)}"),
    )


def _address(name: str, place: Placement) -> str:
    return f"{place.host(name)}:{place.port(name)}"


def _https_probe(name: str, place: Placement) -> tuple[str, ...]:
    url = f"https://localhost:{place.port(name)}/health"
    trusted = place.credential(name, CA_FILE)
    return (
        *("python", "-c"),
        "import ssl, sys, urllib.request as r; "
        "r.urlopen(sys.argv[1], context=ssl.create_default_context(cafile=sys.argv[2]), timeout=5)",
        *(url, trusted),
    )


def _health_probe(name: str, place: Placement) -> tuple[str, ...]:
    return (
        *("python", "-c"),
        "import grpc, sys; from grpc_health.v1 import health_pb2 as h, health_pb2_grpc as g; "
        "c = grpc.insecure_channel(sys.argv[1]); "
        "sys.exit(g.HealthStub(c).Check(h.HealthCheckRequest(), timeout=5).status != 1)",
        f"{place.health_host}:{place.port(name)}",
    )
