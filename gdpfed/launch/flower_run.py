"""Submit ``flwr run`` in a temporary Flower folder, follow the run, and say in one line why it failed.

Flower's own way keeps a SuperLink running between runs and its files in the user's home. Here everything
lives in a :class:`~gdpfed.launch.home.FlowerHome` that is removed at the end (a cache stays).
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

from conf.load import hydra_string
from gdpfed.child_process import RAY_HOOK
from gdpfed.errors import LaunchError
from gdpfed.installed import SOURCES
from gdpfed.launch.home import HOMES, FlowerHome, free_ports, last_line
from gdpfed.runs.paths import absolute_path, below

CONNECTION = "federation"
FAILED_LOG = HOMES / "failed.log"
LOG_FILE = "flower.log"
POLL_SECONDS = 0.25
# An error that the project raised itself: as its processes log it, or the last line as Python prints it.
_OWN_ERROR = re.compile(
    r"^(?:ERROR .*?: +gdpfed: |(?:conf|gdpfed|server_app|client_app)\.[\w.]*Error: )(.+)$", re.MULTILINE
)
_ANY_ERROR = re.compile(r"^[\w.]*(?:Error|Exception): (.+)$", re.MULTILINE)


class FlowerRun:
    """A run submitted to ``flwr run``, whose log goes to a file.

    `home`: where the process lives and the log is written. `command`: what submits the run and ends with it,
    as :func:`run_command` makes it. `folder`: of the home, to live in. `log_directory`: where the log is kept
    if the directory exists at the end.
    """

    def __init__(
        self, home: FlowerHome, command: Sequence[str], *, folder: str = "", log_directory: Path | None = None
    ) -> None:
        self.home = home
        self.log_directory = log_directory
        (home.path / LOG_FILE).unlink(missing_ok=True)
        self._process = home.spawn(command, log=LOG_FILE, folder=folder)

    def running(self) -> bool:
        """Wait a moment, and return whether the run still goes on."""
        try:
            self._process.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return True
        return False

    def check(self) -> str:
        """Check that the ended run succeeded; return Flower's log.

        Raises LaunchError: the run failed; its own error line, or the end of the log and where it is kept.
        """
        log = self.home.read(LOG_FILE)
        if self.log_directory is not None and self.log_directory.is_dir():
            with (self.log_directory / LOG_FILE).open("a", encoding="utf-8") as file:
                file.write(log)
        own_errors, errors = _OWN_ERROR.findall(log), _ANY_ERROR.findall(log)
        if own_errors:
            raise LaunchError(own_errors[-1])
        if errors or self._process.returncode != 0:
            FAILED_LOG.write_text(log, encoding="utf-8")
            raise LaunchError(f"{errors[-1] if errors else last_line(log)} (Flower's log: {FAILED_LOG})")
        return log


def run_command(
    flower_home: Path, app: Path, run_config: Mapping[str, str | int], *, federation_config: str | None = None
) -> list[str]:
    """Copy an app and write its configuration to a Flower folder; return the ``flwr run`` command for it.

    `flower_home`: where the run configuration is written, since a command line cannot hold every string, and
    the files of the app. `app`: directory of the Flower app. `run_config`: its run configuration.
    `federation_config`: how a simulation is made, nothing for real nodes.
    """
    file = flower_home / "run-config.toml"
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in run_config.items()]
    file.write_text("".join(lines), encoding="utf-8")
    copy = copy_app(app, flower_home / "app")
    words = ["flwr", "run", str(copy), CONNECTION, "--stream", "--run-config", str(file)]
    return words if federation_config is None else [*words, "--federation-config", federation_config]


def copy_app(app: Path, copy: Path) -> Path:
    """Copy those files of an app that Flower sends to every node; return the folder with the copies.

    ``flwr run`` looks at every file below the app's directory before it leaves one out: an environment, data
    and runs in a checkout cost it 10 to 20 seconds.

    `app`: directory of the app; one that does not name its files by ``fab-include`` is returned as it is.
    `copy`: directory that is made anew.
    """
    settings = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["flwr"]["app"].get("fab-include")
    if patterns is None:
        return app
    if copy.exists():
        shutil.rmtree(copy)
    for file in (app / "pyproject.toml", *(file for pattern in patterns for file in app.glob(pattern))):
        target = copy / file.relative_to(app)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return copy


def write_connection(flower_home: Path, address: str, root_certificates: Path | None) -> None:
    """Write the address of the SuperLink into a Flower folder; without certificates, TLS is off."""
    security = (
        "insecure = true"
        if root_certificates is None
        else f"root-certificates = {json.dumps(str(root_certificates))}"
    )
    lines = (f"[superlink.{CONNECTION}]", f'address = "{address}"', security)
    default = f'[superlink]\ndefault = "{CONNECTION}"\n'
    (flower_home / "config.toml").write_text("\n".join([default, *lines, ""]), encoding="utf-8")


def training_config(overrides: Sequence[str], *, directory: Path, resuming: bool) -> dict[str, str | int]:
    """Return Flower's run configuration for a new or resumed training with its files in ``directory``.

    The directory is the server's, which may be on another host, so only the server can check it. Raises
    LaunchError: this is not a checkout of the project.
    """
    if not (SOURCES / "pyproject.toml").is_file():
        raise LaunchError(
            f"{SOURCES} holds no pyproject.toml: training over Flower needs a checkout of the project, from "
            "which Flower takes the app; 'gdpfed simulate' needs none"
        )
    key = "run.resume" if resuming else "run.directory"
    return {"overrides": shlex.join([*overrides, f"{key}={hydra_string(str(directory))}"])}


SUPERLINK_LOG = "superlink.log"
START_SECONDS = 60.0


class Launch:
    """Runs ``flwr run`` in a ``with`` block; all processes of the run end with the block.

    `app`: directory of the Flower app. `run_config`: its run configuration. `num_supernodes`: how many nodes
    to simulate. `workers`: in how many processes; None for one a core. `log_directory`: where Flower's log is
    kept if the directory exists at the end.
    """

    def __init__(
        self,
        app: Path,
        run_config: Mapping[str, str | int],
        *,
        num_supernodes: int,
        workers: int | None = None,
        log_directory: Path | None = None,
    ) -> None:
        self.app = app
        self.run_config = dict(run_config)
        self.num_supernodes = num_supernodes
        self.cores_a_worker = 1 if workers is None else max(1, (os.cpu_count() or 1) // workers)
        self.log_directory = log_directory

    @classmethod
    def training(
        cls,
        overrides: Sequence[str],
        *,
        num_clients: int,
        directory: Path,
        resuming: bool,
        files: Mapping[str, str | None] = MappingProxyType({}),
        workers: int | None = None,
    ) -> Self:
        """Prepare a new or resumed training over Flower whose files go to ``directory``.

        ``files`` are what settings of a resumed run name. They and those of the overrides are relative to the
        caller's working directory, which is not that of the run. Raises LaunchError: it is not a checkout of
        the project.
        """
        words = below(Path.cwd(), overrides)
        for key, file in files.items():
            if file is not None:
                words.append(f"{key}={hydra_string(str(absolute_path(file)))}")
        run_config = training_config(words, directory=directory, resuming=resuming)
        return cls(SOURCES, run_config, num_supernodes=num_clients, workers=workers, log_directory=directory)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            ray = tempfile.TemporaryDirectory(prefix="gdpfed-", ignore_cleanup_errors=True)
            self._ray = stack.enter_context(ray)
            self._home = stack.enter_context(FlowerHome())
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def running(self) -> bool:
        """Wait a moment, and return whether the run still goes on."""
        return self._run.running()

    def check(self) -> str:
        """Check that the ended run succeeded; return Flower's log."""
        return self._run.check()

    def _start(self) -> None:
        runtime, control = free_ports(2)
        write_connection(self._home.path, f"127.0.0.1:{runtime}", None)
        superlink = self._home.spawn(
            [
                *("flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"),
                *("--host", "127.0.0.1", "--port", str(runtime)),
                *("--control-api-address", f"127.0.0.1:{control}"),
            ],
            log=SUPERLINK_LOG,
            environment={"RAY_TMPDIR": self._ray, "RAY_USAGE_STATS_ENABLED": "0", **RAY_HOOK},
            ends_with_this=True,
        )
        self._wait_until_healthy(superlink, runtime)
        command = run_command(
            self._home.path,
            self.app,
            self.run_config,
            federation_config=(
                f"num-supernodes={self.num_supernodes} client-resources-num-cpus={self.cores_a_worker}"
            ),
        )
        self._run = FlowerRun(self._home, command, log_directory=self.log_directory)

    def _wait_until_healthy(self, superlink: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and superlink.poll() is None:
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                return
            time.sleep(POLL_SECONDS)
        raise LaunchError(f"Flower's SuperLink did not start: {last_line(self._home.read(SUPERLINK_LOG))}")
