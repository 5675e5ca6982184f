"""Attacks on finished models: they find what is memorised, and say what so few records could show."""

import math
from typing import Any

import numpy as np
import pytest

from conf.load import load
from gdpfed.canaries.bounds import Guesses, one_run_p_value
from gdpfed.canaries.model_attack import attack_run, detectable_epsilon
from gdpfed.cli import main
from gdpfed.simulation.simulated_run import simulate

RECORDS = 150


@pytest.fixture
def memorised(tmp_path):
    """A run without privacy on labels that are coins: whatever it gets right it has memorised."""
    rng = np.random.default_rng(1)
    arrays: Any = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = rng.normal(size=(RECORDS, 120)).astype(np.float32)
        arrays[f"y_{part}"] = rng.integers(2, size=RECORDS)
    np.savez(tmp_path / "coins.npz", **arrays)
    told = [
        *("dataset=npz", f"dataset.path={tmp_path / 'coins.npz'}", "dataset.num_clients=3", "method=fedavg"),
        *("secagg=off", "run.num_rounds=5", "training.local_steps=20", "training.learning_rate=0.5"),
        *("privacy.sampling_rate=1", f"run.directory={tmp_path / 'run'}", "training.batch_size=50"),
        "dataset.model=linear",
    ]
    return simulate(load(told), make_observers=lambda run, announce: [])


def test_a_model_that_has_memorised_gives_its_records_away(memorised, capsys):
    attack = attack_run(memorised)
    for each in attack.membership:
        assert (each.members, each.others) == (RECORDS, RECORDS)
        assert each.auc_low > each.null_high
        assert each.epsilon > each.detectable > 0
    assert attack.stated is None
    assert attack.site is None
    assert main(["audit", "--attack", str(memorised)]) == 0
    assert "nothing is stated of a record" in capsys.readouterr().out


def test_what_is_detectable_is_what_the_best_attack_reaches_and_no_less():
    for records, significance in ((50, 0.01), (400, 0.001)):
        epsilon = detectable_epsilon(records, 1e-5, significance)
        right = round(records / (1 + math.exp(-epsilon)))
        assert one_run_p_value(Guesses(records, records, right), 0.0, 1e-5) <= significance
        assert one_run_p_value(Guesses(records, records, right - 1), 0.0, 1e-5) > significance
    assert detectable_epsilon(400, 1e-5, 0.01) < detectable_epsilon(50, 1e-5, 0.01)
    assert detectable_epsilon(4, 1e-5, 0.01) == math.inf
