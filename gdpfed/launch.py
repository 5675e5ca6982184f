"""Start ``flwr run`` on the simulation backend in a Flower home of its own, and leave nothing behind.

Flower's own way keeps a SuperLink running between runs and its files in the user's home. Here everything
lives in a directory under the project that is removed at the end (a cache stays), and every process that
was started, by whatever way it detached itself, carries that directory in its environment and is ended
with it.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Self

import psutil

from gdpfed import CACHE

PROJECT = Path(__file__).resolve().parents[1]
HOMES = PROJECT / ".flwr"
FAILED_LOG = HOMES / "failed.log"
LOG_FILE = "flower.log"
START_SECONDS = 60.0
POLL_SECONDS = 0.25
END_SECONDS = 5.0
# The last line of an error that the project raised itself, as Python prints it.
_OWN_ERROR = re.compile(r"^(?:conf|gdpfed|server_app|client_app)\.[\w.]*Error: (.+)$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ANY_ERROR = re.compile(r"^[\w.]*(?:Error|Exception): (.+)$", re.MULTILINE)


class LaunchError(RuntimeError):
    """A run that did not start or did not end well; one line that says why."""


class Launch:
    """One ``flwr run`` under ``with``: entered, it is running; left, however, nothing of it runs any more.

    Args:
        app: directory of the Flower app.
        run_config: its run configuration.
        num_supernodes: how many nodes to simulate.
        log_directory: where Flower's log is kept if the directory exists at the end.
    """

    def __init__(
        self,
        app: Path,
        run_config: Mapping[str, str | int],
        *,
        num_supernodes: int,
        log_directory: Path | None = None,
    ) -> None:
        self.app = app
        self.run_config = dict(run_config)
        self.num_supernodes = num_supernodes
        self.log_directory = log_directory

    @classmethod
    def training(
        cls,
        overrides: Sequence[str],
        *,
        num_clients: int,
        directory: Path,
        resuming: bool,
        dataset_path: str | None = None,
    ) -> Self:
        """A training of this project with its files in ``directory``, a new one or one to continue.

        ``dataset_path`` is relative to the caller's working directory, which is not that of the run.
        """
        if not (PROJECT / "pyproject.toml").is_file():
            raise LaunchError(
                f"{PROJECT} holds no pyproject.toml: gdpfed run needs a checkout of the project, "
                "installed in place"
            )
        if not resuming and directory.is_dir() and any(directory.iterdir()):
            raise LaunchError(
                f"run.directory={directory} is not empty: name another one, or continue with run.resume"
            )
        key = "run.resume" if resuming else "run.directory"
        words = [*overrides, f"{key}={_hydra_string(str(directory))}"]
        if dataset_path is not None:
            absolute = Path(dataset_path).expanduser().absolute()
            words.append(f"dataset.path={_hydra_string(str(absolute))}")
        run_config = {"overrides": shlex.join(words)}
        return cls(PROJECT, run_config, num_supernodes=num_clients, log_directory=directory)

    def __enter__(self) -> Self:
        CACHE.mkdir(parents=True, exist_ok=True)
        self._home = Path(tempfile.mkdtemp(dir=HOMES))
        self._ray = Path(tempfile.mkdtemp(prefix="gdpfed-"))
        self._previous_handler = signal.signal(signal.SIGTERM, _interrupt)
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def running(self) -> bool:
        """Wait a moment; whether the run still goes on."""
        try:
            self._run.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return True
        return False

    def check(self) -> str:
        """After the end: Flower's log, kept in the log directory if there is one.

        Raises:
            LaunchError: the run failed; its own error line, or the end of the log and where it is kept.
        """
        log = self._read(LOG_FILE)
        own_errors, errors = _OWN_ERROR.findall(log), _ANY_ERROR.findall(log)
        if own_errors:
            raise LaunchError(own_errors[-1])
        if errors or self._run.returncode != 0:
            FAILED_LOG.write_text(log, encoding="utf-8")
            raise LaunchError(f"{errors[-1] if errors else _last_line(log)} (Flower's log: {FAILED_LOG})")
        if self.log_directory is not None and self.log_directory.is_dir():
            with (self.log_directory / LOG_FILE).open("a", encoding="utf-8") as file:
                file.write(log)
        return log

    def _read(self, name: str) -> str:
        text = (self._home / name).read_text(encoding="utf-8", errors="replace")
        return _COLOUR.sub("", text)

    def _start(self) -> None:
        runtime, control = _free_ports(2)
        (self._home / "config.toml").write_text(
            '[superlink]\ndefault = "local"\n\n'
            f'[superlink.local]\naddress = "127.0.0.1:{runtime}"\ninsecure = true\n',
            encoding="utf-8",
        )
        run_config = self._home / "run-config.toml"
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in self.run_config.items()]
        run_config.write_text("".join(lines), encoding="utf-8")
        self._superlink = self._spawn(
            "superlink.log",
            *("flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"),
            *("--host", "127.0.0.1", "--port", str(runtime)),
            *("--control-api-address", f"127.0.0.1:{control}"),
        )
        self._wait_until_healthy(runtime)
        federation = f"num-supernodes={self.num_supernodes} client-resources-num-cpus=1"
        self._run = self._spawn(
            LOG_FILE,
            *("flwr", "run", str(self.app), "local", "--stream"),
            *("--federation-config", federation, "--run-config", str(run_config)),
        )

    def _spawn(self, log: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of this environment, away from the terminal's signals."""
        executable = Path(sys.executable).with_name(program)
        with (self._home / log).open("wb") as output:
            return subprocess.Popen(  # noqa: S603 - our own programs
                [str(executable), *arguments],
                env=self._environment(),
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        bin_directory = str(Path(sys.executable).parent)
        return os.environ | {
            "PATH": f"{bin_directory}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self._home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "XDG_CACHE_HOME": str(CACHE),
            "XDG_CONFIG_HOME": str(CACHE),
            "MPLCONFIGDIR": str(CACHE),
            "RAY_TMPDIR": str(self._ray),
            "RAY_USAGE_STATS_ENABLED": "0",
            "NO_COLOR": "1",
        }

    def _wait_until_healthy(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._superlink.poll() is None:
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                return
            time.sleep(POLL_SECONDS)
        raise LaunchError(f"Flower's SuperLink did not start: {_last_line(self._read('superlink.log'))}")

    def _end(self) -> None:
        """End every process of this run and remove its home; a second interrupt does not stop this."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for end in (psutil.Process.terminate, psutil.Process.kill):
                processes = list(self._processes())
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        end(process)
                psutil.wait_procs(processes, timeout=END_SECONDS)
            shutil.rmtree(self._home, ignore_errors=True)
            shutil.rmtree(self._ray, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, interrupt)
            signal.signal(signal.SIGTERM, self._previous_handler)

    def _processes(self) -> Iterator[psutil.Process]:
        """Every process that this launch has started, directly or not."""
        own = os.getpid()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != own and process.environ().get("FLWR_HOME") == str(self._home):
                    yield process


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _hydra_string(text: str) -> str:
    """A quoted value in Hydra's override grammar."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
