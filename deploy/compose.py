"""Turn the topology into a Compose file: one container for each service, with only what it needs.

On one host all parties' files lie side by side under ``$FEDERATION_DIR``; a host of one party holds that
party's services only, and finds the SuperLink under its public name.
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import yaml

from deploy.control import group_word
from deploy.credentials import PUBLIC
from deploy.options import federation_words
from deploy.placements import CREDENTIALS, Containers, variable
from deploy.topology import (
    DATA,
    ENVIRONMENT,
    RUNS,
    SERVER,
    SUPERLINK,
    SUPERLINK_CA_FILE,
    Federation,
    Folder,
    Service,
    secagg_words,
    services,
    services_of,
)

FLOWER_VERSION = version("flwr")
# The user that Flower's images are made for.
USER_ID = 49999
ROOT = "${FEDERATION_DIR:-./federation}"
INIT, REGISTER, TRAIN = "init", "register", "train"
FEDERATION_NETWORK = "federation"
PUBLIC_PATH = "/public"
HOME = "/tmp"  # noqa: S108 - a file system of the container's own, in memory
CONTAINER_ENVIRONMENT = ENVIRONMENT | {
    "FLWR_HOME": f"{HOME}/flower",
    "HOME": HOME,
    "MPLCONFIGDIR": f"{HOME}/matplotlib",
    # Empty is off: every message starts a process, which would compile the app each time.
    "PYTHONDONTWRITEBYTECODE": "",
}
LIMITS = {
    "flower-superlink": {"cpus": "1.0", "memory": "1G", "pids": 256},
    "flower-supernode": {"cpus": "0.5", "memory": "512M", "pids": 128},
    "flower-superexec": {"cpus": "2.0", "memory": "4G", "pids": 512},
    "python": {"cpus": "1.0", "memory": "1G", "pids": 256},
}
GPUS = {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}
HEALTH = {"interval": "10s", "timeout": "10s", "retries": 6, "start_period": "30s"}
STOPPED, HEALTHY = {"condition": "service_completed_successfully"}, {"condition": "service_healthy"}

Tree = dict[str, Any]


def compose_file(
    federation: Federation,
    *,
    party: str | None = None,
    place: Containers | None = None,
    cuda: bool = False,
) -> Tree:
    """Return the Compose file of all parties, or of the host of one party.

    Raises:
        TopologyError: no such party.
    """
    place = place or Containers()
    every = services(federation, place)
    mine = services_of(every, [] if party is None else [party])
    image = app_image(cuda)
    jobs = {INIT: init_job(federation, party, image)}
    if party in (None, SERVER):
        jobs[REGISTER] = register_job(place, image)
        jobs[TRAIN] = train_job(federation, place, image)
    containers = {service.name: container(service, mine, jobs, cuda=cuda) for service in mine}
    if party == SERVER:
        containers[SUPERLINK]["ports"] = [f"{place.port(SUPERLINK)}:{place.port(SUPERLINK)}"]
    return {
        "name": "gdpfed" if party is None else f"gdpfed-{party}",
        "services": jobs | containers,
        "networks": networks(mine),
    }


def to_text(tree: Tree, header: str) -> str:
    """Write YAML without references, so that every service can be read by itself."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    return comment + yaml.dump(tree, Dumper=_Plain, sort_keys=False, width=110)


def container(service: Service, mine: Sequence[Service], jobs: Tree, *, cuda: bool) -> Tree:
    """Return the container of a service, with its own credentials and folders and no others."""
    here = {each.name for each in mine}
    after = {INIT: STOPPED} | {name: HEALTHY for name in service.needs if name in here}
    if service.party != SERVER and REGISTER in jobs:
        after[REGISTER] = STOPPED
    program, *arguments = service.command
    stock = {"image": f"flwr/{program.removeprefix('flower-')}:{FLOWER_VERSION}"}
    return {
        **(app_image(cuda) if service.runs_app else stock),
        **confined(program, gpus=cuda and service.runs_app),
        "entrypoint": [program],
        "command": arguments,
        "restart": "unless-stopped",
        "depends_on": after,
        "networks": networks_of(service),
        "volumes": [
            bind(f"{ROOT}/{service.name}/credentials", CREDENTIALS),
            *(folder_volume(service, folder) for folder in service.folders),
        ],
        "healthcheck": {"test": ["CMD", *service.probe], **HEALTH},
    }


