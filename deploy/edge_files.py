"""Compose files of a cloud and its edges: one for the cloud's host, one for the host of each edge.

An edge's file holds its federation, and beside it the edge client: a node of the cloud's federation, with
credentials of its own below ``$FEDERATION_DIR/cloud``. The edge client and the edge's ServerApp share one
folder; nothing else of the one is seen by the other, and no device reaches the edge client or the cloud.
"""

from deploy.compose import compose_file, container, networks, networks_of
from deploy.containers import ROOT, Project, Tree, bind
from deploy.edges import CLOUD, Layers
from deploy.placements import Containers
from deploy.topology import MAILBOX, SERVER, SERVER_SUPEREXEC, node_superexec, supernode

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

    Raises:
        TopologyError: no such party.
    """
    every = sum(len(edge.nodes) for edge in layers.edges.values())
    words = ("--edges", str(len(layers.edges)), "--nodes", str(every), "--host", host)
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
    mine = [supernode(layers.cloud, node, place), node_superexec(layers.cloud, node, place)]
    reached = networks_of(mine, one_host=False)
    for service in mine:
        made = container(layers.cloud, service, mine, {}, reached[service.name], cuda=cuda, root=root)
        tree["services"][service.name] = made
    tree["networks"] |= networks(reached, one_host=False)
    folder = f"{root}/{node.superexec}/{MAILBOX}"
    tree["services"][SERVER_SUPEREXEC]["volumes"].append(bind(folder, f"/{MAILBOX}", writable=True))
