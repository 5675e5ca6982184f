"""Tests of attacks on trained models: they find memorised records, and say what they could detect."""

import json
import math
from typing import Any

import numpy as np
import pytest

from conf.load import load
from gdpfed.cli import main
from gdpfed.extras.canaries.bounds import Guesses, one_run_p_value
from gdpfed.extras.canaries.membership import detectable_epsilon
from gdpfed.extras.canaries.model_attack import attack_run
from gdpfed.simulation.in_process_fleet import simulate

RECORDS = 150


@pytest.fixture
def memorised(tmp_path):
    """Train without privacy on random labels, so that every correct answer is memorised; return the run."""
    rng = np.random.default_rng(1)
    arrays: Any = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = rng.normal(size=(RECORDS, 120)).astype(np.float32)
        arrays[f"y_{part}"] = rng.integers(2, size=RECORDS)
    np.savez(tmp_path / "coins.npz", **arrays)
    told = [
        *("dataset=npz", f"dataset.path={tmp_path / 'coins.npz'}", "dataset.num_clients=30", "method=fedavg"),
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
    for each in attack.parties:
        assert (each.members, each.others) == (30, 30)
        assert each.auc_low > each.null_high
        assert each.epsilon > each.detectable > 0
    assert [each.seen for each in attack.parties] == ["predictions", "model"]
    assert attack.stated is attack.stated_of_party is None
    assert attack.site is None
    assert main(["audit", "--attack", str(memorised)]) == 0
    assert "nothing is stated of a record" in capsys.readouterr().out


HEADER = ",".join(["ill", *(f"x{number}" for number in range(30))])


def clinic(folder, seed):
    """Write the table of a clinic with random labels."""
    rng = np.random.default_rng(seed)
    rows = [",".join(map(str, [rng.integers(2), *rng.integers(10, size=30)])) for _ in range(10)]
    folder.mkdir(exist_ok=True)
    (folder / f"{seed}.csv").write_text("\n".join([HEADER, *rows, ""]))


def test_whole_parties_are_told_from_those_that_a_folder_names(tmp_path, capsys):
    for seed in range(20):
        clinic(tmp_path / ("in" if seed < 10 else "out"), seed)
    numbers = ", ".join(f"x{number}: [0, 9]" for number in range(30))
    declared = f"label: {{column: ill, classes: [0, 1]}}\nnumeric: {{{numbers}}}\n"
    (tmp_path / "in" / "columns.yaml").write_text(declared)
    told = [
        *("dataset=csv", f"dataset.path={tmp_path / 'in'}", "dataset.num_clients=10", "method=fedavg"),
        *("secagg=off", "run.num_rounds=10", "training.local_steps=20", "training.learning_rate=0.5"),
        *("privacy.sampling_rate=1", f"run.directory={tmp_path / 'run'}", "dataset.model=linear"),
    ]
    run = simulate(load(told), make_observers=lambda run, announce: [])
    assert main(["audit", "--attack", str(run), "--outside", str(tmp_path / "out"), "--json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)["parties"]
    assert (first["whose"], first["members"], first["others"]) == ("parties", 10, 10)
    assert first["auc_low"] > 0.5
    (tmp_path / "out" / "19.csv").write_text("ill,age\n0,3\n")
    assert main(["audit", "--attack", str(run), "--outside", str(tmp_path / "out")]) == 2
    assert "19.csv lacks the column 'x0'" in capsys.readouterr().err
    assert main(["audit", str(run), "--outside", str(tmp_path / "out")]) == 2


def test_what_is_detectable_is_what_the_best_attack_reaches_and_no_less():
    for records, significance in ((50, 0.01), (400, 0.001)):
        epsilon = detectable_epsilon(records, 1e-5, significance)
        right = round(records / (1 + math.exp(-epsilon)))
        assert one_run_p_value(Guesses(records, records, right), 0.0, 1e-5) <= significance
        assert one_run_p_value(Guesses(records, records, right - 1), 0.0, 1e-5) > significance
    assert detectable_epsilon(400, 1e-5, 0.01) < detectable_epsilon(50, 1e-5, 0.01)
    assert detectable_epsilon(4, 1e-5, 0.01) == math.inf
