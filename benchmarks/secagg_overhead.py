"""Seconds a round of gdpfed_plus with secure aggregation on, off, and of Flower carrying vectors alone.

The echo app sends vectors of the same size to as many nodes for as many exchanges and does nothing with
them: what it takes, no protocol of four exchanges on Flower can go below. All is measured one after the
other in this one call, on the demo's setting; the first round of each is left out, since the workers load
their libraries in it.

    python benchmarks/secagg_overhead.py [--rounds 12] [OVERRIDE ...]
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from conf.load import load
from gdpfed.launch import Launch
from gdpfed.learning.models import flatten
from gdpfed.methods import make_method
from gdpfed.report.records import read_rounds
from gdpfed.tasks import task_of

ECHO_APP = Path(__file__).parent / "echo_app"
ECHO_LINE = "echo seconds "
EXCHANGES = {"pairwise": 4, "off": 1}


def wait(launch: Launch) -> str:
    """Let a run end and return its log."""
    with launch:
        while launch.running():
            pass
        return launch.check()


def training_seconds(overrides: Sequence[str]) -> tuple[list[float], float]:
    """Seconds of every round but the first, without evaluation, and the mean cohort."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "run"
        clients = load(overrides).dataset.num_clients
        wait(Launch.training(overrides, num_clients=clients, directory=directory, resuming=False))
        records = read_rounds(directory)[1:]
    cohort = statistics.fmean(sum(record.cohort_sizes) for record in records)
    return [record.seconds["total"] - record.seconds["evaluate"] for record in records], cohort


def echo_seconds(*, clients: int, nodes: int, exchanges: int, rounds: int, dimension: int) -> list[float]:
    """Seconds of every round but the first of the echo app."""
    config = {"nodes": nodes, "exchanges": exchanges, "rounds": rounds, "dimension": dimension}
    log = wait(Launch(ECHO_APP, config, num_supernodes=clients))
    line = next(line for line in log.splitlines() if ECHO_LINE in line)
    seconds: list[float] = json.loads(line.partition(ECHO_LINE)[2])
    return seconds[1:]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each, the first left out")
    parser.add_argument("overrides", nargs="*", help="settings besides the demo's")
    options = parser.parse_args()
    overrides = ["dataset=digits", "method=gdpfed_plus", *options.overrides]
    config = load(overrides)
    dimension = len(flatten(task_of(config).build_model()))
    expected = sum(group.expected_cohort_size for group in make_method(config).plan.groups)
    overrides.append(f"run.num_rounds={options.rounds}")
    rows: list[tuple[str, float, list[float]]] = []
    console = Console()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("measuring", total=4)
        for mode in EXCHANGES:
            seconds, cohort = training_seconds([*overrides, f"secagg={mode}"])
            rows.append((f"gdpfed_plus, secagg={mode}", cohort, seconds))
            progress.advance(bar)
        for exchanges in EXCHANGES.values():
            seconds = echo_seconds(
                clients=config.dataset.num_clients,
                nodes=round(expected),
                exchanges=exchanges,
                rounds=options.rounds,
                dimension=dimension,
            )
            rows.append((f"echo, {exchanges} exchange{'s' * (exchanges > 1)}", round(expected), seconds))
            progress.advance(bar)
    console.print(table(rows, dimension))


def table(rows: Sequence[tuple[str, float, list[float]]], dimension: int) -> Table:
    """The rows with their ratio to the echo of four exchanges."""
    echo = next(seconds for name, _, seconds in rows if name == "echo, 4 exchanges")
    floor = statistics.median(echo)
    result = Table(title=f"seconds a round, d = {dimension}, median of {len(echo)} rounds (least, most)")
    for heading in ("", "clients a round", "seconds", "against echo, 4 exchanges"):
        result.add_column(heading, justify="right" if heading else "left")
    for name, cohort, seconds in rows:
        median = statistics.median(seconds)
        result.add_row(
            name,
            f"{cohort:.0f}",
            f"{median:.2f} ({min(seconds):.2f}, {max(seconds):.2f})",
            f"{median / floor:.2f}",
        )
    return result


if __name__ == "__main__":
    main()
