"""Tests of sums whose integer grid takes too much of what a record may do: no such run begins."""

import pytest

from conf.load import load
from gdpfed.errors import RunError
from gdpfed.simulation import simulate

RECORDS = ["privacy=record_level", "run.num_rounds=1", "dataset.num_clients=6"]
TABLE = [*RECORDS, "dataset=breast_cancer", "privacy.budgets=[1e-6]"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([*TABLE, "method=dp_sum"], "rounding 62 coordinates to steps of"),
        ([*TABLE, "method=trees"], "rounding 1600 coordinates to steps of"),
        (
            [*RECORDS, "dataset.num_clients=12", "method=h2fdp", "privacy.budgets=[1e-5]"],
            "rounding 650 coordinates to steps of",
        ),
    ],
)
def test_a_run_whose_rounding_takes_too_much_of_a_record_is_refused_before_a_charge(
    tmp_path, settings, words
):
    with pytest.raises(RunError, match=words):
        simulate(load([*settings, f"run.directory={tmp_path}/run", "simulation.workers=1"]))
    assert not (tmp_path / "run").exists()
