"""Derive Compose files from ``docker-compose.yml``, such as for other nodes, one party or one edge server.

On one host all parties' files lie side by side under ``$FEDERATION_DIR``; a host of one party holds that
party's services only, and finds the SuperLink under its public name. Of a cloud and its edges, an edge's host
has its federation, and beside it the edge client: a node of the cloud's federation, with credentials of its
own below ``$FEDERATION_DIR/cloud``. Edge client and the edge's ServerApp share one folder and nothing else;
no device reaches the edge client or the cloud.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from deploy.description import ROOT, Tree, bind, described
from deploy.edges import CLOUD, Layers
from deploy.federation import Federation, Node, TopologyError
from deploy.operate import federation_overrides
from deploy.options import federation_words, unprotected_words
from deploy.settings import guard_of_edge_client, settings_of, without_guard, without_signatures
from deploy.topology import DATA, GATE, MAILBOX, SERVER, SERVER_SUPEREXEC, SUPERLINK_PORT
from gdpfed.errors import not_known
from secagg import ACTIVE

INIT, AUDIT, METRICS, TRAIN = "init", "audit", "metrics", "train"
BUDGET, DATA_FOLDER = "EPSILON", "DATA"
FEDERATION_NETWORK = "federation"
MEMORY_STEP_MB = 256
GPUS = {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}
CLOUD_HOST = "${CLOUD_HOST:-cloud}"
# Each node has sixteen addresses, and the last eight of the 65,536 are those of the network of figures.
MOST_NODES = (2**16 - 24 - 8) // 16
_NODE = re.compile(r"(?<![a-z-])(?P<kind>super)?node-(?P<number>\d+)(?!\d)")
_OF_FIRST = re.compile(
    r"(?<![a-z-])(?P<kind>super)?node-0(?!\d)|(?P<variable>NODE_)0_|(?P<partition>partition-id=)0 "
)
_SUBNET = re.compile(r"\.(\d+)\.(\d+)/29")


@dataclass(frozen=True)
class Containers:
    """The address of the SuperLink's proxy (gate) and, for the host of one node, the node's budget and data.

    Attributes:
        superlink_host: the gate's host.
        superlink_port: the gate's port.
        alone: the node whose host this is, if it is that of one node. Its budget and its data are in the
            file, or Compose refuses to begin without the variables of these: a default would come back with
            the first command that is given without them.
        epsilon: that node's budget; None to have it said.
        data: that node's folder, an absolute path; None to have it said.
    """

    superlink_host: str = GATE
    superlink_port: int = SUPERLINK_PORT
    alone: str | None = None
    epsilon: float | None = None
    data: str | None = None


@dataclass(frozen=True)
class Project:
    """The name of a federation's Compose project, and the settings that all its trainings share.

    `name`: of the Compose project, to which the party is added. `words`: by which `deploy.init` knows the
    federation. `overrides`: of every training of it.
    """

    name: str
    words: tuple[str, ...]
    overrides: tuple[str, ...]


def compose_file(
    federation: Federation,
    *,
    party: str | None = None,
    place: Containers | None = None,
    cuda: bool = False,
    project: Project | None = None,
) -> Tree:
    """Return the Compose file of one host, which runs all parties, only the server, or only one node.

    Args:
        federation: of them all.
        party: whose host it is for; None if all are on one.
        place: where the SuperLink is.
        cuda: whether the app runs on NVIDIA GPUs.
        project: what tells this federation from others of the same kind.

    Raises TopologyError: no such party, or more nodes than one host has networks for.
    """
    place = place or Containers()
    project = project or Project("gdpfed", federation_words(federation), federation_overrides(federation))
    nodes = [node for node in federation.nodes if party in (None, node.name)]
    if party not in (None, SERVER) and not nodes:
        known = sorted([SERVER, *(node.name for node in federation.nodes)])
        raise TopologyError(not_known(f"--party {party}", known))
    if len(nodes) > MOST_NODES:
        raise TopologyError(
            f"{len(nodes)} nodes are more than the {MOST_NODES} of one host: put them on several hosts"
        )
    tree: Tree = _repeated(described(), nodes)
    services = tree["services"]
    # The commands of the init and training services.
    words = services[INIT]["entrypoint"]
    words[3 : words.index("--directory")] = project.words
    words[-1:] = ("--demo-data",) if party is None else ("--party", party)
    words = services[TRAIN]["entrypoint"]
    words[words.index("--nodes") + 1] = str(len(federation.nodes))
    own, at = f"secagg.mode={ACTIVE}", words.index("--") + 1
    secagg = [word for word in words[at:] if word.startswith("secagg.") and word != own]
    mode = (own,) if federation.secagg_mode == ACTIVE else ()
    words[at:] = [*project.overrides, *mode, *secagg]

    # The port of the SuperLink's proxy (gate).
    gate, port = services[GATE], str(place.superlink_port)
    words = gate["entrypoint"]
    words[words.index("--port") + 1] = port
    test = gate["healthcheck"]["test"]
    gate["healthcheck"]["test"] = [word.replace(f":{SUPERLINK_PORT}/", f":{port}/") for word in test]

    for node in nodes:
        _set_node(services, federation, node, place)
    if federation.unsigned_apps:
        without_signatures(services, [node.supernode for node in nodes])
    for service in services.values():
        _set_resources(service, federation, cuda=cuda)
    if party is None:
        return tree | {"name": project.name}
    return _reduced_to_party(tree, party, nodes, place) | {"name": f"{project.name}-{party}"}


def _repeated(value: Any, nodes: Sequence[Node]) -> Any:
    """Return a part of a Compose file, with the entries for node-0 repeated for each of the given nodes.

    An entry of a list names a node in its text, one of a mapping in its key. Entries for node-1 and later are
    left out; entries that name no node stay as they are.
    """
    if not isinstance(value, dict | list):
        return value
    made: list[Any] = []
    for number, group in groupby(value.items() if isinstance(value, dict) else value, key=_node_number_in):
        first = list(group)
        if number is None:
            made += [
                (item[0], _repeated(item[1], nodes)) if isinstance(item, tuple) else _repeated(item, nodes)
                for item in first
            ]
        elif number == "0":
            made += [item for node in nodes for item in _entries_of_node(first, node)]
    return dict(made) if isinstance(value, dict) else made


def _node_number_in(item: Any) -> str | None:
    """Return the number of the node that an entry of a Compose file names; None if it names no node."""
    if isinstance(item, dict):
        item = item.get("source", "")
    text = item[0] if isinstance(item, tuple) else item
    found = _NODE.search(text) if isinstance(text, str) else None
    return found["number"] if found else None


def _entries_of_node(first: Sequence[Any], node: Node) -> list[Any]:
    """Return the Compose file's entries for node-0, rewritten for another node."""

    def named(found: re.Match[str]) -> str:
        if found["variable"]:
            return f"NODE_{node.client_id}_"
        if found["partition"]:
            return f"partition-id={node.client_id} "
        return node.supernode if found["kind"] else node.name

    def moved(found: re.Match[str]) -> str:
        start = int(found[1]) * 256 + int(found[2]) + 16 * node.client_id
        return f".{start >> 8}.{start & 255}/29"

    own: list[Any] = json.loads(_SUBNET.sub(moved, _OF_FIRST.sub(named, json.dumps(first))))
    return [tuple(item) if isinstance(pair, tuple) else item for pair, item in zip(first, own, strict=True)]


