"""Seconds a steady round on loopback: keys agreed ahead, four exchanges, and Flower's own SecAgg+.

One federation of separate processes with TLS and node keys, as `make deploy-local` starts it, trains the
same model with the same nodes three times, one after the other in this one call. The first round of each is
left out: there keys ahead save nothing, and the nodes load their libraries in it.

    python -m benchmarks.exchanges [--nodes 6] [--rounds 5] [OVERRIDE ...]
"""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Measured, follow, steady_seconds
from deploy.federation import Federation
from deploy.loopback import OPERATOR, LoopbackFederation
from deploy.operate import training_words
from gdpfed.errors import RunError
from gdpfed.launch.flower_run import FlowerRun, run_command
from gdpfed.runs.round_log import read_rounds

SECAGG_PLUS_APP = Path(__file__).parent / "secagg_plus_app"
# What nodes allow all runs together; each of them takes a small part.
NODE_BUDGET = 100.0
ONE_GROUP = ("method=dp_fedavg", "privacy.budgets=[1]", "privacy.delta=1e-5")


def training(federation: LoopbackFederation, overrides: Sequence[str], name: str, ahead: str) -> Measured:
    """A training of this project, in which nothing may fail."""
    directory = f"ahead-{ahead}"
    follow(federation.train(directory, [*overrides, f"secagg.keys_ahead={ahead}"]))
    records = read_rounds(federation.runs / directory)
    if failures := [record.failures for record in records if record.failures]:
        raise RunError(f"{name}: {failures}; a round that failed cannot be compared, so measure again")
    return Measured(name, steady_seconds(records))


def secagg_plus(federation: LoopbackFederation, overrides: Sequence[str], rounds: int) -> Measured:
    """The same model and clients under Flower's workflow."""
    nodes = len(federation.federation.nodes)
    words = shlex.join(training_words(nodes, overrides))
    config: dict[str, str | int] = {"nodes": nodes, "rounds": rounds, "overrides": words}
    command = run_command(federation.home.path / OPERATOR, SECAGG_PLUS_APP, config)
    log = follow(FlowerRun(federation.home, command, folder=OPERATOR))
    return Measured(
        "Flower's SecAgg+ workflow, its clients load torch as late as ours", harness.printed_seconds(log)
    )


def main() -> None:
    """Measure and show the table."""
    options = harness.read_options(__doc__, overrides=True, nodes=6, rounds=5)
    overrides = [*ONE_GROUP, *options.overrides, f"run.num_rounds={options.rounds}"]
    with LoopbackFederation(Federation.of(options.nodes, (NODE_BUDGET,))) as federation:
        measured = harness.measure(
            [
                partial(training, federation, overrides, "two exchanges, keys agreed ahead", "true"),
                partial(training, federation, overrides, "four exchanges", "false"),
                partial(secagg_plus, federation, overrides, options.rounds),
            ]
        )
    title = f"{options.nodes} nodes, median of {options.rounds - 1} rounds (least, most)"
    headings = ("seconds a steady round", "against four exchanges")
    harness.publish([harness.comparison(title, measured, lambda _: measured[1], *headings)], options.write)


if __name__ == "__main__":
    main()
