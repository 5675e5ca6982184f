"""Trains the experiment `best` and writes its tables into a document; said again, it goes on.

Every other option is one of `gdpfed reproduce best`, which leaves the pictures in the output directory.

    python -m benchmarks.results [OVERRIDE ...] [--seeds 3] [--output runs/best] [--datasets digits ...]
"""

import sys
from pathlib import Path

from benchmarks.harness import CONSOLE, present_command, publish, read_options
from gdpfed.experiments.accuracy import accuracy_tables
from gdpfed.experiments.cells import Setting, cells_of
from gdpfed.experiments.definitions import load_experiment
from gdpfed.experiments.reproduction import Reproduction, reproduce
from gdpfed.experiments.runs import outcomes_of, runs_of

EXPERIMENT = "best"


def main() -> None:
    """Train what is missing, and publish the tables if nothing is."""
    experiment = load_experiment(EXPERIMENT)
    datasets = tuple(experiment.datasets)
    options = read_options(__doc__, overrides=True, seeds=3, jobs=1, output="runs/best", datasets=datasets)
    setting = Setting(datasets=tuple(options.datasets), overrides=tuple(options.overrides))
    request = Reproduction(
        experiment, setting, options.seeds, Path(options.output), present_command(), options.jobs
    )
    if not reproduce(request, CONSOLE):
        sys.exit("some runs are missing: no table is written")
    cells = cells_of(experiment, setting)
    outcomes = outcomes_of(cells, runs_of(cells, options.seeds, request.output), {})
    publish(accuracy_tables(experiment, request.datasets, outcomes), options.write)


if __name__ == "__main__":
    main()
