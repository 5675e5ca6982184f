"""What every container of a federation has, and the jobs: containers that end when their work is done."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import ceil
from typing import Any

from deploy.credentials import PUBLIC
from deploy.federation import Federation, TopologyError
from deploy.placements import CREDENTIALS, Containers
from deploy.probes import http_probe
from deploy.run_words import secagg_words, signed_words
from deploy.topology import (
    CONSORTIUM_FILE,
    DATA,
    ENVIRONMENT,
    GUARD,
    LEDGER,
    LEDGER_FILE,
    MAILBOX,
    RELAY,
    ROSTER_FILE,
    RUNS,
    SERVER,
    SERVER_SUPEREXEC,
    STATE,
    SUPERLINK,
    SUPERLINK_CA_FILE,
    Service,
)
from deploy.warm import WARM_VARIABLE
from gdpfed.child_process import LOG_VARIABLE
from gdpfed.cli.metrics_command import RUN_PORT
from gdpfed.cli.node_command import NODE_PORT
from gdpfed.runs.paths import FOLDERS

# Of uv.lock, as what the images hold; another Flower may be installed here.
FLOWER_VERSION = "1.41.0"
_BY_DIGEST = re.compile(r"[a-z0-9./:_-]+@sha256:[0-9a-f]{64}")
# The user that Flower's images are made for.
USER_ID = 49999
ROOT = "${FEDERATION_DIR:-./federation}"
INIT, REGISTER, TRAIN, NODES, FLWR, AUDIT = "init", "register", "train", "nodes", "flwr", "audit"
METRICS, LEDGER_METRICS = "metrics", "ledger-metrics"
PUBLIC_PATH = "/public"
HOME = "/tmp"  # noqa: S108 - a file system of the container's own, in memory
CONTAINER_ENVIRONMENT = ENVIRONMENT | {
    "FLWR_HOME": f"{HOME}/flower",
    "HOME": HOME,
    # All that whoever submits a run may name on the server.
    FOLDERS: f"/{RUNS}:/{DATA}:/{MAILBOX}:{CREDENTIALS}/{ROSTER_FILE}:{CREDENTIALS}/{CONSORTIUM_FILE}",
    "MPLCONFIGDIR": f"{HOME}/matplotlib",
    LOG_VARIABLE: f"${{{LOG_VARIABLE}:-}}",
    WARM_VARIABLE: f"${{{WARM_VARIABLE}:-}}",
    # Empty is off: every message starts a process, which would compile the app each time.
    "PYTHONDONTWRITEBYTECODE": "",
}
LIMITS = {
    "flower-superlink": {"cpus": "1.0", "pids": 256},
    "flower-supernode": {"cpus": "0.5", "pids": 128},
    "flower-superexec": {"cpus": "${APP_CPUS:-1.0}", "pids": 512},
    RELAY: {"cpus": "${APP_CPUS:-1.0}", "pids": 128},
    GUARD: {"cpus": "${APP_CPUS:-1.0}", "pids": 512},
    "python": {"cpus": "1.0", "pids": 256},
}
# MB of a program without a model, and how many models it holds at once, with room to spare;
# the SuperLink holds so many for every node.
MEMORY = {
    "flower-superlink": (512, 3),
    "flower-supernode": (400, 4),
    "flower-superexec": (2048, 32),
    RELAY: (768, 8),
    GUARD: (2048, 32),
    "python": (512, 0),
}
JOB_MEMORY = "1G"
MEMORY_STEP_MB = 256
GPUS = {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}
# Each probe starts Python: six nodes' probes at ten seconds took a good part of a small host's processors.
HEALTH = {"interval": "30s", "timeout": "20s", "retries": 3, "start_period": "60s"}
STOPPED, HEALTHY, STARTED = (
    {"condition": f"service_{state}"} for state in ("completed_successfully", "healthy", "started")
)


Tree = dict[str, Any]


@dataclass(frozen=True)
class Project:
    """The name that distinguishes one federation of an operator from others.

    `name`: of the Compose project, to which the party is added. `words`: by which `deploy.init` knows the
    federation. `overrides`: of every training of it.
    """

    name: str
    words: tuple[str, ...]
    overrides: tuple[str, ...]


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


def pinned(tree: Tree, variables: Mapping[str, str]) -> Tree:
    """Return a Compose file that names Flower's images by the digests which variables say.

    Raises TopologyError: a variable says none; its line names the command that prints it.
    """
    text = json.dumps(tree)
    for program in ("supernode", "superexec"):
        if (by_tag := flower_image(program)) in text:
            name = f"{program.upper()}_IMAGE"
            image = variables.get(name, "")
            if not _BY_DIGEST.fullmatch(image):
                raise TopologyError(
                    f"{name}={image} names no digest: set it to flwr/{program}@sha256:..., which "
                    f"docker buildx imagetools inspect flwr/{program}:{FLOWER_VERSION} prints"
                )
            text = text.replace(by_tag, image)
    by_digest: Tree = json.loads(text)
    return by_digest


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


def init_job(project: Project, party: str | None, image: Tree) -> Tree:
    """Return the job that makes the credentials; it runs as root, to give each file to its user.

    No other container is root. It has no network, and may only write and change owners and modes.
    """
    words = [
        "deploy.init",
        *project.words,
        "--directory",
        CREDENTIALS,
        "--owner",
        str(USER_ID),
    ]
    words += [
        "--superlink-host",
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


def train_job(federation: Federation, project: Project, place: Containers, image: Tree) -> Tree:
    """Return the job that runs one training, when a person asks for it, with that person's overrides."""
    words = ["--nodes", str(len(federation.nodes)), "--runs", f"/{RUNS}"]
    if federation.signed_apps:
        words += signed_words(PUBLIC_PATH, f"/{STATE}")
    words += ["--", *project.overrides, *secagg_words(federation, place)]
    made = control_job(TRAIN, words, place, image)
    if federation.signed_apps:
        made["volumes"].append(bind(f"{ROOT}/{SUPERLINK}/{STATE}", f"/{STATE}", writable=True))
    return made


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
    return job(image, ["gdpfed.cli", "audit"]) | {
        "command": [],
        "profiles": [AUDIT],
        "network_mode": "none",
        "volumes": [*_kept(mine, RUNS).values(), *_kept(mine, LEDGER).values()],
    }


