"""Measures seconds per round: with mask keys agreed before the round or in it, and with Flower's SecAgg+.

A federation of separate processes with TLS and node keys, as `make deploy-local` starts it, trains the same
model with the same nodes three times: with keys agreed ahead, with keys agreed in the round, and in Flower's
SecAgg+. The first round of each is left out, since keys agreed ahead save nothing in it. A second federation
does the same, but Flower's own command starts a process for each message, instead of forks of a warm process.
In these two federations no node has a guard (a process that holds the node's data outside of the app), since
Flower's app reads the nodes' settings. Before them, two federations whose nodes have guards train once with
keys agreed ahead: one in mode active, the default, and one in mode curious.

--modes measures only the federations with guards. --brief adds Flower's SecAgg+ by Flower's own command to
them; --warm adds Flower's SecAgg+ by forks of a warm process, which need less memory.

    python -m benchmarks.exchanges [--nodes 6] [--rounds 5] [--brief | --warm | --modes] [OVERRIDE ...]
"""

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from benchmarks import harness
from benchmarks.harness import Measured, follow, steady_seconds, written_seconds
from deploy.federation import Federation
from deploy.loopback import OPERATOR, LoopbackFederation
from deploy.operate import training_words
from deploy.warm import OFF, WARM_VARIABLE
from gdpfed.errors import RunError
from gdpfed.launch.flower_run import FlowerRun, run_command
from gdpfed.runs.round_log import read_rounds
from secagg import ACTIVE, CURIOUS

SECAGG_PLUS_APP = Path(__file__).parent / "secagg_plus_app"
# What nodes allow all runs together; each of them takes a small part.
NODE_BUDGET = 100.0
WARM = "forks of a warm process"
MESSAGE_LINE = "Start `flwr-clientapp` process"
ONE_GROUP = ("method=dp_fedavg", "privacy.budgets=[1]", "privacy.delta=1e-5")


def training(federation: LoopbackFederation, overrides: Sequence[str], name: str, ahead: str) -> Measured:
    """Measure the seconds per round of one training; raise RunError if a round has failures."""
    directory = f"ahead-{ahead}"
    follow(federation.train(directory, [*overrides, f"secagg.keys_ahead={ahead}"]))
    records = read_rounds(federation.runs / directory)
    if failures := [record.failures for record in records if record.failures]:
        raise RunError(f"{name}: {failures}; a round that failed cannot be compared, so measure again")
    return Measured(name, steady_seconds(records))


def secagg_plus(federation: LoopbackFederation, overrides: Sequence[str], rounds: int) -> Measured:
    """Measure the seconds per round of the same training with Flower's own SecAgg+ workflow."""
    nodes = len(federation.federation.nodes)
    words = shlex.join(training_words(nodes, overrides))
    file = federation.runs / "seconds.json"
    sizes = {"nodes": nodes, "rounds": rounds}
    config = sizes | {"overrides": words, "seconds": str(file)}
    command = run_command(federation.home.path / OPERATOR, SECAGG_PLUS_APP, config)
    log = follow(FlowerRun(federation.home, command, folder=OPERATOR))
    seconds = written_seconds(file, rounds, log)
    return Measured("Flower's SecAgg+ workflow, its clients load torch as late as ours", seconds)


def handled(federation: LoopbackFederation) -> tuple[float, int]:
    """Return the processor seconds that all nodes have spent on messages, and the number of messages."""
    seconds, messages = 0.0, 0
    for node in federation.federation.nodes:
        messages += federation.log(node.superexec).count(MESSAGE_LINE)
        for name in (node.superexec, node.guard):
            for process in federation.home.processes(name):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    seconds += times.children_user + times.children_system
                    seconds += times.user + times.system if name == node.guard else 0.0
    return seconds, messages


def resident_mb(federation: LoopbackFederation) -> float:
    """Return the memory of a node's processes between messages, in MB (proportional set size)."""
    held = 0
    for node in federation.federation.nodes:
        for name in (node.supernode, node.superexec, node.guard):
            for process in federation.home.processes(name):
                with suppress(psutil.Error):
                    held += process.memory_full_info().pss
    return held / len(federation.federation.nodes) / 1e6


def with_cost(contender: Callable[[], Measured], federation: LoopbackFederation, processes: str) -> Measured:
    """Measure one way to train: seconds per round, CPU seconds per message, and the memory of a node."""
    seconds, messages = handled(federation)
    measured = contender()
    after = handled(federation)
    cost = (after[0] - seconds) / (after[1] - messages)
    return replace(measured, facts=(processes, harness.three(cost), f"{resident_mb(federation):.0f}"))


def contenders(
    nodes: int, rounds: int, overrides: Sequence[str], processes: str, brief: bool
) -> list[Measured]:
    """Measure gdpfed with mask keys agreed before the round, gdpfed with keys agreed in it, and SecAgg+.

    `brief`: measure SecAgg+ only.
    """
    # Nobody has signed Flower's app, and its workflow trusts the server to follow it.
    federation_of = Federation.of(nodes, (NODE_BUDGET,), CURIOUS)
    described = replace(federation_of, unguarded=True, unsigned_apps=True)
    with LoopbackFederation(described) as federation:
        each = (
            partial(training, federation, overrides, "two exchanges, keys agreed ahead", "true"),
            partial(training, federation, overrides, "four exchanges", "false"),
            partial(secagg_plus, federation, overrides, rounds),
        )
        chosen = each[-1:] if brief else each
        return harness.measure([partial(with_cost, run, federation, processes) for run in chosen])


def guarded(nodes: int, overrides: Sequence[str], mode: str) -> list[Measured]:
    """Measure a training whose nodes have guards: processes that hold a node's data outside of the app."""
    count = {ACTIVE: "three", CURIOUS: "two"}[mode]
    with LoopbackFederation(Federation.of(nodes, (NODE_BUDGET,), mode)) as federation:
        name = f"{count} exchanges, mode {mode}, keys agreed ahead, guards"
        run = partial(training, federation, overrides, name, "true")
        return harness.measure([partial(with_cost, run, federation, WARM)])


def main() -> None:
    """Measure the variants of a round that the options select, and show the seconds of each in a table."""
    options = harness.read_options(
        __doc__, overrides=True, nodes=6, rounds=5, brief=False, warm=False, modes=False
    )
    overrides = [*ONE_GROUP, *options.overrides, f"run.num_rounds={options.rounds}"]
    measured = [row for mode in (ACTIVE, CURIOUS) for row in guarded(options.nodes, overrides, mode)]
    brief, both = options.brief or options.warm, (("", WARM), (OFF, "Flower's command"))
    chosen = () if options.modes else both[:1] if options.warm else both[options.brief :]
    for said, processes in chosen:
        os.environ[WARM_VARIABLE] = said
        measured += contenders(options.nodes, options.rounds, overrides, processes, brief)
    title = f"{options.nodes} nodes, median of {options.rounds - 1} rounds (least, most)"
    headings = (
        *("messages are handled in", "processor seconds a message", "MB a node"),
        *("seconds a steady round", "times mode curious" if options.modes else "times Flower's SecAgg+"),
    )
    harness.publish([harness.comparison(title, measured, lambda _: measured[-1], *headings)], options.write)


if __name__ == "__main__":
    main()
