"""Helpers for tests of statistics: a table whose rows belong to four parties, and runs on that table."""

import numpy as np

from conf.load import load
from gdpfed.extras.statistics.result import Statistics
from gdpfed.report.run_observers import ModelCard
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.in_process_fleet import simulate_prepared

SITES, WARDS = "abcd", ("x", "y", "z")
DECLARATION = """\
label: {column: ill, classes: ['no', 'yes']}
numeric: {age: [0, 80]}
categorical: {ward: {values: [x, y, z], other: z}}
party: {column: site, values: [a, b, c, d]}
test: {column: part, values: [test]}
"""
HEADER = "site,ward,age,ill,part,who"
SEED = 5


def drawn_rows(count=400):
    """Yield random rows of four sites; a fifth of the ages lies outside the range or is missing."""
    draws = np.random.default_rng(SEED)
    ages = draws.normal(50, 25, count)
    for number in range(count):
        age = "" if number % 9 == 0 else f"{ages[number]:.1f}"
        ill = "yes" if draws.random() < 0.3 else "no"
        ward = (*WARDS, "", "elsewhere")[draws.integers(5)]
        part = "test" if number % 10 == 3 else "train"
        yield f"{SITES[number % 4]},{ward},{age},{ill},{part},{number // 3}"


def write_table(folder):
    (folder / "data.csv").write_text("\n".join([HEADER, *drawn_rows(), ""]))
    (folder / "columns.yaml").write_text(DECLARATION)
    return folder / "data.csv"


def settings(table, *more, unit="record", model="statistics"):
    level = ["privacy=record_level"] if unit == "record" else []
    return [
        *("dataset=csv", f"dataset.path={table}", "dataset.num_clients=4", f"dataset.model={model}"),
        *(f"method={unit}_statistics", *level, "secagg.minimum_cohort=2", "simulation.workers=1", *more),
    ]


def released(table, directory, *more, **chosen):
    """Run statistics in this process; return the released statistics."""
    config = load([*settings(table, *more, **chosen), f"run.directory={directory}"])
    prepared = PreparedRun.of(config)
    simulate_prepared(prepared, make_observers=lambda run, _: run.method.observers(run.path))
    return Statistics.read(directory)


def audited_run(directory, words):
    """Run statistics and write the files that an audit reads; return the run's directory."""
    prepared = PreparedRun.of(load([*words, f"run.directory={directory}"]))
    simulate_prepared(
        prepared, make_observers=lambda run, _: [*run.method.observers(run.path), ModelCard(run)]
    )
    return directory


def near(figure, value):
    """Return whether a released figure is within six standard deviations of its noise from `value`."""
    return abs(figure.value - value) <= 3.1 * (figure.high - figure.value)
