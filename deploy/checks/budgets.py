"""Every node has a budget, a ledger that outlives its containers, and data, each its own."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from flwr.common.config import parse_config_args

from client_app.settings import DATA_KEY, EPSILON_KEY, LEDGER_KEY
from deploy.checks.secrets import party_of

NODE_CONFIG = "--node-config"


def budget_problems(tree: dict[str, Any]) -> Iterator[str]:
    """Node configurations without a budget or data, and paths that the node's own SuperExec does not see."""
    for name, service in tree["services"].items():
        command = service.get("command", [])
        if NODE_CONFIG in command:
            config = parse_config_args([command[command.index(NODE_CONFIG) + 1]])
            volumes = _volumes_of_app(tree, name)
            yield from (f"{name}: {problem}" for problem in _problems(dict(config), volumes))


def _problems(config: dict[str, Any], volumes: dict[str, dict[str, Any]]) -> Iterator[str]:
    if not isinstance(config.get(EPSILON_KEY), int | float):
        yield f"{EPSILON_KEY} is {config.get(EPSILON_KEY)!r} in {NODE_CONFIG}: a node needs a budget"
    for key, writable in ((LEDGER_KEY, True), (DATA_KEY, False)):
        folder = str(PurePosixPath(str(config.get(key, ""))).parent)
        volume = volumes.get(folder)
        if volume is None:
            yield f"{key}={config.get(key)} lies on no volume of the SuperExec that runs the node's app"
        elif writable == bool(volume.get("read_only")):
            yield f"{key}={config[key]} lies on a volume that is {'read-only' if writable else 'writable'}"


def _volumes_of_app(tree: dict[str, Any], supernode: str) -> dict[str, dict[str, Any]]:
    """By target: the volumes of the SuperExec on the SuperNode's own network."""
    party = party_of(tree, supernode)
    return {
        volume["target"]: volume
        for service in tree["services"].values()
        if service["entrypoint"] == ["flower-superexec"] and party in service.get("networks", [])
        for volume in service["volumes"]
    }