def confined(program: str, *, gpus: bool = False) -> Tree:
    """Return the settings that confine a container: no root, no privileges, no writing, limits."""
    resources: Tree = {"limits": LIMITS[program]}
    if gpus:
        resources["reservations"] = GPUS
    return {
        "user": f"{USER_ID}:{USER_ID}",
        "init": True,
        "read_only": True,
        "tmpfs": [f"{HOME}:mode=1777,nosuid,nodev,size=1g"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "environment": CONTAINER_ENVIRONMENT,
        "deploy": {"resources": resources},
        "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "5"}},
    }


def app_image(cuda: bool) -> Tree:
    """Return the image that holds the packages of the app; it is built from this checkout."""
    kind = "cuda" if cuda else "cpu"
    build = {
        "context": ".",
        "dockerfile": "deploy/Dockerfile",
        "args": {"FLOWER_VERSION": FLOWER_VERSION, "TORCH_BACKEND": "" if cuda else "cpu"},
    }
    return {"image": f"gdpfed-app:{FLOWER_VERSION}-{kind}", "build": build}


def init_job(federation: Federation, party: str | None, image: Tree) -> Tree:
    """Return the job that makes the credentials; it runs as root, to give each file to its user.

    No other container is root. It has no network, and may only write and change owners and modes.
    """
    words = [
        "deploy.init",
        *federation_words(federation),
        "--directory",
        CREDENTIALS,
        "--owner",
        str(USER_ID),
    ]
    words += [
        "--host",
        "${SUPERLINK_HOST:-localhost}",
        *(("--demo-data",) if party is None else ("--party", party)),
    ]
    return job(image, words) | {
        "user": "0:0",
        "cap_add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
        "network_mode": "none",
        "volumes": [bind(ROOT, CREDENTIALS, writable=True)],
    }


def register_job(place: Containers, image: Tree) -> Tree:
    """Return the job that registers the nodes at the SuperLink; it sees public keys only."""
    return job(image, ["deploy.control", "register", *_superlink(place), "--public", PUBLIC_PATH]) | {
        "depends_on": {SUPERLINK: HEALTHY},
        "networks": [SERVER],
        "volumes": [bind(f"{ROOT}/{PUBLIC}", PUBLIC_PATH)],
    }


def train_job(federation: Federation, place: Containers, image: Tree) -> Tree:
    """Return the job that runs one training, when a person asks for it, with that person's overrides."""
    nodes = str(len(federation.nodes))
    words = ["deploy.control", "train", *_superlink(place), "--nodes", nodes, "--runs", f"/{RUNS}"]
    words += ["--", group_word(federation), *secagg_words(federation, place)]
    return job(image, words) | {
        "command": [],
        "profiles": [TRAIN],
        "depends_on": {SUPERLINK: HEALTHY},
        "networks": [SERVER],
        "volumes": [bind(f"{ROOT}/{PUBLIC}", PUBLIC_PATH)],
    }


def job(image: Tree, words: Sequence[str]) -> Tree:
    """Return a container that ends when its work is done."""
    return {**image, **confined("python"), "entrypoint": ["python", "-m", *words], "restart": "no"}


def bind(source: str, target: str, *, writable: bool = False) -> Tree:
    """Mount a directory of the host; init fills it after the containers were created."""
    volume: Tree = {"type": "bind", "source": source, "target": target}
    return volume | ({} if writable else {"read_only": True}) | {"bind": {"create_host_path": True}}


def folder_volume(service: Service, folder: Folder) -> Tree:
    """Mount a folder of a service; ``NODE_0_DATA`` and so on say where the data of a node is."""
    source = f"{ROOT}/{service.name}/{folder.name}"
    if folder.name == DATA:
        source = f"${{{variable(service.party, 'DATA')}:-{source}}}"
    return bind(source, f"/{folder.name}", writable=folder.writable)


def networks_of(service: Service) -> list[str]:
    """Return the networks of a service; one that runs the app reaches its own SuperLink or SuperNode only."""
    return [service.party] if service.runs_app else [FEDERATION_NETWORK, service.party]


def networks(mine: Sequence[Service]) -> Tree:
    """Return one network for each party, without a way out, and one between SuperNodes and SuperLink."""
    parties = {service.party: {"internal": True} for service in mine}
    return {FEDERATION_NETWORK: {"internal": False}, **parties}


def _superlink(place: Containers) -> tuple[str, ...]:
    address = f"{SUPERLINK}:{place.port(SUPERLINK)}"
    return ("--superlink", address, "--ca", f"{PUBLIC_PATH}/{SUPERLINK_CA_FILE}")


class _Plain(yaml.SafeDumper):
    """A YAML writer that repeats a value instead of referring to its first place."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
