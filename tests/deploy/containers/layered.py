"""Checks of a cloud and two edges with separate Compose files, as on three hosts; all run on one engine."""

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deploy.compose import Containers, host_file
from deploy.description import to_text
from deploy.edges import Layers
from deploy.stored_app import build_bundle
from deploy.topology import APP_SIGNATURE
from gdpfed.identities import new_identity, public_key_of, signed_roster
from gdpfed.launch.home import free_ports
from gdpfed.signed_apps import sign_app
from testing.project import PROJECT
from tests.deploy.containers.engine import Job, Project, put, read, removed_afterwards
from tests.deploy.containers.one_host import own_address

Check = Callable[[str, Callable[[], object]], bool]
EDGES = 2
RUN = "layered"
FIRST_PREFIX = 215
ROSTER = 1
OVERRIDES = (f"run.directory={RUN}", "run.num_rounds=1")
DOCUMENT = PROJECT / "docs/deployment.md"
ROUNDS = f"server-superexec/runs/{RUN}/rounds.jsonl"


def scenario(root: Path, num_nodes: int, check: Check) -> None:
    """Follow "A cloud and its edges" of docs/deployment.md, with ``num_nodes`` devices behind each edge."""
    place = Containers(own_address(), free_ports(1)[0])
    layers = Layers.of(EDGES, EDGES * num_nodes, trusted_edges=1)
    projects = {host: _project(root, layers, host, place) for host in layers.hosts}
    cloud, *edges = projects.values()
    cloud.variables["SUPERLINK_HOST"] = place.superlink_host
    with removed_afterwards(cloud), removed_afterwards(edges[0]), removed_afterwards(edges[1]):
        check(
            "the cloud's SuperLink and its gate come up alone",
            lambda: cloud.compose("up", "--detach", "--wait", "gate") is not None,
        )
        for number, edge in enumerate(edges):
            put(edge.root, "cloud/public/superlink-ca.crt", read(cloud.root, "public/superlink-ca.crt"))
            check(f"edge {number} comes up, before the cloud knows its edge client", partial(_up, edge))
        _exchange_keys(root, layers, cloud, edges)
        check(
            "the cloud comes up with all edge clients",
            lambda: cloud.compose("up", "--detach", "--wait") is not None,
        )
        for edge in edges:
            edge.compose("up", "--detach", "--force-recreate", "init")
        of_edge, of_cloud = (documented_words(file) for file in ("edge-1.yml", "cloud.yml"))
        runs: list[Job] = [
            project.begin("run", "--rm", "--no-TTY", "train", *of_edge, *OVERRIDES) for project in edges
        ]
        check(
            "the cloud's training completes with both edges in its mean",
            lambda: cloud.job("train", *of_cloud, *OVERRIDES) != "" and _survivors(cloud) == [[EDGES]],
        )
        check("so do those of the edges", lambda: [run.end() for run in runs] == [0] * EDGES)
        for number, edge in enumerate(edges):
            check(
                f"every device is in the sums of edge {number}, and its run passes its audit",
                partial(_sums_are_whole, edge, num_nodes),
            )
        check(
            "the ledger of every device passes its audit",
            lambda: all(
                edge.job("audit", "--node-ledger", f"/{node.name}/ledger.json")
                for edge, federation in zip(edges, layers.edges.values(), strict=True)
                for node in federation.nodes
            ),
        )
        app, supernode = "edge-client-0-superexec", "edge-client-supernode-0"
        cloud_at = (place.superlink_host, place.superlink_port)
        check("an edge client's SuperNode reaches the cloud", lambda: edges[0].reaches(supernode, *cloud_at))
        for service in (app, "node-0-superexec", "server-superexec"):
            check(
                f"{service} of an edge does not reach the cloud",
                partial(_does_not_reach, edges[0], service, *cloud_at),
            )
        check(
            "a device's app does not reach the edge client's SuperNode",
            lambda: (
                not any(
                    edges[0].reaches("node-0-superexec", each, 9094) for each in edges[0].address(supernode)
                )
            ),
        )


def documented_words(file: str) -> list[str]:
    """Return the training overrides that docs/deployment.md gives with this Compose file."""
    (words,) = re.findall(
        rf"^    docker compose -f {re.escape(file)} run --rm train (.+)$", DOCUMENT.read_text("utf-8"), re.M
    )
    return shlex.split(words)


def _project(root: Path, layers: Layers, host: str, place: Containers) -> Project:
    file = root / f"{host}.yml"
    file.write_text(to_text(host_file(layers, host, place=place), "for a test"), encoding="utf-8")
    prefix = f"10.{FIRST_PREFIX + layers.hosts.index(host)}"
    project = Project(f"gdpfed-test-{host}", file, root / f"layers-{host}", {"NETWORK_PREFIX": prefix})
    project.root.mkdir()
    return project


def _exchange_keys(root: Path, layers: Layers, cloud: Project, edges: list[Project]) -> None:
    """Give the cloud the edge clients' keys and the app's signature; give all hosts the signed roster."""
    consortium, keys = new_identity(root / "consortium.key"), {}
    for number, (name, edge) in enumerate(zip(layers.edges, edges, strict=True)):
        edge_client = layers.edge_client(name).name
        put(cloud.root, f"public/{edge_client}.pub", read(edge.root, f"cloud/public/{edge_client}.pub"))
        keys[number] = public_key_of(read(edge.root, f"cloud/public/{edge_client}.identity").decode().strip())
    roster, signed_by = signed_roster(keys, consortium, ROSTER), consortium.public_bytes().hex().encode()
    put(cloud.root, f"public/{APP_SIGNATURE}", sign_app(build_bundle(), consortium, ROSTER).to_json())
    for project, folder in [(cloud, "public"), *((edge, "cloud/public") for edge in edges)]:
        put(project.root, f"{folder}/roster.json", roster)
        put(project.root, f"{folder}/consortium.identity", signed_by)


def _up(project: Project) -> bool:
    return project.compose("up", "--detach") is not None


def _sums_are_whole(edge: Project, num_nodes: int) -> bool:
    (round_,) = _survivors(edge)
    return set(round_) == {num_nodes} and "Every budget held" in edge.job("audit", f"/runs/{RUN}")


def _does_not_reach(project: Project, service: str, host: str, port: int) -> bool:
    return not project.reaches(service, host, port)


def _survivors(project: Project) -> list[list[int]]:
    return [json.loads(line)["survivors"] for line in read(project.root, ROUNDS).splitlines()]
