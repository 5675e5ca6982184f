"""A temporary folder for Flower's processes; at the end these processes and the folder are removed.

Flower's programs start others and let some of them outlive themselves. Whatever was started here, by
whatever way it detached itself, carries a directory under this home in its environment and is ended with it.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Self

import psutil

from gdpfed.child_process import LOG_VARIABLE
from gdpfed.errors import LaunchError
from gdpfed.installed import SOURCES

CACHE = SOURCES / ".flwr" / "cache"
HOMES_VARIABLE = "GDPFED_FLOWER_HOMES"
"""The environment variable with the place for temporary Flower folders; by default the source tree."""
HOMES = Path(os.environ.get(HOMES_VARIABLE, SOURCES / ".flwr")).absolute()
END_SECONDS = 5.0
# Flower starts a process for every message: one that may keep no bytecode compiles the app each time. And the
# logs of these programs are read here, as text.
_NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", LOG_VARIABLE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_KEEP_OUT_OF_THE_USERS_HOME = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "XDG_CACHE_HOME": str(CACHE),
    "XDG_CONFIG_HOME": str(CACHE),
    "MPLCONFIGDIR": str(CACHE),
    "NO_COLOR": "1",
}


class FlowerHome:
    """A temporary folder for Flower's processes in a ``with`` block, which ends them and deletes the folder.

    `path`: the directory; ``FLWR_HOME`` of what is started in it, unless a folder of it is named.
    """

    path: Path

    def __enter__(self) -> Self:
        for directory in (CACHE, HOMES):
            directory.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(dir=HOMES))
        self._started: list[tuple[Path, subprocess.Popen[bytes]]] = []
        self._previous_handler = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        """End every process and remove the directory, even if a second interrupt (Ctrl-C) arrives."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.end()
            for _, process in self._started:
                process.poll()  # takes note of its end, so that nothing is left to be warned of
            shutil.rmtree(self.path, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, interrupt)
            signal.signal(signal.SIGTERM, self._previous_handler)

    def end(self, folder: str = "") -> None:
        """End every process that runs in ``folder``, by SIGTERM, or by SIGKILL if the process goes on."""
        for end in (psutil.Process.terminate, psutil.Process.kill):
            processes = list(self.processes(folder))
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    end(process)
            psutil.wait_procs(processes, timeout=END_SECONDS)

    def kill(self, folder: str = "") -> None:
        """Send only SIGKILL (no SIGTERM first) to every process that runs in ``folder``."""
        processes = list(self.processes(folder))
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=END_SECONDS)

    def spawn(
        self,
        command: Sequence[str],
        *,
        log: str,
        folder: str = "",
        environment: Mapping[str, str] | None = None,
        ends_with_this: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a program of this Python environment in a new session: Ctrl-C does not end the program.

        `command`: the program's name and its arguments. `log`: file under ``path`` to which its output is
        appended. `folder`: folder of ``path`` that is its ``FLWR_HOME``. `environment`: further variables.
        `ends_with_this`: whether on Linux it ends, too, when this process is killed; this thread starts it.

        Raises LaunchError: there is no such program.
        """
        program, *arguments = command
        file = Path(sys.executable).with_name(program)
        if not file.exists():
            raise LaunchError(f"{file} is not there: install Flower, flwr; 'gdpfed simulate' needs none")
        first = [sys.executable, "-m", "gdpfed.child_process", str(os.getpid())] if ends_with_this else []
        home = self.path / folder
        home.mkdir(parents=True, exist_ok=True)
        with (self.path / log).open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - our own programs
                [*first, str(file), *arguments],
                env=self.environment(home) | dict(environment or {}),
                cwd=SOURCES,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append((home, process))
        return process

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment variables for a program to start, with ``FLWR_HOME`` set to ``home``."""
        bin_directory = str(Path(sys.executable).parent)
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        return inherited | {
            **_KEEP_OUT_OF_THE_USERS_HOME,
            "PATH": f"{bin_directory}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(home),
        }

    def read(self, log: str) -> str:
        """Return what a program has written to its log so far, without colours."""
        return _COLOUR.sub("", (self.path / log).read_text(encoding="utf-8", errors="replace"))

    def processes(self, folder: str = "") -> Iterator[psutil.Process]:
        """Yield all processes but this one with FLWR_HOME at or below ``folder`` in the temporary folder."""
        own, root = os.getpid(), self.path / folder
        # A guard shows its environment to nobody, so what was started here is known by itself.
        started = {each.pid: home for home, each in self._started if each.poll() is None}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                home = started.get(process.pid) or process.environ().get("FLWR_HOME")
                if process.pid != own and home and Path(home).is_relative_to(root):
                    yield process


def last_line(text: str) -> str:
    """Return the last non-empty line of a text, or the words "it printed nothing" if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
