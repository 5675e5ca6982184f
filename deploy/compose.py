"""Turn the topology into Compose files: one container for each service, with only what it needs.

On one host all parties' files lie side by side under ``$FEDERATION_DIR``; a host of one party holds that
party's services only, and finds the SuperLink under its public name. Of a cloud and its edges, an edge's host
has its federation, and beside it the edge client: a node of the cloud's federation, with credentials of its
own below ``$FEDERATION_DIR/cloud``. Edge client and the edge's ServerApp share one folder and nothing else;
no device reaches the edge client or the cloud.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from deploy.containers import (
    AUDIT,
    FLWR,
    HEALTH,
    HEALTHY,
    HOME,
    INIT,
    METRICS,
    NODES,
    REGISTER,
    ROOT,
    STARTED,
    STOPPED,
    TRAIN,
    Project,
    Tree,
    app_image,
    audit_job,
    bind,
    confined,
    control_job,
    flower_image,
    init_job,
    memory_of,
    register_job,
    train_job,
    watch_jobs,
)
from deploy.edges import CLOUD, Layers
from deploy.federation import Federation, TopologyError
from deploy.operate import federation_overrides
from deploy.options import federation_words, unprotected_words
from deploy.placements import CREDENTIALS, Containers
from deploy.topology import (
    DATA,
    GATE,
    MAILBOX,
    SERVER,
    SERVER_SUPEREXEC,
    SUPERLINK,
    Folder,
    Service,
    services,
    services_of,
    services_of_node,
)

FEDERATION_NETWORK = "federation"
# Ports of an internal network are not published, and this one has no way to other hosts.
NO_WAY_OUT = {"com.docker.network.bridge.enable_ip_masquerade": "false"}
# Without an address on its bridge a network has no way to its host, and leaves the host's routes as they are.
NO_HOST = {"com.docker.network.bridge.inhibit_ipv4": "true"}
# Of a network's eight addresses Docker keeps three; on the server's are the SuperLink, its app and the jobs.
NODE_BITS, SERVER_BITS = 29, 28
FIRST_BYTES = "${NETWORK_PREFIX:-10.213}"
LAST_BLOCK = 2**16 - 2 ** (32 - NODE_BITS)
MOST_NODES = (LAST_BLOCK - 2 ** (32 - SERVER_BITS) - 2 ** (32 - NODE_BITS)) // 2 ** (32 - NODE_BITS) // 2
# A SuperNode ends when it is refused. A container that ends counts as unhealthy, and up --wait gives up: so
# it is started again inside its container. A signal to stop is handed on to it, so that it takes its leave.
STARTED_AGAIN = (
    """trap 'kill "$$child"; wait "$$child"; exit 0' TERM INT; """
    """while :; do "$$0" "$$@" & child=$$!; """
    f"""( sleep 20; kill -0 "$$child" 2>/dev/null && rm -f {HOME}/ended ) & """
    """wait "$$child" && exit 0; """
    """echo "$$0 ended with status $$? (137: out of memory) and is started again" >&2; """
    f"""touch {HOME}/ended; sleep 2; done"""
)
# Unhealthy is one that has ended and has not run for twenty seconds since: the SuperLink refuses it.
NOT_REFUSED = ("sh", "-c", f"""! test -e {HOME}/ended && exec "$$0" "$$@\"""")


def compose_file(
    federation: Federation,
    *,
    party: str | None = None,
    place: Containers | None = None,
    cuda: bool = False,
    project: Project | None = None,
) -> Tree:
    """Return the Compose file of all parties, or of the host of one party.

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
    if party is None and len(federation.nodes) > MOST_NODES:
        raise TopologyError(f"{len(federation.nodes)} nodes are more than the {MOST_NODES} of one host")
    every = services(federation, place)
    mine = services_of(every, [] if party is None else [party])
    image = app_image(cuda)
    jobs = {INIT: init_job(project, party, image)}
    if party in (None, SERVER):
        jobs[REGISTER] = register_job(place, image)
        jobs[TRAIN] = train_job(federation, project, place, image)
        jobs[NODES] = control_job(NODES, (), place, image)
        jobs[FLWR] = control_job(FLWR, ("--",), place, image)
    jobs |= {AUDIT: audit_job(mine, image), **watch_jobs(mine, image)}
    reached = networks_of([each for each in mine if not each.offline], one_host=party is None)
    containers = {
        service.name: container(
            federation, service, mine, jobs, reached.get(service.name, ()), cuda=cuda, place=place
        )
        for service in mine
    }
    if party == SERVER:
        containers[GATE]["ports"] = [f"{place.port(GATE)}:{place.port(GATE)}"]
    return {
        "name": project.name if party is None else f"{project.name}-{party}",
        "services": jobs | containers,
        "networks": networks(reached, one_host=party is None) | figures_network(one_host=party is None),
    }


def to_text(tree: Tree, header: str) -> str:
    """Write YAML without references, so that every service can be read by itself."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    return comment + yaml.dump(tree, Dumper=_Plain, sort_keys=False, width=110)


