"""Run a federation's services as processes on this machine, with the commands of the containers."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml

from deploy.confine import confined
from deploy.credentials import Store
from deploy.federation import Federation, Node
from deploy.init import provide_demo_data
from deploy.placements import Loopback
from deploy.run_words import secagg_words, signed_words
from deploy.services import TASK_POLL_VARIABLE, flower_environment, services
from deploy.stored_app import provide_signature
from deploy.superlink_client import SuperLinkClient
from deploy.topology import (
    DATA,
    LEDGER,
    LEDGER_FILE,
    MAILBOX,
    PUBLIC,
    RUNS,
    SERVER_SUPEREXEC,
    STATE,
    SUPERLINK,
    SUPERLINK_CA_FILE,
    Service,
    credentials_of,
)
from deploy.warm import WARM_VARIABLE
from gdpfed.errors import LaunchError
from gdpfed.installed import SOURCES
from gdpfed.launch.flower_run import FlowerRun
from gdpfed.launch.home import FlowerHome, last_line
from gdpfed.learning.data.declaration import COLUMNS_FILE
from gdpfed.learning.data.file_form import FILES_FILE, FileForm, is_table, own_form, table_name
from gdpfed.runs.file_formats import CONFIG_FILE
from gdpfed.runs.paths import ADDRESSES, named_paths
from gdpfed.yaml_files import read_yaml

POLL_SECONDS = 0.25
# A question for work takes some 8 ms of a processor, which all nodes share here.
NODE_POLL_SECONDS = 0.025
START_SECONDS = 180.0
OPERATE_LOG = "operate.log"
OPERATOR = "operator"
DATASETS = SOURCES / "data"
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
OWN_FOLDERS = ("HOME", "TMPDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME")
# Where Flower's files are, how the app is started, and how many cores, GPUs and libraries it takes.
VARIABLES = (
    *("FLWR_HOME", "NO_COLOR", WARM_VARIABLE, "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
)


@dataclass(frozen=True)
class Named:
    """The files, ports and environment variables that a ServerApp needs for a training with given settings.

    `reads`, `writes`: files. `connects`: ports. `variables`: of the environment, by which a tracker is used.
    """

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    connects: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()

    @classmethod
    def by(cls, overrides: Sequence[str], *writes: Path) -> Self:
        """Return what these settings (key=value) need: existing data files, and access to an MLflow server.

        The access is a port, and environment variables for MLflow and certificates.
        """
        paths = named_paths(overrides)
        reads = [Path(value) for key, value in paths.items() if key.startswith(("dataset.", "privacy."))]
        address = paths.get("run.mlflow", "")
        port = urlsplit(address).port or (443 if address.startswith("https:") else 80)
        connects = (port,) if address.startswith(ADDRESSES) else ()
        known = [name for name in os.environ if name.startswith("MLFLOW_") or name in CERTIFICATES]
        variables = tuple(known) if connects else ()
        return cls(tuple(path for path in reads if path.exists()), writes, connects, variables)


def copy_examples(file: Path, own: Path) -> None:
    """Copy a node's data file and, for a table, the files that say how to read the table.

    The database of a query comes along, unless it is on a server.

    Raises LearningError: what says how the table is read is damaged.
    """
    shutil.copy(file, own)
    declaration, forms = file.with_name(COLUMNS_FILE), file.with_name(FILES_FILE)
    if declaration.is_file():
        shutil.copy(declaration, own.with_name(COLUMNS_FILE))
    if not is_table(file) or own_form(file) == FileForm():
        return
    form = read_yaml(forms.read_text(), as_texts=True)[table_name(file)]
    database = file.parent / form.get("database", "")
    if "database" in form and database.exists():
        (shutil.copytree if database.is_dir() else shutil.copy)(database, own.parent / database.name)
        form["database"] = database.name
    own.with_name(FILES_FILE).write_text(yaml.safe_dump({table_name(own): form}))


class LoopbackFederation:
    """Runs a federation on this machine; leaving the ``with`` block removes its processes and files.

    Args:
        files: of examples, one a node; without them every node has a part of the digits.
        named: what the server's app may reach beyond its own folders.

    The programs that run the app reach their own files and ports alone, where the kernel can hold them to
    that, unless nodes are to have no guard.

    `home`: holds everything, logs included, while it runs. `place`: ports and directories. `services`: by
    name. `processes`: the running program of every service. `walled`: whether the app is confined.
    """

    def __init__(
        self, federation: Federation, files: Sequence[Path] = (), named: Named | None = None
    ) -> None:
        self.federation = federation
        self._files = files
        self._named = named or Named()
        self.walled = not federation.unguarded
        self.home = FlowerHome()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.home.__enter__()
        try:
            self.place = Loopback.on_free_ports(self.home.path, self.federation)
            self.services: dict[str, Service] = {s.name: s for s in services(self.federation, self.place)}
            store = Store(self.home.path)
            store.provide(list(self.services.values()))
            if self.federation.signed_apps:
                provide_signature(store)
            for node, file in zip(self.federation.nodes, self._files, strict=bool(self._files)):
                own = Path(self.place.folder(node.superexec, DATA)) / self.federation.examples
                copy_examples(file, own)
            provide_demo_data(self.home.path, self.federation)
            self._start_all()
        except BaseException:
            self.home.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.home.__exit__(*error)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that every service gets."""
        usual = flower_environment()
        seconds = max(float(usual[TASK_POLL_VARIABLE]), NODE_POLL_SECONDS * len(self.federation.nodes))
        return usual | {TASK_POLL_VARIABLE: f"{seconds:g}"}

    def start(self, name: str) -> None:
        """Start a service of the federation that is not running."""
        command, environment, folder = self.services[name].command, self.environment, f"{name}/home"
        if self.services[name].runs_app and self.walled:
            environment = environment | dict.fromkeys(OWN_FOLDERS, str(self.home.path / folder))
            command = self.behind_the_wall(name, command, [*environment, *VARIABLES])
        self.processes[name] = self.home.spawn(
            command, log=f"{name}.log", folder=folder, environment=environment
        )

    def behind_the_wall(
        self, name: str, command: Sequence[str], variables: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """Return a command that confines a service's program to the files it needs.

        `variables`: those that it gets of its environment, beside what every confined program does.
        """
        service, named = self.services[name], self._named if name == SERVER_SUPEREXEC else Named()
        folders = [(self.place.folder(each.of or name, each.name), each.writable) for each in service.folders]
        program, *words = command
        if words[:1] == ["-m"]:
            # The folder of the project, where Python would look for a module, holds the nodes' files, too.
            _, module, *words = words
            words = [str(SOURCES / f"{module.replace('.', '/')}.py"), *words]
        return confined(
            (program, *words),
            read=[
                *(path for path, writable in folders if not writable),
                *(credentials_of(self.home.path, name), SOURCES / "deploy", *named.reads),
                *((DATASETS,) if DATASETS.exists() else ()),
            ],
            write=[
                self.home.path / name / "home",
                *(path for path, writable in folders if writable),
                *named.writes,
            ],
            connect=[*(self.place.port(each) for each in service.needs), *named.connects],
            bind=[self.place.port(name)],
            variable=[*variables, *named.variables],
        )

    def kill(self, name: str) -> None:
        """Kill a service and all processes that it started."""
        self.home.kill(f"{name}/home")

    def healthy(self, name: str) -> bool:
        """Run the health check of a service; return whether it succeeds."""
        _, *arguments = self.services[name].probe
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, *arguments],
            env=os.environ | self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode == 0

    def wait_until_healthy(self, name: str) -> None:
        """Return once a service is healthy; raises LaunchError if it ends or stays unhealthy."""
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy(name):
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise LaunchError(f"{name} did not start: {last_line(self.log(name))}")
            time.sleep(POLL_SECONDS)

    def log(self, name: str) -> str:
        """Return what a service has printed."""
        return self.home.read(f"{name}.log")

    def operate(self, command: str, *words: str) -> None:
        """Run a ``deploy.operate`` command to its end.

        Raises LaunchError: it failed; its last line.
        """
        process = self.home.spawn(self.operate_words(command, *words), log=OPERATE_LOG, folder=OPERATOR)
        if process.wait() != 0:
            raise LaunchError(last_line(self.home.read(OPERATE_LOG)))

    def superlink_client(self) -> SuperLinkClient:
        """Return a client of the control API of this federation's SuperLink."""
        address = f"{self.place.host(SUPERLINK)}:{self.place.port(SUPERLINK)}"
        return SuperLinkClient(
            self.home.path / OPERATOR, address, self.home.path / PUBLIC / SUPERLINK_CA_FILE
        )

    def operate_words(self, command: str, *words: str) -> list[str]:
        """Return the command line of ``deploy.operate`` for this federation."""
        return [
            *("python", "-m", "deploy.operate", command),
            *("--superlink", f"{self.place.host(SUPERLINK)}:{self.place.port(SUPERLINK)}"),
            *("--ca", str(self.home.path / PUBLIC / SUPERLINK_CA_FILE)),
            *words,
        ]

    def _start_all(self) -> None:
        self.start(SUPERLINK)
        self.wait_until_healthy(SUPERLINK)
        self.operate("register", "--public", str(self.home.path / PUBLIC))
        for name in self.services:
            if name != SUPERLINK:
                self.start(name)
        for service in self.services.values():
            if service.offline:
                self.wait_until_healthy(service.name)
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        """Return once every node is online."""
        self.operate("wait", "--nodes", str(len(self.federation.nodes)))

    def ledger_of(self, node: Node) -> Path:
        """Return the file in which a node keeps the ledger of its budget."""
        return Path(self.place.folder(node.superexec, LEDGER)) / LEDGER_FILE

    def mailbox_of(self, node: Node) -> Path:
        """Return the folder that an edge server's client shares with the edge server's run."""
        return Path(self.place.folder(node.superexec, MAILBOX))

    @property
    def runs(self) -> Path:
        """The directory of the server's runs."""
        return Path(self.place.folder(SERVER_SUPEREXEC, RUNS))

    def _signed_words(self) -> tuple[str, ...]:
        """Return the options with which a training runs the signed app; empty if apps are not signed."""
        if not self.federation.signed_apps:
            return ()
        return signed_words(str(self.home.path / PUBLIC), self.place.folder(SUPERLINK, STATE))

    def train(self, name: str, overrides: Sequence[str]) -> FlowerRun:
        """Submit a training with its files in ``runs / name``; an existing run is continued."""
        resuming = (self.runs / name / CONFIG_FILE).exists()
        nodes = str(len(self.federation.nodes))
        where = f"{'run.resume' if resuming else 'run.directory'}={name}"
        words = self.operate_words(
            *("train", "--nodes", nodes, "--runs", str(self.runs), *self._signed_words(), "--"),
            *(*overrides, *secagg_words(self.federation, self.place), where),
        )
        return FlowerRun(self.home, words, folder=OPERATOR, log_directory=self.runs / name)
