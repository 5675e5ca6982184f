"""Measures a simulated round with 1, 2 and 4 workers: on this machine alone, and on an emulated Ray cluster.

Each machine of the cluster has a raylet, an object store and processes of its own, so what goes between them
is what would go over a network; they share the cores and the memory of this one. The training is that
of `benchmarks.simulation`, with larger cohorts. Bytes are those of models, instructions to train, client ids
and sums, as they are sent, without Ray's own messages. The data set goes to each machine once, at the start.

    python -m benchmarks.machines [--cohort 600] [--rounds 5] [--busy]
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from benchmarks.harness import Measured, check_idle, comparison, measure, publish, read_options, three
from benchmarks.simulation.contenders import simulate
from benchmarks.simulation.random_data import draw_pictures
from benchmarks.simulation.work import Work
from conf.load import load
from gdpfed.errors import InputError
from gdpfed.extras.ray_machines import RayMachines
from gdpfed.report.console import Table
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation.engine_choice import choose_engine
from gdpfed.simulation.in_process_fleet import InProcessFleet
from testing.ray_cluster import ray_cluster

ALONE = (1, 2, 4)
CLUSTERS = ((1,), (1, 1), (2, 2))
"""The workers of each machine."""


def alone(work: Work, workers: int) -> Measured:
    """Measure a round of ``gdpfed simulate`` on this machine without Ray."""
    measured = simulate(work, f"simulation.workers={workers}")
    return replace(measured, name="this machine alone", facts=(str(workers), "", ""))


def on_cluster(work: Work, workers: Sequence[int]) -> Measured:
    """Measure a simulated round on an emulated Ray cluster; `workers`: how many workers each machine has."""
    with ray_cluster(*workers) as (cluster, _), tempfile.TemporaryDirectory() as parent:
        there = ["simulation.backend=ray", f"simulation.ray_address={cluster.address}"]
        prepared = PreparedRun.of(load([*work.overrides, *there, f"run.directory={parent}/run"]))
        config = prepared.config
        engine, _ = choose_engine(config.simulation, prepared.task, "auto")
        moved = cast("RayMachines", engine).moved
        with (
            InProcessFleet(config.secagg, "machines", engine) as fleet,
            prepared.open(fleet, lambda run, announce: [], lambda line: None) as run,
        ):
            for _ in run.rounds():
                pass
        seconds = [record.training_seconds for record in read_rounds(Path(parent) / "run")[1:]]
        each = [three(count / (work.rounds + 1) / 1e6) for count in (moved.out, moved.back)]
    name = f"Ray, {len(workers)} machine{'s' * (len(workers) > 1)}"
    return Measured(name, seconds, (str(sum(workers)), *each))


def table(work: Work) -> Table:
    """Make a table of seconds per round on one and several machines, compared with one worker alone."""
    measured = measure(
        [
            *(partial(alone, work, each) for each in ALONE),
            *(partial(on_cluster, work, each) for each in CLUSTERS),
        ]
    )
    return comparison(
        f"{work.model}, {work.num_clients:,} clients, {work.cohort} a round",
        measured,
        lambda _: measured[0],
        *("workers", "MB out a round", "MB back a round"),
        *("seconds a round: median (least, most)", "times one worker alone"),
    )


def main() -> None:
    """Measure a simulated round on this machine alone and on emulated Ray clusters, and show the table."""
    options = read_options(__doc__, overrides=False, cohort=600, rounds=5, busy=False)
    try:
        mark = check_idle(options.busy)
    except InputError as error:
        raise SystemExit(str(error)) from None
    with tempfile.TemporaryDirectory() as directory:
        draw_pictures(Path(directory))
        tables = [table(Work(directory, cohort=options.cohort, rounds=options.rounds))]
    publish(tables, options.write, mark)


if __name__ == "__main__":
    main()
