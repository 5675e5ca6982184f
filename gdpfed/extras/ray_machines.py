"""Divides a cohort among the machines of a Ray cluster, each of which trains its part.

No other file knows Ray. Data and models go through Ray's object stores, one copy a machine; a machine adds up
what its workers have summed, so one vector a sum comes back from it.
"""

import logging
import os
import pickle
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import entry_points, version
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from ray import exceptions
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from conf.schema.run_config import AUTO, LOCAL
from gdpfed.clients.versions import versions_here
from gdpfed.errors import ConfigError, GDPFedError, RunError, words_of
from gdpfed.installed import SOURCES
from gdpfed.learning.data import Dataset, DataSource, load_dataset
from gdpfed.learning.data.source import place_dataset
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Engine, split_jobs
from gdpfed.simulation.parallel_engines import Divided, Part

logger = logging.getLogger(__name__)

T = TypeVar("T")
Choose = Callable[[], tuple[Engine, str]]
"""Makes an engine, and says in words how it trains."""

REACHED_SECONDS, BEGUN_SECONDS = 3.0, 180.0
ROOMS = ("conf", "fastgrad", "gdpfed", "secagg")
# What the last bits of an update may follow from, beside what a card names.
MORE_PACKAGES = ("numba", "numpy", "ray")
NO_MODEL = np.zeros(0, np.float32)
GONE = (
    exceptions.RayActorError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.OutOfMemoryError,
    exceptions.WorkerCrashedError,
)


class Machine:
    """The Ray actor on one machine; its child processes train clients."""

    def begin(self, choose: Choose, source: DataSource, data: Dataset) -> str:
        """Store the data, make the simulation engine, and return a text that says how the engine trains."""
        torch.set_num_threads(1)
        place_dataset(source, data)
        self._engine, words = choose()
        return words

    def versions(self) -> tuple[str, str]:
        """Return the versions of packages and code on this machine, and its kind of CPU."""
        return installed()

    def work(self, message: bytes, *models: Theta) -> bytes:
        """Carry out jobs of a part of a cohort from these start models; return the pickled results."""
        act, jobs = pickle.loads(message)  # noqa: S301 - our own, from the process that made this actor
        # What lies in Ray's store cannot be written to, and torch wants arrays that can be.
        starts = [np.array(model) for model in models]
        part = [(number, replace(job, start=starts[which])) for number, job, which in jobs]
        return pickle.dumps(act(self._engine, part), pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True)
class _Member:
    """A machine of the cluster as this process sees it: name, number of workers, and actor."""

    name: str
    workers: int
    actor: Any


@dataclass
class Moved:
    """How many bytes were sent to machines (`out`), and how many were received from them (`back`)."""

    out: int = 0
    back: int = 0


class RayMachines(Divided):
    """Trains a part of each cohort on each machine of a Ray cluster.

    A machine that is lost costs its part, which the others compute again: every client's draws follow from
    the seed, so the sums are the same. `address`: of the cluster; ``auto`` for the one that this machine
    belongs to, ``local`` to start one of this machine alone. `workers`: of each machine; None for one a CPU.
    `choose`: makes a machine's engine, on the machine, for a number of workers. `source`: of the data set.

    `moved`: since the beginning, without the data set.

    Raises:
        ConfigError: no such cluster, none with CPUs, or one that another version runs on.
        RunError: a machine that does not begin.
    """

    def __init__(
        self, address: str, workers: int | None, choose: Callable[[int], Choose], source: DataSource
    ) -> None:
        self.moved = Moved()
        with ExitStack() as stack:
            _connect(stack, address, workers)
            self._members = _members(address, workers)
            _check_versions(self._members)
            data = ray.put(load_dataset(source))
            begun = {
                each.name: each.actor.begin.remote(choose(each.workers), source, data)
                for each in self._members
            }
            self.words = _answers(begun)
            self.shares = [each.workers for each in self._members]
            self._connection = stack.pop_all()

    def _each(self, act: Callable[[Engine, Part], T], parts: Sequence[Part]) -> Iterator[T]:
        models: dict[int, Any] = {}
        sent = dict(self._send(act, parts, models))
        while sent:
            (answer, *_), _ = ray.wait(list(sent))
            member, part = sent.pop(answer)
            try:
                found = ray.get(answer)
            except GONE:
                self._lose(member, part)
                # The others train it: jobs keep their numbers.
                pieces = split_jobs([job for _, job in part], self.shares)
                again = [[(part[place][0], job) for place, job in piece] for piece in pieces]
                sent |= self._send(act, again, models)
                continue
            except exceptions.RayError as error:
                raise _of_machine(member.name, error) from None
            self.moved.back += len(found)
            yield pickle.loads(found)  # noqa: S301 - from an actor that this process made

    def _send(
        self, act: Callable[[Engine, Part], T], parts: Sequence[Part], models: dict[int, Any]
    ) -> Iterator[tuple[Any, tuple[_Member, Part]]]:
        """Send each machine its jobs, and yield pending results; store each start model in Ray only once."""
        for member, part in zip(self._members, parts, strict=False):
            starts = {id(job.start): job.start for _, job in part}
            places = {each: place for place, each in enumerate(starts)}
            for each, start in starts.items():
                if each not in models:
                    models[each] = ray.put(start)
            jobs = [(number, replace(job, start=NO_MODEL), places[id(job.start)]) for number, job in part]
            message = pickle.dumps((act, jobs), pickle.HIGHEST_PROTOCOL)
            self.moved.out += len(message) + sum(start.nbytes for start in starts.values())
            yield member.actor.work.remote(message, *(models[each] for each in starts)), (member, part)

    def _lose(self, member: _Member, part: Part) -> None:
        """Continue without a lost machine; raise RunError if it was the last one."""
        self._members = [each for each in self._members if each is not member]
        self.shares = [each.workers for each in self._members]
        if not self._members:
            raise RunError(
                f"{member.name} is lost and was the last of the Ray cluster: start machines again and "
                "continue with run.resume"
            )
        clients = sum(len(job.cohort.clients) for _, job in part)
        logger.warning(
            "%s is lost: %d machines go on, and train its %d clients again",
            *(member.name, len(self._members), clients),
        )

    def close(self) -> None:
        self._connection.close()


