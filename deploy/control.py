"""``python -m deploy.control``: register nodes, wait for nodes, train.

The operator of the server runs it. It calls ``flwr``, with a connection that it writes into ``FLWR_HOME``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from conf.schema import CLIENTS
from deploy.options import exit_status
from deploy.topology import Federation
from gdpfed.errors import FailedError
from gdpfed.launch.flower_run import CONNECTION, run_command, training_config, write_connection
from gdpfed.launch.home import PROJECT
from gdpfed.runs.records import run_path

FLWR = Path(sys.executable).with_name("flwr")
POLL_SECONDS = 0.5
WAIT_SECONDS = 180.0
FINISHED = "finished:"
COMPLETED = f"{FINISHED}completed"
_STARTED = re.compile(r"Successfully started run (\d+)")
ALREADY_REGISTERED = "already in use"
# One sum over all nodes, who all take part: in a sum of two neither would be hidden from the other. Each
# group has a clipping norm of its own in it, as its members' budgets allow.
FEW_NODES = (
    "method=idp_fedavg_scale",
    f"privacy.budgets={CLIENTS}",
    "privacy.sampling_rate=1",
    "run.num_rounds=2",
    "secagg.dropout_tolerance=0.2",
)


class ControlError(FailedError):
    """The SuperLink refused something, or did not answer."""


@dataclass(frozen=True)
class Control:
    """A client of the SuperLink's control API, with its files in one Flower home.

    Attributes:
        flower_home: where the connection is written; made if it is missing.
        superlink: host and port.
        root_certificates: whom to trust.
    """

    flower_home: Path
    superlink: str
    root_certificates: Path

    def connect(self) -> None:
        """Write the connection."""
        if not self.root_certificates.is_file():
            raise ControlError(f"--ca {self.root_certificates} is no file: run python -m deploy.init first")
        self.flower_home.mkdir(parents=True, exist_ok=True)
        write_connection(self.flower_home, self.superlink, self.root_certificates.absolute())

    def register(self, public: Path) -> list[str]:
        """Register every ``*.pub`` of a directory by its name; returns the names that were new.

        Raises:
            ControlError: a key that the SuperLink refuses, but not one that it knows already.
        """
        keys = sorted(public.glob("*.pub"))
        if not keys:
            raise ControlError(f"{public} holds no node's public key (*.pub)")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            fresh = list(pool.map(self._register, keys))
        return [key.stem for key, new in zip(keys, fresh, strict=True) if new]

    def _register(self, key: Path) -> bool:
        """Register a key; return whether it is new to the SuperLink."""
        try:
            self._flwr("supernode", "register", str(key), CONNECTION, "--name", key.stem)
        except ControlError as error:
            if ALREADY_REGISTERED not in str(error):
                raise ControlError(f"{key}: {error}") from None
            return False
        return True

    def wait(self, num_nodes: int, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Return once ``num_nodes`` nodes are online.

        Raises:
            ControlError: there are fewer after the timeout, or the SuperLink does not answer.
        """
        deadline = time.monotonic() + timeout_seconds
        while (online := self.online()) < num_nodes:
            if time.monotonic() > deadline:
                raise ControlError(
                    f"{online} of {num_nodes} nodes are online after {timeout_seconds:g} s: "
                    "look at the logs of the SuperNodes"
                )
            time.sleep(POLL_SECONDS)

    def online(self) -> int:
        """Return how many nodes are online."""
        listing = json.loads(self._flwr("supernode", "list", CONNECTION, "--format", "json"))
        return sum(node["status"] == "online" for node in listing["nodes"])

    def follow(self, command: Sequence[str]) -> None:
        """Submit a run, print its log, and ask the SuperLink how the run ended.

        The log of a killed ServerApp just stops. If the SuperLink is restarted during the run, the
        log goes on where it stopped.

        Raises:
            ControlError: it was refused, or ended otherwise than by itself.
        """
        run_id, shown = None, 0
        for line in self._lines(*command[1:]):
            print(line, end="", flush=True)
            started = _STARTED.search(line)
            run_id, shown = (started[1], 0) if started else (run_id, shown + 1)
        if run_id is None:
            raise ControlError("Flower did not take the run: its words are above")
        while not (run := self._run(run_id))["status"].startswith(FINISHED):
            print(f"the SuperLink has broken off the log of run {run_id}, which goes on", flush=True)
            for line in islice(self._lines("log", run_id, CONNECTION, "--stream"), shown, None):
                print(line, end="", flush=True)
                shown += 1
        if run["status"] != COMPLETED:
            raise ControlError(
                f"run {run_id} ended as {run['status']} ({run['status-details'] or 'no details'}); "
                "if it had begun, continue it with run.resume=<its directory>"
            )

    def _run(self, run_id: str) -> dict[str, str]:
        """Ask the SuperLink for the status of a run until it answers.

        Raises:
            ControlError: it does not answer in time.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                listing = json.loads(self._flwr("list", CONNECTION, "--run-id", run_id, "--format", "json"))
                run: dict[str, str] = listing["runs"][0]
            except (ControlError, ValueError, LookupError) as error:
                if time.monotonic() > deadline:
                    raise ControlError(
                        f"the SuperLink has not answered for {WAIT_SECONDS:g} s ({error!r}): start it again "
                        f"and see what became of run {run_id} with flwr list"
                    ) from None
                time.sleep(POLL_SECONDS)
            else:
                return run

    def _lines(self, *words: str) -> Iterator[str]:
        """Yield what one ``flwr`` command prints, line by line."""
        with subprocess.Popen(  # noqa: S603 - our own program
            [str(FLWR), *words], env=self._environment(), stdout=subprocess.PIPE, text=True
        ) as process:
            yield from process.stdout or ()

    def _environment(self) -> dict[str, str]:
        return os.environ | {"FLWR_HOME": str(self.flower_home)}

    def _flwr(self, *words: str) -> str:
        """Return what one ``flwr`` command prints."""
        done = subprocess.run(  # noqa: S603 - our own program
            [str(FLWR), *words],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ControlError(" ".join((done.stderr or done.stdout).split()))
        return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 2 bad input, a refusal, or a run that failed."""
    options = parser().parse_args(arguments)
    return exit_status(lambda: _execute(options))