def container(
    federation: Federation,
    service: Service,
    mine: Sequence[Service],
    jobs: Tree,
    networks: Sequence[str],
    *,
    cuda: bool,
    root: str = ROOT,
    place: Containers | None = None,
) -> Tree:
    """Return the container of a service, with its own credentials and folders and no others.

    A SuperNode ends as long as the SuperLink refuses it: before it is registered, and after a crash until its
    heartbeat has run out. Its SuperExec does not wait for it, but asks it for work until it is there.
    """
    here = {each.name for each in mine}
    first = (SUPERLINK, GATE)
    needed = {name: HEALTHY if name in first else STARTED for name in service.needs if name in here}
    after = {INIT: STOPPED} | needed
    if service.name not in first and not service.offline and REGISTER in jobs:
        after[REGISTER] = STOPPED
    program, *arguments = service.command
    is_supernode = service.kind == "flower-supernode"
    return {
        **({"image": flower_image("supernode")} if program == "flower-supernode" else app_image(cuda)),
        **confined(service.kind, memory_of(service.kind, federation), gpus=cuda and service.trains),
        "entrypoint": ["sh", "-c", STARTED_AGAIN, program] if is_supernode else [program],
        "command": arguments,
        "restart": "unless-stopped",
        "depends_on": after,
        **({"network_mode": "none"} if service.offline else {"networks": list(networks)}),
        "volumes": [
            bind(f"{root}/{service.name}/credentials", CREDENTIALS),
            *(folder_volume(service, folder, root, place or Containers()) for folder in service.folders),
        ],
        "healthcheck": {"test": ["CMD", *(NOT_REFUSED if is_supernode else ()), *service.probe], **HEALTH},
    }


def folder_volume(service: Service, folder: Folder, root: str, place: Containers) -> Tree:
    """Mount a folder of a service; ``NODE_0_DATA`` and so on say where the data of a node is."""
    source = f"{root}/{folder.of or service.name}/{folder.name}"
    if folder.name == DATA:
        source = place.data_of(service.party, source)
    made = folder.name != DATA or service.party != place.alone
    return bind(source, f"/{folder.name}", writable=folder.writable, made=made)


def networks_of(mine: Sequence[Service], *, one_host: bool) -> dict[str, list[str]]:
    """Return the networks of each service; what runs the app reaches its own SuperLink or SuperNode only.

    Any other service has a network with each that it needs, which nobody else is on. Between hosts the way
    leads outside, and to the gate: no other host reaches the SuperLink.
    """
    reached: dict[str, list[str]] = {service.name: [] for service in mine}
    for service in sorted(mine, key=lambda each: not each.runs_app):
        for needed in service.needs:
            way = service.party if service.runs_app else f"{service.name}-{needed}"
            way = way if needed in reached else FEDERATION_NETWORK
            for name in {service.name, needed} & reached.keys():
                reached[name] += [] if way in reached[name] else [way]
        if service.name == GATE and not one_host:
            reached[GATE].append(FEDERATION_NETWORK)
    return reached


def networks(reached: Mapping[str, Sequence[str]], *, one_host: bool) -> Tree:
    """Return the networks of services: none leads out of its host or to it, but the one between hosts.

    On one host they have small ranges of their own, since Docker's own ranges are few.
    """
    made: Tree = {}
    first = 0
    # In the order of the parties, so that a node's networks stay as they are when another is added.
    in_order = sorted(reached, key=GATE.__eq__)
    for name in dict.fromkeys(name for service in in_order for name in reached[service]):
        made[name] = {"internal": name != FEDERATION_NETWORK}
        if name != FEDERATION_NETWORK:
            made[name]["driver_opts"] = NO_HOST
        if one_host:
            bits = SERVER_BITS if name == SERVER else NODE_BITS
            made[name]["ipam"] = _range(first, bits)
            first += 2 ** (32 - bits)
    return made


def figures_network(*, one_host: bool) -> Tree:
    """Return the network of what serves figures, which leads to its host and no further."""
    made: Tree = {"internal": False, "driver_opts": NO_WAY_OUT}
    return {METRICS: made | ({"ipam": _range(LAST_BLOCK, NODE_BITS)} if one_host else {})}


def _range(start: int, bits: int) -> Tree:
    return {"config": [{"subnet": f"{FIRST_BYTES}.{start >> 8}.{start & 255}/{bits}"}]}


class _Plain(yaml.SafeDumper):
    """A YAML writer that repeats a value instead of referring to its first place."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


CLOUD_HOST = "${CLOUD_HOST:-cloud}"


def host_file(
    layers: Layers,
    host: str,
    *,
    party: str | None = None,
    place: Containers | None = None,
    cuda: bool = False,
) -> Tree:
    """Return the Compose file of the cloud's host, of an edge's, or of the host of one party of an edge.

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
        described = Project("gdpfed-cloud", words, overrides)
        own = Containers(superlink_port=place.superlink_port)
        return compose_file(layers.cloud, party=SERVER, place=own, cuda=cuda, project=described)
    described = Project(f"gdpfed-{host}", words, (*overrides, f"run.mailbox=/{MAILBOX}"))
    if party not in (None, SERVER):
        return compose_file(layers.edges[host], party=party, place=place, cuda=cuda, project=described)
    tree = compose_file(layers.edges[host], party=party, cuda=cuda, project=described)
    _add_edge_client(tree, layers, host, place, cuda=cuda)
    return tree


def _add_edge_client(tree: Tree, layers: Layers, host: str, place: Containers, *, cuda: bool) -> None:
    """Put the client of an edge beside the edge's federation, and its folder into the edge's ServerApp."""
    node, root = layers.edge_client(host), f"{ROOT}/{CLOUD}"
    mine = services_of_node(layers.cloud, node, place)
    reached = networks_of([each for each in mine if not each.offline], one_host=False)
    for service in mine:
        on = reached.get(service.name, ())
        made = container(layers.cloud, service, mine, {}, on, cuda=cuda, root=root)
        tree["services"][service.name] = made
    tree["networks"] |= networks(reached, one_host=False)
    folder = f"{root}/{node.superexec}/{MAILBOX}"
    tree["services"][SERVER_SUPEREXEC]["volumes"].append(bind(folder, f"/{MAILBOX}", writable=True))