@cache
def installed() -> tuple[str, str]:
    """Return the versions of packages and a hash of the code as one text, and the kind of CPU."""
    digest = sha256()
    for room in ROOMS:
        for path in sorted((SOURCES / room).rglob("*.py")):
            digest.update(path.relative_to(SOURCES).as_posix().encode() + path.read_bytes())
    others = [f"{name} {version(name)}" for name in MORE_PACKAGES]
    groups = [group for group in entry_points().groups if group.startswith("gdpfed.")]
    adding = {point.dist for group in groups for point in entry_points(group=group)}
    others += sorted(f"{each.name} {each.version}" for each in adding if each is not None)
    words = ", ".join([versions_here(), *others, f"code {digest.hexdigest()[:12]}"])
    return words, torch.backends.cpu.get_cpu_capability()


def _connect(stack: ExitStack, address: str, workers: int | None) -> None:
    """Connect this process to a Ray cluster until `stack` is closed.

    Raises ConfigError: there is nothing to connect to, or it has another version of Ray or Python.
    """
    if ray.is_initialized():
        raise ConfigError(
            "simulation.backend=ray connects to Ray itself, and this process is connected already: call "
            "ray.shutdown() before"
        )
    how: dict[str, Any] = {}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        folder = tempfile.TemporaryDirectory(prefix="gdpfed-", ignore_cleanup_errors=True)
        cores = workers or len(os.sched_getaffinity(0))
        how = {"num_cpus": cores, "include_dashboard": False, "_temp_dir": stack.enter_context(folder)}
    stack.callback(ray.shutdown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            found = address
            if address != LOCAL:
                found = str(canonicalize_bootstrap_address_or_die(address) if address == AUTO else address)
                # A cluster answers within so many seconds.
                host, _, port = found.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), REACHED_SECONDS).close()
            ray.init(address=found, log_to_driver=False, logging_level=logging.ERROR, **how)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"simulation.ray_address={address} cannot be used ({words_of(error, 300)}): begin a cluster by "
            "'ray start --head' and join this machine and the others, all with the same packages"
        ) from None


def _members(address: str, workers: int | None) -> list[_Member]:
    """Start an actor on each running machine that has CPUs; return these machines with their actors."""
    members = []
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        cpus = int(node["Resources"].get("CPU", 0))
        if not node["Alive"] or not cpus:
            continue
        name = f"machine {node['NodeManagerHostname']} (node {node['NodeID'][:8]})"
        if (workers or 1) > cpus:
            raise ConfigError(
                f"simulation.workers={workers} is above the {cpus} CPUs that {name} has in Ray: leave it out"
            )
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        taken = workers or cpus
        actor = ray.remote(Machine).options(num_cpus=taken, scheduling_strategy=there).remote()
        members.append(_Member(name, taken, actor))
    if not members:
        raise ConfigError(
            f"simulation.ray_address={address} has no machine with CPUs: join some by 'ray start --address'"
        )
    return members


def _check_versions(members: Sequence[_Member]) -> None:
    """Raise ConfigError if a machine has other versions or code; warn if kinds of CPU differ."""
    here, kind = installed()
    said = _answers({each.name: each.actor.versions.remote() for each in members})
    for name, (there, _) in said.items():
        if there != here:
            ours, theirs = set(here.split(", ")), set(there.split(", "))
            raise ConfigError(
                f"{name} has {', '.join(sorted(theirs - ours)) or 'fewer packages'}, and this process has "
                f"{', '.join(sorted(ours - theirs)) or 'fewer packages'}: install the same on both"
            )
    kinds = sorted({kind, *(other for _, other in said.values())})
    if len(kinds) > 1:
        logger.warning(
            "the machines compute with different instructions (%s): the last bits of a sum may follow from "
            "who trains which client. ATEN_CPU_CAPABILITY makes torch use those that all have",
            ", ".join(kinds),
        )


def _answers(asked: dict[str, Any]) -> dict[str, Any]:
    """Wait for the calls to all machines of the Ray cluster; return their results by machine name.

    Raises:
        GDPFedError: as a machine raises it.
        RunError: a machine that does not answer in time, or cannot run the project.
    """
    _, late = ray.wait(list(asked.values()), num_returns=len(asked), timeout=BEGUN_SECONDS)
    answers = {}
    for name, answer in asked.items():
        if answer in late:
            raise RunError(
                f"{name} has not begun in {BEGUN_SECONDS:.0f} s: free its CPUs of other jobs ('ray status' "
                "shows them), or take it out of the cluster"
            )
        try:
            answers[name] = ray.get(answer)
        except exceptions.RayError as error:
            raise _of_machine(name, error) from None
    return answers


def _of_machine(name: str, error: exceptions.RayError) -> Exception:
    """Return an error that names the machine, in one line; return unexpected errors of a task unchanged."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, GDPFedError):
        return type(cause)(f"{name}: {cause}")
    if isinstance(cause, ImportError):
        return RunError(
            f"{name} lacks a package ({words_of(cause, 300)}): install there what is installed here"
        )
    if isinstance(error, exceptions.RayTaskError):
        return error
    return RunError(f"{name} does not go on ({words_of(error, 300)}): mend it, or take it out of the cluster")