def _execute(options: argparse.Namespace) -> None:
    control = Control(_flower_home(), options.superlink, options.ca)
    control.connect()
    if options.command == "register":
        print(f"registered: {', '.join(control.register(options.public)) or 'no new node'}")
        return
    control.wait(options.nodes)
    if options.command == "train":
        words = training_words(options.nodes, options.overrides)
        control.follow(train_command(control, options.runs, words))


def group_word(federation: Federation) -> str:
    """Return the override that makes one group for each budget."""
    return f"privacy.num_groups={len(federation.budgets)}"


def training_words(num_nodes: int, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a training on few nodes; given overrides replace those that are set here."""
    words = (f"dataset.num_clients={num_nodes}", *FEW_NODES, *overrides)
    return list({word.partition("=")[0]: word for word in words}.values())


def train_command(control: Control, runs: Path, words: Sequence[str]) -> list[str]:
    """Return the command that submits a training; its files are below ``runs`` on the server.

    ``run.resume=NAME`` and ``run.directory=NAME`` name a directory there.
    """
    chosen = {key: value for key, _, value in (word.partition("=") for word in words)}
    resumed = chosen.get("run.resume")
    name = resumed or chosen.get("run.directory") or run_path(None, "federation", "run").name
    kept = [word for word in words if word.partition("=")[0] not in ("run.resume", "run.directory")]
    run_config = training_config(kept, directory=runs / name, resuming=resumed is not None)
    return run_command(control.flower_home, PROJECT, run_config)


def _flower_home() -> Path:
    home = os.environ.get("FLWR_HOME")
    if not home:
        raise ControlError("FLWR_HOME is not set: name a new directory, since a connection is written there")
    return Path(home)


def parser() -> argparse.ArgumentParser:
    """The options of this command."""
    made = argparse.ArgumentParser(prog="python -m deploy.control", description=__doc__)
    commands = made.add_subparsers(required=True, dest="command", metavar="COMMAND")
    register = commands.add_parser("register", help="register the public keys of the nodes at the SuperLink")
    register.add_argument("--public", type=Path, required=True, help="directory with the public keys, *.pub")
    wait = commands.add_parser("wait", help="wait until all nodes are online")
    train = commands.add_parser("train", help="wait for the nodes and run one training")
    train.add_argument("--runs", type=Path, required=True, help="directory of the runs on the server")
    train.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance method=gdpfed")
    for command in (wait, train):
        command.add_argument("--nodes", type=int, required=True, help="how many nodes to wait for")
    for command in (register, wait, train):
        command.add_argument("--superlink", required=True, help="host and port of the SuperLink")
        command.add_argument(
            "--ca", type=Path, required=True, help="file with the certificate authority of the SuperLink"
        )
    return made


if __name__ == "__main__":
    raise SystemExit(main())