def _set_node(services: Tree, federation: Federation, node: Node, place: Containers) -> None:
    """Set the operator's settings and the address of the SuperLink's proxy (gate) in a node's services."""
    supernode, guard = services[node.supernode], services[node.guard]
    at = supernode["command"].index("--superlink") + 1
    supernode["command"][at] = f"{place.superlink_host}:{place.superlink_port}"
    if federation.of_edges:
        guard_of_edge_client(guard, node)
    else:
        budget = f"${{NODE_{node.client_id}_{BUDGET}:-{node.epsilon!r}}}"
        if node.name == place.alone:
            budget = _required(node, BUDGET) if place.epsilon is None else repr(place.epsilon)
            source = _required(node, DATA_FOLDER) if place.data is None else place.data
            own = bind(source, f"/{DATA}", made=False)
            guard["volumes"] = [own if each["target"] == f"/{DATA}" else each for each in guard["volumes"]]
        guard["command"][-1] = settings_of(guard["command"][-1], federation, node, budget)
    if federation.unguarded:
        without_guard(services, node)


def _required(node: Node, setting: str) -> str:
    """Return a reference to a node's Compose variable; if the variable is unset, Compose says what to do."""
    name = f"NODE_{node.client_id}_{setting}"
    return f"${{{name}:?set {name} or make this file with --{setting.lower()}}}"


