"""``python -m deploy.check [FILE ...]``: check Compose files, above all those that a person has changed.

A file must fit the schema of the Compose Specification and keep this project's promises: a container may do
nothing but its work, no two services see one folder but a bridge and its edge, no app reaches its host and no
node another, every node has a budget and a ledger that is kept.
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from deploy.credentials import AUTHORITY, CONSORTIUM
from deploy.edges import CLOUD
from deploy.placements import CREDENTIALS
from edge_app.edge_client import EDGE_KEY
from gdpfed.federation.node.node_config import (
    CONSORTIUM_KEY,
    DATA_KEY,
    EPSILON_KEY,
    IDENTITY_FILE_KEY,
    LEDGER_KEY,
    RECORD_EPSILON_KEY,
    ROSTER_FILE_KEY,
)
from gdpfed.federation.node.signing import FIRST_SEEN

DEFAULT_FILE = Path("docker-compose.yml")
HELP = f"Compose files (default: {DEFAULT_FILE})"
SCHEMA = "vendor.compose-spec"
# It gives the files that it makes to the user of the services, and must be root for that.
ROOT_JOB = "init"
ROOT_CAPABILITIES = {"CHOWN", "DAC_OVERRIDE", "FOWNER"}
NODE_CONFIG = "--node-config"
NO_ADDRESS = "com.docker.network.bridge.inhibit_ipv4"
# The files that a node's settings name, and whether the app may write there.
OF_DEVICE = ((LEDGER_KEY, True), (DATA_KEY, False))
OF_ALL = ((IDENTITY_FILE_KEY, False), (ROSTER_FILE_KEY, False), (CONSORTIUM_KEY, False))
SET = "/set-by-its-operator"
_INNERMOST_VARIABLE = re.compile(r"\$\{\w+(?::-([^${}]*)|(:\?)[^${}]*)?\}")

Tree = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every problem; returns 0 if there is none, else 1."""
    parser = argparse.ArgumentParser(prog="python -m deploy.check", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[DEFAULT_FILE], metavar="FILE", help=HELP)
    failed = False
    for file in parser.parse_args(arguments).files:
        found = problems_of(file)
        failed = failed or bool(found)
        for problem in found:
            print(f"{file}: {problem}", file=sys.stderr)
        if not found:
            print(f"{file} is in order")
    return int(failed)


def problems_of(file: Path) -> list[str]:
    """List everything that is wrong with a Compose file, in words."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [f"cannot be read: {error}"]
    return schema_problems(file) or list(broken_promises(yaml.safe_load(at_defaults(text))))


def schema_problems(*files: Path) -> list[str]:
    """List where files differ from the Compose Specification, as check-jsonschema says it."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMA, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a library
    return [] if done.returncode == 0 else (done.stdout or done.stderr).strip().splitlines()


def at_defaults(text: str) -> str:
    """Replace every variable, ``${NAME:-default}``, by its default, or by nothing where it has none.

    One that has to be set, ``${NAME:?why}``, is replaced by a word.
    """
    while (replaced := _INNERMOST_VARIABLE.sub(_default, text)) != text:
        text = replaced
    return text


def _default(variable: re.Match[str]) -> str:
    return SET if variable[2] else variable[1] or ""


def broken_promises(tree: Tree) -> Iterator[str]:
    """List the promises that a file of the right schema, with its variables at their defaults, breaks."""
    services: Tree = tree.get("services", {})
    for name, service in services.items():
        problems = [*_rights(name, service), *_other_version(service)]
        if service.get("restart") != "no":
            problems += _of_long_running(service, tree.get("networks", {}))
        if _runs(service, "flower-supernode"):
            problems += _of_node(_node_config(service), _volumes_of_app(services, service))
        yield from (f"{name}: {problem}" for problem in problems)
    yield from _shared_folders(services)
    yield from _open_networks(services, tree.get("networks", {}))


def _rights(name: str, service: Tree) -> Iterator[str]:
    """What a container may do beyond its work, and which limits it lacks."""
    root = str(service.get("user", "0")).partition(":")[0] in ("0", "root")
    if root and name != ROOT_JOB:
        yield "runs as root"
    if root and service.get("network_mode") != "none":
        yield "is root and has a network"
    if service.get("cap_drop") != ["ALL"]:
        yield "keeps capabilities: cap_drop must be ALL"
    extra = set(service.get("cap_add", [])) - (ROOT_CAPABILITIES if name == ROOT_JOB else set())
    if extra:
        yield f"adds capabilities {', '.join(sorted(extra))}"
    if service.get("privileged"):
        yield "is privileged"
    if not service.get("read_only"):
        yield "can write to its image"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield "can gain privileges"
    limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
    missing = {"cpus", "memory", "pids"} - limits.keys()
    if missing:
        yield f"has no limit of {', '.join(sorted(missing))}"


def _other_version(service: Tree) -> Iterator[str]:
    """All parts of a federation must be of one version of Flower."""
    flower, image = version("flwr"), str(service.get("image", ""))
    if image.startswith("flwr/") and not image.endswith(f":{flower}"):
        yield f"image {image} is not of Flower {flower}"


def _of_long_running(service: Tree, networks: Tree) -> Iterator[str]:
    """The app's code is sent by whoever may submit runs: it must reach nothing but its own Flower program."""
    if not service.get("healthcheck", {}).get("test"):
        yield "has no health check"
    if not _volumes(service).get(CREDENTIALS, {}).get("read_only", True):
        yield "can change its credentials"
    if not _runs_app(service):
        return
    for network in service.get("networks", ["default"]):
        if not (networks.get(network) or {}).get("internal"):
            yield f"runs the app and is on network {network}, which leads outside"
    if service.get("ports"):
        yield "runs the app and publishes a port"


