"""Start ``flwr run`` on the simulation backend in a Flower home of its own, and leave nothing behind.

Flower's own way keeps a SuperLink running between runs and its files in the user's home. Here everything
lives in a :class:`~gdpfed.launch.home.FlowerHome` that is removed at the end (a cache stays).
"""

import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from conf.load import hydra_string
from gdpfed.errors import LaunchError
from gdpfed.launch.flower_run import (
    POLL_SECONDS,
    FlowerRun,
    run_command,
    training_config,
    write_connection,
)
from gdpfed.launch.home import PROJECT, FlowerHome, free_ports, last_line
from gdpfed.runs.paths import user_path

SUPERLINK_LOG = "superlink.log"
START_SECONDS = 60.0


class Launch:
    """One ``flwr run`` for a ``with`` block: it runs inside, and all its processes end with the block.

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
        dataset_path: str | None = None,
        workers: int | None = None,
    ) -> Self:
        """A training of this project with its files in ``directory``, a new one or one to continue.

        ``dataset_path`` is relative to the caller's working directory, which is not that of the run. Raises
        LaunchError: this is no checkout of the project.
        """
        words = list(overrides)
        if dataset_path is not None:
            words.append(f"dataset.path={hydra_string(str(user_path(dataset_path)))}")
        run_config = training_config(words, directory=directory, resuming=resuming)
        return cls(PROJECT, run_config, num_supernodes=num_clients, workers=workers, log_directory=directory)

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
        """Wait a moment; whether the run still goes on."""
        return self._run.running()

    def check(self) -> str:
        """After the end: Flower's log, see :meth:`~gdpfed.launch.flower_run.FlowerRun.check`."""
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
            environment={"RAY_TMPDIR": self._ray, "RAY_USAGE_STATS_ENABLED": "0"},
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
