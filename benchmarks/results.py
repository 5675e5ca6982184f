"""Trains the runs of experiments that compare methods, and writes their tables; it can be resumed.

The other options are those of `gdpfed reproduce`. The pictures stay in the output directory.

    python -m benchmarks.results [OVERRIDE ...] [--experiments demo] [--datasets digits ...] [--rows pfa]
        [--columns strict_everyone]
"""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import CONSOLE, present_command, publish, read_options
from gdpfed.extras.experiments.cells import Setting, cells_of
from gdpfed.extras.experiments.definitions import Experiment, load_experiment
from gdpfed.extras.experiments.reproduction import Reproduction, presentation_of, reproduce
from gdpfed.extras.experiments.run_training import Processes
from gdpfed.extras.experiments.runs import outcomes_of, runs_of
from gdpfed.report.console import Table

EXPERIMENTS = ("demo", "everybody", "best", "bench", "bench-records", "bench-allocation")


def main() -> None:
    """Train missing runs, and publish the tables once all runs are finished."""
    known = [load_experiment(name) for name in EXPERIMENTS]
    options = read_options(
        __doc__,
        overrides=True,
        seeds=3,
        jobs=1,
        output="runs/best",
        experiments=EXPERIMENTS,
        datasets=tuple(dict.fromkeys(name for each in known for name in each.datasets)),
        rows=tuple(dict.fromkeys(row for each in known for row in each.rows)),
        columns=tuple(dict.fromkeys(column for each in known for column in each.columns)),
    )
    tables: list[Table] = []
    for name in options.experiments:
        experiment = load_experiment(name)
        rows = [row for row in options.rows if row in experiment.rows]
        columns = {key: each for key, each in experiment.columns.items() if key in options.columns}
        tables += _tables(replace(experiment.with_rows(rows), columns=columns), options)
    publish(tables, options.write)


def _tables(experiment: Experiment, options: Namespace) -> list[Table]:
    chosen = tuple(name for name in options.datasets if name in experiment.datasets)
    setting = Setting(datasets=chosen, overrides=tuple(options.overrides))
    output = Path(options.output)
    launch = Processes(options.jobs)
    request = Reproduction(experiment, setting, options.seeds, output, present_command(), launch)
    if not reproduce(request, CONSOLE):
        sys.exit("some runs are missing: no table is written")
    cells = cells_of(experiment, setting)
    outcomes = outcomes_of(cells, runs_of(cells, options.seeds, output), {})
    return list(presentation_of(request, outcomes, CONSOLE).tables)


if __name__ == "__main__":
    main()
