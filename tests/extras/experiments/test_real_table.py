"""Tests of a part of the experiment table2 on the digits, trained by real simulation in two processes."""

import csv
import io

import pytest
import yaml
from rich.console import Console

from gdpfed.extras.experiments.cells import Setting
from gdpfed.extras.experiments.definitions import load_experiment
from gdpfed.extras.experiments.reproduction import Reproduction, reproduce
from gdpfed.extras.experiments.run_training import Processes
from gdpfed.report.finished_run import read_run

ROWS = ("fedavg", "dp_fedavg_step", "gdpfed_plus")
ROUNDS = 6
# Budgets that leave next to no noise, so that six rounds are enough to tell learning from guessing.
OVERRIDES = (
    "privacy.budgets=[50,100,200]",
    "privacy.accountant=rdp",
    "privacy.sampling_rate=0.5",
    "secagg=off",
)


def run_it(output, name="table2"):
    """Run the methods in ROWS of an experiment on the digits, and return what is printed."""
    experiment = load_experiment(name)
    experiment.rows = {row: experiment.rows[row] for row in ROWS if row in experiment.rows}
    setting = Setting(("digits",), OVERRIDES, num_rounds=ROUNDS, client_factor=0.25)
    shown = io.StringIO()
    request = Reproduction(experiment, setting, 1, output, f"gdpfed reproduce {name}", Processes(2))
    assert reproduce(request, Console(file=shown, width=200))
    return shown.getvalue()


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    directory = tmp_path_factory.mktemp("table2")
    assert run_it(directory).count("took") == len(ROWS)
    return directory


def test_every_method_learns_and_every_figure_is_its_runs_last(output):
    with (output / "table2" / "figures.csv").open() as file:
        accuracies = {row["row"]: float(row["accuracy_percent"]) for row in csv.DictReader(file)}
    assert tuple(accuracies) == ROWS
    # 360 test pictures in ten classes: guessing reaches 20 % with a probability below 1e-7.
    assert min(accuracies.values()) > 20
    for cell in yaml.safe_load((output / "table2" / "cells.yaml").read_text()):
        (run,) = cell["runs"]
        finished = read_run((output / "table2" / run["config"]).parent)
        assert finished.final_result == pytest.approx(accuracies[cell["row"]], abs=1e-3)
        assert len(finished.records) == ROUNDS


def test_figure_1_shows_the_same_runs_and_trains_nothing(output):
    before = {path: path.stat().st_mtime_ns for path in (output / "runs").rglob("*")}
    assert "took" not in run_it(output, "figure1")
    assert {path: path.stat().st_mtime_ns for path in (output / "runs").rglob("*")} == before