def _set_resources(service: Tree, federation: Federation, *, cuda: bool) -> None:
    """Set a service's memory limit from the size of its models, and whether it may use the host's GPUs."""
    resources = service["deploy"]["resources"]
    memory = service.pop("x-memory", None)
    if memory is not None:
        copies = memory.get("models", 0) + memory.get("models_of_each_node", 0) * len(federation.nodes)
        needed = memory["program"] + copies * 4 * federation.parameters / 1e6
        resources["limits"]["memory"] = f"{-int(-needed // MEMORY_STEP_MB) * MEMORY_STEP_MB}M"
    if cuda and "build" in service:
        service["image"] = service["image"].removesuffix("cpu") + "cuda"
        service["build"]["args"]["TORCH_BACKEND"] = ""
        if any(mounted["target"] == f"/{DATA}" for mounted in service["volumes"]):
            resources["reservations"] = GPUS


def _reduced_to_party(tree: Tree, party: str, nodes: Sequence[Node], place: Containers) -> Tree:
    """Keep only one party's services in a Compose file, and connect them with the other parties' hosts."""
    server = party == SERVER
    outside = {f"{node.supernode}-{GATE}" for node in nodes}
    kept: Tree = {}
    for name, service in tree["services"].items():
        if not server:
            service["volumes"] = [
                each for each in service["volumes"] if f"/{SERVER_SUPEREXEC}/" not in each["source"]
            ]
        # The metrics are those of the nodes' privacy ledgers.
        of_nodes = METRICS in service.get("profiles", ()) or any(name in node.services for node in nodes)
        if name in (INIT, AUDIT) or (service["volumes"] and (server or of_nodes)):
            kept[name] = service
    for service in kept.values():
        if "depends_on" in service:
            needs = service["depends_on"].items()
            service["depends_on"] = {name: each for name, each in needs if name in kept}
        if "networks" in service:
            service["networks"] = [
                FEDERATION_NETWORK if name in outside else name for name in service["networks"]
            ]
    if server:
        kept[GATE]["networks"].append(FEDERATION_NETWORK)
        kept[GATE]["ports"] = [f"{place.superlink_port}:{place.superlink_port}"]
    used = {name for service in kept.values() for name in service.get("networks", ())}
    networks = tree["networks"] | {FEDERATION_NETWORK: {"internal": False}}
    return {
        "name": tree["name"],
        "services": kept,
        "networks": {
            name: {key: value for key, value in each.items() if key != "ipam"}
            for name, each in networks.items()
            if name in used
        },
    }


def host_file(
    layers: Layers,
    host: str,
    *,
    party: str | None = None,
    place: Containers | None = None,
    cuda: bool = False,
) -> Tree:
    """Return the Compose file of one host: the central server's, an edge server's, or a device's.

    Args:
        layers: of them all.
        host: cloud or edge-<i>.
        party: of an edge whose devices are on hosts of their own: server, with the edge client, or node-<i>.
        place: where the SuperLink is: the cloud's for an edge client, the edge's for a node alone.
        cuda: whether the app runs on NVIDIA GPUs.

    Raises TopologyError: no such party.
    """
    every = sum(len(edge.nodes) for edge in layers.edges.values())
    words = (
        *("--edges", str(len(layers.edges)), "--nodes", str(every), "--host", host),
        *unprotected_words(layers.cloud),
    )
    overrides = layers.overrides(host)
    place = place or Containers(CLOUD_HOST)
    if host == CLOUD:
        described_as = Project("gdpfed-cloud", words, overrides)
        own = Containers(superlink_port=place.superlink_port)
        return compose_file(layers.cloud, party=SERVER, place=own, cuda=cuda, project=described_as)
    described_as = Project(f"gdpfed-{host}", words, (*overrides, f"run.mailbox=/{MAILBOX}"))
    if party not in (None, SERVER):
        return compose_file(layers.edges[host], party=party, place=place, cuda=cuda, project=described_as)
    tree = compose_file(layers.edges[host], party=party, cuda=cuda, project=described_as)
    # The services of the edge server's client, and the folder that client and ServerApp share.
    node = layers.edge_client(host)
    above = compose_file(layers.cloud, party=node.name, place=place, cuda=cuda)
    root = f"{ROOT}/{CLOUD}"
    for name, service in above["services"].items():
        if name in node.services:
            tree["services"][name] = json.loads(json.dumps(service).replace(ROOT, root))
    tree["networks"] |= {name: each for name, each in above["networks"].items() if name != METRICS}
    folder = f"{root}/{node.superexec}/{MAILBOX}"
    tree["services"][SERVER_SUPEREXEC]["volumes"].append(bind(folder, f"/{MAILBOX}", writable=True))
    return tree
