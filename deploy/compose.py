"""Turn the topology into a Compose file: one container for each service, with only what it needs.

On one host all parties' files lie side by side under ``$FEDERATION_DIR``; a host of one party holds that
party's services only, and finds the SuperLink under its public name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import ceil
from typing import Any

import yaml

from deploy.check import NO_ADDRESS
from deploy.credentials import PUBLIC
from deploy.operate import federation_overrides
from deploy.options import federation_words
from deploy.placements import CREDENTIALS, Containers
from deploy.topology import (
    BRIDGE,
    CONSORTIUM_FILE,
    DATA,
    ENVIRONMENT,
    LEDGER,
    ROSTER_FILE,
    RUNS,
    SERVER,
    SERVER_SUPEREXEC,
    SUPERLINK,
    SUPERLINK_CA_FILE,
    Federation,
    Folder,
    Service,
    TopologyError,
    secagg_words,
    services,
    services_of,
)
from server_app.submitted import FOLDERS

FLOWER_VERSION = version("flwr")
# The user that Flower's images are made for.
USER_ID = 49999
ROOT = "${FEDERATION_DIR:-./federation}"
INIT, REGISTER, TRAIN, NODES, FLWR, AUDIT = "init", "register", "train", "nodes", "flwr", "audit"
FEDERATION_NETWORK = "federation"
# Without an address on its bridge a network has no way to its host, and leaves the host's routes as they are.
NO_HOST = {NO_ADDRESS: "true"}
# Of a network's eight addresses Docker keeps three; on the server's are the SuperLink, its app and the jobs.
NODE_BITS, SERVER_BITS = 29, 28
FIRST_BYTES = "${NETWORK_PREFIX:-10.213}"
MOST_NODES = (2**16 - 2 ** (32 - SERVER_BITS)) // 2 ** (32 - NODE_BITS) // 2
PUBLIC_PATH = "/public"
HOME = "/tmp"  # noqa: S108 - a file system of the container's own, in memory
CONTAINER_ENVIRONMENT = ENVIRONMENT | {
    "FLWR_HOME": f"{HOME}/flower",
    "HOME": HOME,
    # All that whoever submits a run may name on the server.
    FOLDERS: f"/{RUNS}:/{DATA}:/{BRIDGE}:{CREDENTIALS}/{ROSTER_FILE}:{CREDENTIALS}/{CONSORTIUM_FILE}",
    "MPLCONFIGDIR": f"{HOME}/matplotlib",
    # Empty is off: every message starts a process, which would compile the app each time.
    "PYTHONDONTWRITEBYTECODE": "",
}
LIMITS = {
    "flower-superlink": {"cpus": "1.0", "pids": 256},
    "flower-supernode": {"cpus": "0.5", "pids": 128},
    "flower-superexec": {"cpus": "${APP_CPUS:-1.0}", "pids": 512},
    "python": {"cpus": "1.0", "pids": 256},
}
# MB of a program without a model, and how many models it holds at once, with room to spare;
# the SuperLink holds so many for every node.
MEMORY = {
    "flower-superlink": (512, 3),
    "flower-supernode": (400, 4),
    "flower-superexec": (2048, 32),
}
JOB_MEMORY = "1G"
MEMORY_STEP_MB = 256
GPUS = {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}
# Each probe starts Python: six nodes' probes at ten seconds took a good part of a small host's processors.
HEALTH = {"interval": "30s", "timeout": "20s", "retries": 3, "start_period": "60s"}
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
STOPPED, HEALTHY, STARTED = (
    {"condition": f"service_{state}"} for state in ("completed_successfully", "healthy", "started")
)

Tree = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """What tells one federation of an operator from the next.

    Attributes:
        name: of the Compose project, to which the party is added.
        words: by which `deploy.init` knows the federation.
        overrides: of every training of it.
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
    site: Site | None = None,
) -> Tree:
    """Return the Compose file of all parties, or of the host of one party.

    Args:
        federation: of them all.
        party: whose host it is for; None if all are on one.
        place: where the SuperLink is.
        cuda: whether the app runs on NVIDIA GPUs.
        site: what tells this federation from others of the same kind.

    Raises:
        TopologyError: no such party, or more nodes than one host has networks for.
    """
    place = place or Containers()
    site = site or Site("gdpfed", federation_words(federation), federation_overrides(federation))
    if party is None and len(federation.nodes) > MOST_NODES:
        raise TopologyError(f"{len(federation.nodes)} nodes are more than the {MOST_NODES} of one host")
    every = services(federation, place)
    mine = services_of(every, [] if party is None else [party])
    image = app_image(cuda)
    jobs = {INIT: init_job(site, party, image)}
    if party in (None, SERVER):
        jobs[REGISTER] = register_job(place, image)
        jobs[TRAIN] = train_job(federation, site, place, image)
        jobs[NODES] = control_job(NODES, (), place, image)
        jobs[FLWR] = control_job(FLWR, ("--",), place, image)
    jobs[AUDIT] = audit_job(mine, image)
    reached = networks_of(mine, one_host=party is None)
    containers = {
        service.name: container(
            federation, service, mine, jobs, reached[service.name], cuda=cuda, place=place
        )
        for service in mine
    }
    if party == SERVER:
        containers[SUPERLINK]["ports"] = [f"{place.port(SUPERLINK)}:{place.port(SUPERLINK)}"]
    return {
        "name": site.name if party is None else f"{site.name}-{party}",
        "services": jobs | containers,
        "networks": networks(reached, one_host=party is None),
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
    needed = {name: HEALTHY if name == SUPERLINK else STARTED for name in service.needs if name in here}
    after = {INIT: STOPPED} | needed
    if service.name != SUPERLINK and REGISTER in jobs:
        after[REGISTER] = STOPPED
    program, *arguments = service.command
    is_supernode = program == "flower-supernode"
    stock = {"image": flower_image(program.removeprefix("flower-"))}
    return {
        **(app_image(cuda) if service.runs_app else stock),
        **confined(program, memory_of(program, federation), gpus=cuda and service.runs_app),
        "entrypoint": ["sh", "-c", STARTED_AGAIN, program] if is_supernode else [program],
        "command": arguments,
        "restart": "unless-stopped",
        "depends_on": after,
        "networks": list(networks),
        "volumes": [
            bind(f"{root}/{service.name}/credentials", CREDENTIALS),
            *(folder_volume(service, folder, root, place or Containers()) for folder in service.folders),
        ],
        "healthcheck": {"test": ["CMD", *(NOT_REFUSED if is_supernode else ()), *service.probe], **HEALTH},
    }


def memory_of(program: str, federation: Federation) -> str:
    """Return the memory that a program needs: its own, and models of the largest size that is trained."""
    own, models = MEMORY[program]
    copies = models * (len(federation.nodes) if program == "flower-superlink" else 1)
    needed = own + copies * 4 * federation.parameters / 1e6
    return f"{ceil(needed / MEMORY_STEP_MB) * MEMORY_STEP_MB}M"


def confined(program: str, memory: str = JOB_MEMORY, *, gpus: bool = False) -> Tree:
    """Return the settings that confine a container: no root, no privileges, no writing, limits."""
    resources: Tree = {"limits": LIMITS[program] | {"memory": memory}}
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


def flower_image(program: str) -> str:
    """Return an image of Flower's, by its tag unless a variable names it, for instance by its digest."""
    return f"${{{program.upper()}_IMAGE:-flwr/{program}:{FLOWER_VERSION}}}"


def app_image(cuda: bool) -> Tree:
    """Return the image that holds the packages of the app; it is built from this checkout."""
    kind = "cuda" if cuda else "cpu"
    build = {
        "context": ".",
        "dockerfile": "deploy/Dockerfile",
        "args": {
            "SUPEREXEC_IMAGE": flower_image("superexec"),
            "TORCH_BACKEND": "" if cuda else "cpu",
            "VERSION": version("gdpfed"),
            "REVISION": "${REVISION:-unknown}",
        },
    }
    return {"image": f"gdpfed-app:{FLOWER_VERSION}-{kind}", "build": build}


def init_job(site: Site, party: str | None, image: Tree) -> Tree:
    """Return the job that makes the credentials; it runs as root, to give each file to its user.

    No other container is root. It has no network, and may only write and change owners and modes.
    """
    words = [
        "deploy.init",
        *site.words,
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
    return job(image, ["deploy.operate", "register", *_superlink(place), "--public", PUBLIC_PATH]) | {
        "depends_on": {SUPERLINK: HEALTHY},
        "networks": [SERVER],
        "volumes": [bind(f"{ROOT}/{PUBLIC}", PUBLIC_PATH)],
    }


def train_job(federation: Federation, site: Site, place: Containers, image: Tree) -> Tree:
    """Return the job that runs one training, when a person asks for it, with that person's overrides."""
    words = ["--nodes", str(len(federation.nodes)), "--runs", f"/{RUNS}"]
    words += ["--", *site.overrides, *secagg_words(federation, place)]
    return control_job(TRAIN, words, place, image)


def control_job(command: str, words: Sequence[str], place: Containers, image: Tree) -> Tree:
    """Return a job that asks the SuperLink for something when a person runs it; its profile has its name.

    It starts nothing else, and says in one line if there is no SuperLink.
    """
    return job(image, ["deploy.operate", command, *_superlink(place), *words]) | {
        "command": [],
        "profiles": [command],
        "networks": [SERVER],
        "volumes": [bind(f"{ROOT}/{PUBLIC}", PUBLIC_PATH)],
    }


def audit_job(mine: Sequence[Service], image: Tree) -> Tree:
    """Return the job that audits what is on this host: runs in ``/runs``, ledgers in ``/node-<i>``."""
    runs = [(service.name, RUNS, f"/{RUNS}") for service in mine if service.name == SERVER_SUPEREXEC]
    ledgers = [
        (service.name, LEDGER, f"/{service.party}")
        for service in mine
        for folder in service.folders
        if folder.name == LEDGER
    ]
    return job(image, ["gdpfed.cli", "audit"]) | {
        "command": [],
        "profiles": [AUDIT],
        "network_mode": "none",
        "volumes": [bind(f"{ROOT}/{name}/{folder}", target) for name, folder, target in [*runs, *ledgers]],
    }


def job(image: Tree, words: Sequence[str]) -> Tree:
    """Return a container that ends when its work is done."""
    return {**image, **confined("python"), "entrypoint": ["python", "-m", *words], "restart": "no"}


def bind(source: str, target: str, *, writable: bool = False, made: bool = True) -> Tree:
    """Mount a directory of the host; unless it must be there, init fills it once containers are made."""
    volume: Tree = {"type": "bind", "source": source, "target": target}
    return volume | ({} if writable else {"read_only": True}) | {"bind": {"create_host_path": made}}


def folder_volume(service: Service, folder: Folder, root: str, place: Containers) -> Tree:
    """Mount a folder of a service; ``NODE_0_DATA`` and so on say where the data of a node is."""
    source = f"{root}/{service.name}/{folder.name}"
    if folder.name == DATA:
        source = place.data_of(service.party, source)
    made = folder.name != DATA or service.party != place.alone
    return bind(source, f"/{folder.name}", writable=folder.writable, made=made)


def networks_of(mine: Sequence[Service], *, one_host: bool) -> dict[str, list[str]]:
    """Return the networks of each service; what runs the app reaches its own SuperLink or SuperNode only.

    On one host each SuperNode has a network with the SuperLink that no other is on. On several the way
    between them leads outside.
    """
    reached = {service.name: [service.party] for service in mine}
    for service in mine:
        if service.runs_app:
            continue
        if not one_host:
            reached[service.name].append(FEDERATION_NETWORK)
        elif service.name != SUPERLINK:
            way = f"{service.name}-{SUPERLINK}"
            reached[service.name].append(way)
            reached[SUPERLINK].append(way)
    return reached


def networks(reached: Mapping[str, Sequence[str]], *, one_host: bool) -> Tree:
    """Return the networks: none leads out of its host or to it, but the one between hosts.

    On one host they have small ranges of their own, since Docker's own ranges are few.
    """
    made: Tree = {}
    first = 0
    # In the order of the parties, so that a node's networks stay as they are when another is added.
    in_order = sorted(reached, key=SUPERLINK.__eq__)
    for name in dict.fromkeys(name for service in in_order for name in reached[service]):
        made[name] = {"internal": name != FEDERATION_NETWORK}
        if name != FEDERATION_NETWORK:
            made[name]["driver_opts"] = NO_HOST
        if one_host:
            bits = SERVER_BITS if name == SERVER else NODE_BITS
            subnet = f"{FIRST_BYTES}.{first >> 8}.{first & 255}/{bits}"
            made[name]["ipam"] = {"config": [{"subnet": subnet}]}
            first += 2 ** (32 - bits)
    return made


def _superlink(place: Containers) -> tuple[str, ...]:
    address = f"{SUPERLINK}:{place.port(SUPERLINK)}"
    return ("--superlink", address, "--ca", f"{PUBLIC_PATH}/{SUPERLINK_CA_FILE}")


class _Plain(yaml.SafeDumper):
    """A YAML writer that repeats a value instead of referring to its first place."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
