"""Drill: all nodes train a 44 MB model over slow links (lines): 10 Mbit/s, 100 ms round trip, 3 % loss."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil

from deploy.credentials import Store
from deploy.federation import Federation
from deploy.loopback import LoopbackFederation
from deploy.topology import GATE, SERVER_SUPEREXEC, SUPERLINK
from gdpfed.report.console import Table
from testing.project import PROJECT
from tests.deploy.checks import Checks
from tests.deploy.drills.line import Line, here_of
from tests.deploy.faulty_federation import FaultyFederation

LINES = tuple(Line(10e6, 0.05, 0.03, control) for control in ("bbr", "cubic"))
NODES = 3
# 64 pixels, 10 classes: 75 weights a hidden unit; 11.2 million parameters of 4 bytes, as ResNet-18 has.
OVERRIDES = (
    "method=dp_fedavg",
    "privacy.budgets=[1]",
    "dataset.model=mlp",
    "dataset.model_options={hidden_units:149000}",
    "run.num_rounds=1",
    "run.timeout_seconds=1800",
)
FIRST = 21


def drill(check: Checks) -> list[Table]:
    """Train a round over each kind of slow link; return a table of durations and of programs' peak memory."""
    figures = [_over(line, check) for line in LINES]
    (line, *_), names = LINES, list(figures[0])
    said = f"{line.bits / 1e6:g} Mbit/s, {2e3 * line.delay:g} ms to and fro, {100 * line.loss:g} % loss"
    title = f"{NODES} nodes, each on a line of {said}; a model of 44.7 MB"
    heads = ("figure", *(f"TCP with {each.control}" for each in LINES))
    return [Table(title, heads, [(name, *(each.get(name, "") for each in figures)) for name in names])]


def _over(line: Line, check: Checks) -> dict[str, str]:
    """Train over slow links of one kind; return the measured values, as texts by their descriptions."""
    with laid(line), LoopbackFederation(Federation.of(NODES, (8.0,))) as running:
        faulty = FaultyFederation(running)
        _move(faulty)
        with measured(running) as most:
            started = time.monotonic()
            check(
                f"over slow lines a run completes with all nodes in its sum ({line.control})",
                lambda: _trained(faulty) and [each.survivors for each in faulty.rounds("slow")] == [[NODES]],
            )
            whole = time.monotonic() - started
        rounds = [each.survivors for each in faulty.rounds("slow")]
        return {
            "nodes in the sum of the round": ", ".join(str(sum(each)) for each in rounds),
            "seconds of the run, with the test of each line": f"{whole:.0f}",
            **{f"most resident memory of {name}, MB": f"{most[name] / 1e6:.0f}" for name in most},
        }


def _trained(faulty: FaultyFederation) -> bool:
    run = faulty.train("slow", OVERRIDES)
    faulty.until(lambda: not run.running(), "the end of the run", 3600)
    return bool(run.check())


def _move(faulty: FaultyFederation) -> None:
    """Let the server's gate (a proxy) listen on all addresses; start nodes at the slow links' far ends."""
    running = faulty.running
    lines = range(FIRST, FIRST + NODES)
    Store(running.home.path).renew("tls", [running.services[GATE]])
    Store(running.home.path).provide([*running.services.values()], [here_of(number) for number in lines])
    for name, service in running.services.items():
        if name != SERVER_SUPEREXEC and not service.offline:
            running.kill(name)
    # A confined program enters no network of its own.
    running.walled = False
    gate = running.services[GATE]
    words = tuple("0.0.0.0" if word == "127.0.0.1" else word for word in gate.command)  # noqa: S104
    running.services[GATE] = replace(gate, command=words)
    for name in (SUPERLINK, GATE):
        running.start(name)
        running.wait_until_healthy(name)
    address = f"127.0.0.1:{running.place.port(GATE)}"
    for node, number in zip(running.federation.nodes, lines, strict=True):
        far = f"{here_of(number)}:{running.place.port(GATE)}"
        for name in (node.supernode, node.superexec):
            service = running.services[name]
            program = str(sys.executable).replace("python", service.command[0])
            words = tuple(far if word == address else word for word in service.command[1:])
            inside = ("python", "-m", "tests.deploy.drills.line", "in", str(number), program)
            running.services[name] = replace(service, command=(*inside, *words))
    for node in running.federation.nodes:
        faulty.start_node(node)


@contextmanager
def laid(line: Line) -> Iterator[None]:
    """Make a slow line for each node during a ``with`` block."""
    words = [str(line.bits), str(line.delay), str(line.loss), line.control]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(FIRST, FIRST + NODES):
            command = [sys.executable, "-m", "tests.deploy.drills.line", "lay", str(number), *words]
            processes.append(subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE))
        for process in processes:
            if process.stdout is None or process.stdout.readline() != b"laid\n":
                raise OSError("no line can be laid here: it needs root, ip and /dev/net/tun")
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait()


@contextmanager
def measured(running: LoopbackFederation) -> Iterator[dict[str, int]]:
    """Record the peak memory of each service's programs, in bytes by service, during a ``with`` block."""
    most: dict[str, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            for name in running.services:
                found = 0
                for process in running.home.processes(f"{name}/home"):
                    try:
                        found += process.memory_info().rss
                    except psutil.Error:
                        continue
                most[name] = max(most.get(name, 0), found)

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield most
    finally:
        over.set()
        watch.join()
