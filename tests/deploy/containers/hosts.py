"""Checks of a server and a node with separate Compose files, as on two hosts; both run on one engine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from deploy.compose import Containers, compose_file
from deploy.description import to_text
from deploy.federation import Federation
from deploy.topology import SERVER
from gdpfed.identities import new_identity, public_key_of, signed_roster
from gdpfed.launch.home import free_ports
from tests.deploy.containers.engine import EngineError, Project, put, read, removed_afterwards, until
from tests.deploy.containers.one_host import own_address

Check = Callable[[str, Callable[[], object]], bool]
NODE = "node-0"


def scenario(root: Path, num_nodes: int, check: Check) -> None:
    """Follow "One host for each party" of docs/deployment.md for the server and one node."""
    place = Containers(own_address(), free_ports(1)[0])
    server, node = (_project(root, party, num_nodes, place) for party in (SERVER, NODE))
    server.variables["SUPERLINK_HOST"] = place.superlink_host
    ca, key = "public/superlink-ca.crt", f"public/{NODE}.pub"
    with removed_afterwards(server), removed_afterwards(node):
        check(
            "the server's SuperLink and its gate come up alone",
            lambda: server.compose("up", "--detach", "--wait", "gate") is not None,
        )
        put(node.root, ca, read(server.root, ca))

        def waits_for_keys() -> bool:
            try:
                server.compose("up", "--detach", "--wait")
            except EngineError:
                return not _runs(server, "server-superexec")
            return False

        def consortium_awaited() -> bool:
            node.compose("up", "--detach")
            until(
                lambda: "is missing, and" in node.log("supernode-0"), "the SuperNode says what it lacks", 120
            )
            return True

        def node_started() -> bool:
            consortium = new_identity(root / "consortium.key")
            keys = {0: public_key_of(read(node.root, f"public/{NODE}.identity").decode().strip())}
            put(node.root, "public/roster.json", signed_roster(keys, consortium))
            put(node.root, "public/consortium.identity", consortium.public_bytes().hex().encode())
            node.compose("up", "--detach", "--force-recreate", "init")
            until(
                lambda: (
                    "must be registered" in node.log("supernode-0") or "activate" in node.log("supernode-0")
                ),
                "the SuperNode is refused",
                120,
            )
            return _runs(node, f"{NODE}-superexec")

        def registered() -> bool:
            put(server.root, key, read(node.root, key))
            server.compose("up", "--detach", "--wait")
            until(
                lambda: f"{NODE} " in server.job("nodes") and "online" in server.job("nodes"),
                "the node is let in",
                300,
            )
            return _runs(server, "server-superexec")

        check("without a node's key register fails, and the server's app waits for it", waits_for_keys)
        check("a SuperNode does not start before the consortium's files are there", consortium_awaited)
        check("a node that is not registered yet is refused, and its app runs all the same", node_started)
        check("registered, it takes part without another word of its operator", registered)
        check(
            "a node's app reaches no port of its host",
            lambda: not node.reaches(f"{NODE}-superexec", place.superlink_host, place.superlink_port),
        )
        check(
            "its SuperNode does",
            lambda: node.reaches("supernode-0", place.superlink_host, place.superlink_port),
        )


def _project(root: Path, party: str, num_nodes: int, place: Containers) -> Project:
    data = root / f"data-{party}"
    data.mkdir()
    own = replace(place, alone=party, epsilon=1.0, data=str(data))
    if party == SERVER:
        own = Containers(superlink_port=place.superlink_port)
    file = root / f"{party}.yml"
    file.write_text(
        to_text(compose_file(Federation.of(num_nodes), party=party, place=own), "for a test"),
        encoding="utf-8",
    )
    project = Project(f"gdpfed-test-{party}", file, root / f"federation-{party}")
    project.root.mkdir()
    return project


def _runs(project: Project, service: str) -> bool:
    return bool(project.compose("ps", "--status", "running", "--quiet", service).split())