def _open_networks(services: Tree, networks: Tree) -> Iterator[str]:
    """An app reaches nothing of its host, and no node another node."""
    supernodes = [name for name, service in services.items() if _runs(service, "flower-supernode")]
    for network, settings in networks.items():
        on_it = [name for name, each in services.items() if network in each.get("networks", [])]
        options = (settings or {}).get("driver_opts", {})
        if any(_runs_app(services[name]) for name in on_it) and options.get(NO_ADDRESS) != "true":
            yield f"network {network} has an app on it and an address of the host: set {NO_ADDRESS}"
        met = [name for name in on_it if name in supernodes]
        if len(met) > 1:
            yield f"network {network} lets {' and '.join(met)} reach one another"


def _of_node(config: dict[str, str], volumes: dict[str, Tree]) -> Iterator[str]:
    """Every node has a budget, a ledger that is kept, data that it cannot change, and an identity.

    A bridge has the folder of its edge in place of the first three.
    """
    folder = config.get(EDGE_KEY)
    if folder is not None and volumes.get(folder, {"read_only": True}).get("read_only"):
        yield f"{EDGE_KEY}={folder} is no volume that the bridge's app can write to"
    if folder is None and not (config.get(EPSILON_KEY) or config.get(RECORD_EPSILON_KEY)):
        yield f"{NODE_CONFIG} has no {EPSILON_KEY} or {RECORD_EPSILON_KEY}: a node needs a budget"
    if config.get(ROSTER_FILE_KEY) == FIRST_SEEN:
        yield f"{ROSTER_FILE_KEY}={FIRST_SEEN} believes the server's word for who the other nodes are"
        return
    for key, writable in (*(() if folder else OF_DEVICE), *OF_ALL):
        volume = volumes.get(str(PurePosixPath(config.get(key, "")).parent))
        if volume is None:
            yield f"{key}={config.get(key)} lies on no volume of the SuperExec that runs the node's app"
        elif writable == bool(volume.get("read_only")):
            yield f"{key}={config[key]} lies on a volume that is {'read-only' if writable else 'writable'}"


def _shared_folders(services: Tree) -> Iterator[str]:
    """No folder, nor a part of it, is seen by two services, and the authority's and consortium's by none.

    But the one between a bridge's app and the app of its edge's server.
    """
    roots = (PurePosixPath("federation"), PurePosixPath("federation", CLOUD))
    seen = [(root / name, f"the {name}") for root in roots for name in (AUTHORITY, CONSORTIUM)]
    between = _between(services)
    for name, service in services.items():
        if service.get("restart") == "no":
            continue
        mine = [
            PurePosixPath(volume["source"]) for volume in _volumes(service).values() if "source" in volume
        ]
        for path in mine:
            for other, owner in seen:
                if path == other and {name, owner} == between.get(path):
                    continue
                if path.is_relative_to(other) or other.is_relative_to(path):
                    yield f"{path} is seen by {name} and by {owner}"
        seen += [(path, name) for path in mine]


def _between(services: Tree) -> dict[PurePosixPath, set[str]]:
    """By the folder of a bridge: the two services that share it."""
    on_superlink = [
        app
        for superlink in services.values()
        if _runs(superlink, "flower-superlink")
        for app in _apps_beside(services, superlink)
    ]
    found = {}
    for supernode in services.values():
        folder = _node_config(supernode).get(EDGE_KEY) if _runs(supernode, "flower-supernode") else None
        for app in _apps_beside(services, supernode) if folder else ():
            source = _volumes(services[app]).get(str(folder), {}).get("source")
            if source is not None:
                found[PurePosixPath(source)] = {app, *on_superlink}
    return found


def _node_config(service: Tree) -> dict[str, str]:
    words = _words(service, "command")
    text = words[words.index(NODE_CONFIG) + 1 :][:1] if NODE_CONFIG in words else []
    return dict(word.partition("=")[::2] for word in shlex.split("".join(text)))


def _volumes_of_app(services: Tree, supernode: Tree) -> dict[str, Tree]:
    """By target: the volumes of the SuperExec on the SuperNode's own network."""
    return {
        target: volume
        for app in _apps_beside(services, supernode)
        for target, volume in _volumes(services[app]).items()
    }


def _apps_beside(services: Tree, program: Tree) -> list[str]:
    """The SuperExecs on a network of a SuperNode or SuperLink."""
    networks = set(program.get("networks", []))
    return [
        name
        for name, service in services.items()
        if _runs_app(service) and set(service.get("networks", [])) & networks
    ]


def _runs_app(service: Tree) -> bool:
    return _runs(service, "flower-superexec")


def _runs(service: Tree, program: str) -> bool:
    return program in _words(service, "entrypoint")


def _words(service: Tree, key: str) -> list[str]:
    """A command, which Compose takes as a list or as one string."""
    words: str | list[str] = service.get(key) or []
    return shlex.split(words) if isinstance(words, str) else words


def _volumes(service: Tree) -> dict[str, Tree]:
    """By target: the volumes of a service, also those in the short form ``source:target:ro``."""
    found: dict[str, Tree] = {}
    for volume in service.get("volumes", []):
        if isinstance(volume, str):
            source, _, rest = volume.partition(":")
            target, _, mode = rest.partition(":")
            found[target or source] = {"source": source, "read_only": "ro" in mode.split(",")}
        else:
            found[volume["target"]] = volume
    return found


if __name__ == "__main__":
    raise SystemExit(main())
