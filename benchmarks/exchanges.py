"""Seconds a steady round on loopback: keys agreed ahead, four exchanges, and Flower's own SecAgg+.

One federation of separate processes with TLS and node keys, as `make deploy-local` starts it, trains the
same model with the same nodes three times, one after the other in this one call. The first round of each is
left out: there keys ahead save nothing, and the nodes load their libraries in it.

    python benchmarks/exchanges.py [--nodes 6] [--rounds 5] [OVERRIDE ...]
"""

import argparse
import json
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from deploy.control import training_words
from deploy.processes import OPERATOR, LoopbackFederation
from deploy.topology import Federation
from gdpfed.launch.flower_run import FlowerRun, run_command
from gdpfed.runs.records import read_rounds

SECAGG_PLUS_APP = Path(__file__).parent / "secagg_plus_app"
SECONDS_LINE = "round seconds "
# What nodes allow all runs together; each of them takes a small part.
NODE_BUDGET = 100.0
ONE_GROUP = ("method=dp_fedavg", "privacy.budgets=[1]", "privacy.delta=1e-5")
AHEAD, BESIDE = "two exchanges, keys agreed ahead", "four exchanges"


def finish(run: FlowerRun) -> str:
    """Let a run end and return its log."""
    while run.running():
        pass
    return run.check()


def training_seconds(federation: LoopbackFederation, name: str, overrides: Sequence[str]) -> list[float]:
    """Seconds of every round but the first, without evaluation."""
    finish(federation.train(name, overrides))
    records = read_rounds(federation.runs / name)
    if any(record.failures for record in records):
        raise RuntimeError(f"{name}: {[record.failures for record in records]}")
    return [record.training_seconds for record in records[1:]]


def secagg_plus_seconds(federation: LoopbackFederation, rounds: int, overrides: Sequence[str]) -> list[float]:
    """Seconds of every round but the first under Flower's workflow."""
    nodes = len(federation.federation.nodes)
    words = shlex.join(training_words(nodes, overrides))
    home = federation.home.path / OPERATOR
    config = {"nodes": nodes, "rounds": rounds, "overrides": words}
    log = finish(FlowerRun(federation.home, run_command(home, SECAGG_PLUS_APP, config), folder=OPERATOR))
    line = next(line for line in log.splitlines() if SECONDS_LINE in line)
    seconds: list[float] = json.loads(line.partition(SECONDS_LINE)[2])
    return seconds[1:]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=6, help="nodes, all of them in every round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each, the first left out")
    parser.add_argument("overrides", nargs="*", help="settings besides those of a few nodes")
    options = parser.parse_args()
    overrides = [*ONE_GROUP, *options.overrides, f"run.num_rounds={options.rounds}"]
    rows: dict[str, list[float]] = {}
    console = Console()
    with LoopbackFederation(Federation.of(options.nodes, (NODE_BUDGET,))) as federation:
        for name, ahead in ((AHEAD, "true"), (BESIDE, "false")):
            console.print(f"{name} ...")
            rows[name] = training_seconds(
                federation, f"ahead-{ahead}", [*overrides, f"secagg.keys_ahead={ahead}"]
            )
        console.print("Flower's SecAgg+ ...")
        rows["Flower's SecAgg+ workflow"] = secagg_plus_seconds(federation, options.rounds, overrides)
    console.print(table(rows, options.nodes))


def table(rows: dict[str, list[float]], nodes: int) -> Table:
    """Medians and their ratio to four exchanges."""
    floor = rows[BESIDE]
    result = Table(title=f"seconds a steady round, {nodes} nodes, median of {len(floor)} (least, most)")
    for heading in ("", "seconds", "against four exchanges"):
        result.add_column(heading, justify="right" if heading else "left")
    for name, seconds in rows.items():
        median = statistics.median(seconds)
        spread = f"{median:.2f} ({min(seconds):.2f}, {max(seconds):.2f})"
        result.add_row(name, spread, f"{median / statistics.median(floor):.2f}")
    return result


if __name__ == "__main__":
    main()
