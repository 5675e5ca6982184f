"""Tests of sums whose integer grid takes too much of what a record may do: no such run begins."""

import numpy as np
import pytest

from conf.load import load
from gdpfed.errors import RunError
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate

RECORDS = ["privacy=record_level", "run.num_rounds=1", "dataset.num_clients=6"]
TABLE = [*RECORDS, "dataset=breast_cancer", "privacy.budgets=[1e-6]"]
# Of 60 clients 12 are drawn on average and 35 at most. Rounding takes a tenth of a record's norm
# at noise of 1016 with 12 clients, and at 1790 with 35.
DRAWN = [*RECORDS, "dataset.num_clients=60", "privacy.sampling_rate=0.2", "dataset.model=linear"]
DRAWN = [*DRAWN, "method=dp_sum", "privacy.accountant=rdp"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([*TABLE, "method=dp_sum"], "rounding 62 coordinates to steps of"),
        ([*TABLE, "method=trees"], "rounding 1600 coordinates to steps of"),
        (
            [*RECORDS, "dataset.num_clients=12", "method=h2fdp", "privacy.budgets=[1e-5]"],
            "rounding 650 coordinates to steps of",
        ),
        ([*DRAWN, "method.noise_multiplier=1200"], "rounding 650 coordinates to steps of"),
    ],
)
def test_a_run_whose_rounding_takes_too_much_of_a_record_is_refused_before_a_charge(
    tmp_path, settings, words
):
    with pytest.raises(RunError, match=words):
        simulate(load([*settings, f"run.directory={tmp_path}/run", "simulation.workers=1"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("secagg", ["off", "pairwise"])
def test_a_cohort_whose_grid_is_too_coarse_has_no_sum_and_the_run_goes_on(tmp_path, monkeypatch, secagg):
    def drawn(plan, round_index, key):
        size = (4, 1)[round_index]
        return tuple(np.asarray(group.clients[:size], dtype=np.int64) for group in plan.groups)

    monkeypatch.setattr("gdpfed.rounds.loop.draw_cohorts", drawn)
    words = [*DRAWN, f"secagg={secagg}", "run.num_rounds=2", "method.noise_multiplier=1000"]
    path = simulate(load([*words, f"run.directory={tmp_path}/run", "simulation.workers=1"]))
    whole, small = read_rounds(path)
    assert (whole.survivors, whole.failures) == ([12], {})
    assert small.survivors == [0]
    (failure,) = small.failures.values()
    assert "rounding 650 coordinates to steps of" in failure
    assert failure.endswith("use less noise, or more contributors: it is charged, and not summed")
