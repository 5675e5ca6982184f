"""Seconds a round of gdpfed_plus with secure aggregation on, off, and of Flower carrying vectors alone.

The echo app sends vectors of the same size to as many nodes for as many exchanges and does nothing with
them: what it takes, no protocol of so many exchanges on Flower can go below. All is measured one after the
other in this one call, on the demo's setting; the first round of each is left out, since the workers load
their libraries in it.

    python benchmarks/secagg_overhead.py [--rounds 12] [OVERRIDE ...]
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from conf.load import load
from gdpfed.launch.simulation_backend import Launch
from gdpfed.learning.models import flatten
from gdpfed.methods import make_method
from gdpfed.rounds.run import task_of
from gdpfed.runs.records import read_rounds

ECHO_APP = Path(__file__).parent / "echo_app"
ECHO_LINE = "echo seconds "
ECHO = "echo"
# What a steady round takes.
EXCHANGES = {
    ("secagg=pairwise",): 2,
    ("secagg=pairwise", "secagg.keys_ahead=false"): 4,
    ("secagg=off",): 1,
}


@dataclass(frozen=True)
class Row:
    """What was measured: mean cohort, exchanges a round, seconds of every round but the first."""

    name: str
    cohort: float
    exchanges: int
    seconds: list[float]


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
    return [record.training_seconds for record in records], cohort


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
    rows: list[Row] = []
    console = Console()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("measuring", total=2 * len(EXCHANGES))
        for mode, exchanges in EXCHANGES.items():
            seconds, cohort = training_seconds([*overrides, *mode])
            rows.append(Row(f"gdpfed_plus, {' '.join(mode)}", cohort, exchanges, seconds))
            progress.advance(bar)
        for exchanges in EXCHANGES.values():
            seconds = echo_seconds(
                clients=config.dataset.num_clients,
                nodes=round(expected),
                exchanges=exchanges,
                rounds=options.rounds,
                dimension=dimension,
            )
            rows.append(Row(ECHO, round(expected), exchanges, seconds))
            progress.advance(bar)
    console.print(table(rows, dimension))


def table(rows: Sequence[Row], dimension: int) -> Table:
    """The rows with their ratio to the echo of as many exchanges."""
    echo = {row.exchanges: statistics.median(row.seconds) for row in rows if row.name == ECHO}
    measured = len(rows[0].seconds)
    result = Table(title=f"seconds a round, d = {dimension}, median of {measured} rounds (least, most)")
    for heading in ("", "clients a round", "exchanges", "seconds", "against the echo of so many"):
        result.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        median = statistics.median(row.seconds)
        result.add_row(
            row.name,
            f"{row.cohort:.0f}",
            f"{row.exchanges}",
            f"{median:.2f} ({min(row.seconds):.2f}, {max(row.seconds):.2f})",
            f"{median / echo[row.exchanges]:.2f}",
        )
    return result


if __name__ == "__main__":
    main()