def watch_jobs(mine: Sequence[Service], image: Tree) -> dict[str, Tree]:
    """Return the servers of figures, of runs and of ledgers, that the profile metrics starts.

    Both see their files alone, and only this host reaches them.
    """
    jobs = {}
    for name, words, port, kept in (
        (METRICS, ["metrics"], RUN_PORT, _kept(mine, RUNS)),
        (LEDGER_METRICS, ["node", "metrics"], NODE_PORT, _kept(mine, LEDGER)),
    ):
        if kept:
            files = [f"{target}/{LEDGER_FILE}" if name == LEDGER_METRICS else target for target in kept]
            health = http_probe(f"http://127.0.0.1:{port}/health")
            jobs[name] = job(image, ["gdpfed.cli", *words, "--listen", f"0.0.0.0:{port}", *files]) | {
                "restart": "unless-stopped",
                "profiles": [METRICS],
                "networks": [METRICS],
                "ports": [f"127.0.0.1:{port}:{port}"],
                "volumes": list(kept.values()),
                "healthcheck": {"test": ["CMD", *health], **HEALTH},
            }
    return jobs


def _kept(mine: Sequence[Service], name: str) -> dict[str, Tree]:
    """The folders of a name on this host, by where they are seen: runs in /runs, ledgers in /node-<i>."""
    kept = {}
    for service in mine:
        target = f"/{RUNS}" if name == RUNS else f"/{service.party}"
        for folder in service.folders:
            if folder.name == name and (name == LEDGER or service.name == SERVER_SUPEREXEC):
                kept[target] = bind(f"{ROOT}/{folder.of or service.name}/{name}", target)
    return kept


def job(image: Tree, words: Sequence[str]) -> Tree:
    """Return a container that ends when its work is done."""
    return {**image, **confined("python"), "entrypoint": ["python", "-m", *words], "restart": "no"}


def bind(source: str, target: str, *, writable: bool = False, made: bool = True) -> Tree:
    """Mount a directory of the host; unless it must be there, init fills it once containers are made."""
    volume: Tree = {"type": "bind", "source": source, "target": target}
    return volume | ({} if writable else {"read_only": True}) | {"bind": {"create_host_path": made}}


def _superlink(place: Containers) -> tuple[str, ...]:
    address = f"{SUPERLINK}:{place.port(SUPERLINK)}"
    return ("--superlink", address, "--ca", f"{PUBLIC_PATH}/{SUPERLINK_CA_FILE}")
