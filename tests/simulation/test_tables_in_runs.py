"""Tests of whole runs on tables: regression, class weights, metrics, and results by party or budget."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from gdpfed.audit.card_checks import check_card
from gdpfed.audit.run_files import RunFiles
from gdpfed.cli import main
from gdpfed.report.finished_run import read_run
from gdpfed.report.parts import Parts
from gdpfed.runs.file_formats import EVENTS_FOLDER, MODEL_FILE
from gdpfed.runs.round_log import read_rounds
from testing.settings import last_of_each

PLAIN = ("secagg=off", "simulation.workers=1", "run.num_rounds=3")
DECLARATION = """\
label: {column: days, range: [0, 20]}
numeric: {age: [0, 100], score: [-1, 1]}
party: {column: ward, values: [east, north, west]}
"""


@pytest.fixture(scope="module")
def stays(tmp_path_factory):
    """Write a table of how long 90 patients stay, in three wards of 30 patients; return the path."""
    folder = tmp_path_factory.mktemp("stays")
    rng = np.random.default_rng(0)
    age, score = rng.uniform(0, 100, 90), rng.uniform(-1, 1, 90)
    days = 10 + 5 * score + 0.05 * (age - 50)
    lines = [
        f"{a},{s},{d},{('east', 'north', 'west')[row % 3]}"
        for row, (a, s, d) in enumerate(zip(age, score, days, strict=True))
    ]
    (folder / "stays.csv").write_text("\n".join(["age,score,days,ward", *lines, ""]))
    (folder / "columns.yaml").write_text(DECLARATION)
    return folder / "stays.csv"


def simulate(directory, *overrides):
    """Simulate fedavg, or the method that the overrides name, and return the run's directory."""
    chosen = [] if any(word.startswith("method=") for word in overrides) else ["method=fedavg"]
    assert main(["simulate", *last_of_each([*PLAIN, *chosen, *overrides, f"run.directory={directory}"])]) == 0
    return directory


def regression(stays, directory, *overrides):
    return simulate(directory, "dataset=csv", f"dataset.path={stays}", "dataset.num_clients=3", *overrides)


@pytest.mark.parametrize("wards", ["east, north, west", "east, north, west, south"])
def test_a_card_tells_of_owners_where_some_are_no_clients_and_is_read_either_way(stays, tmp_path, wards):
    table = tmp_path / "stays.csv"
    more = "50,0.5,12,south\n" * 5 if "south" in wards else ""
    table.write_text(stays.read_text() + more)
    (tmp_path / "columns.yaml").write_text(DECLARATION.replace("east, north, west", wards))
    run = regression(table, tmp_path / "run", "dataset.loss=squared_error")
    card = (run / "model_card.md").read_text(encoding="utf-8")
    assert ("* if the data has more owners than clients" in card) == ("south" in wards)
    assert list(check_card(RunFiles.read(run))) == []


def last_round(run: Path) -> Any:
    return read_rounds(run)[-1]


def parts_of(run: Path) -> Any:
    found = Parts.read(run)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def learnt(stays, tmp_path_factory):
    directory = tmp_path_factory.mktemp("regression") / "run"
    words = ("dataset.loss=squared_error", "dataset.metrics=[mean_absolute_error,r2]", "run.num_rounds=20")
    return regression(stays, directory, *words)


def test_numbers_are_learnt_and_shown_in_their_own_unit(learnt, capsys):
    last = last_round(learnt)
    assert last.accuracy is None
    # Full lengths of stay go from about 3 to 17 days, and are a linear function of the inputs.
    assert last.metrics["mean_absolute_error"] < 0.5
    assert last.metrics["r2"] > 0.95
    assert last.shown == ("mean_absolute_error", last.metrics["mean_absolute_error"])
    card = (learnt / "model_card.md").read_text()
    for words, name in (("mean absolute error", "mean_absolute_error"), ("R²", "r2")):
        assert f"* {words} on the server's test set: {last.metrics[name]:.4g}\n" in card
    parties = [(part.name, part.examples) for part in parts_of(learnt).parties]
    assert parties == [("east", 6), ("north", 6), ("west", 6)]
    assert main(["report", "--markdown", str(learnt)]) == 0
    out = capsys.readouterr().out
    assert "test mean absolute error" in out
    assert "accuracy" not in out
    assert (learnt / "accuracy.png").is_file()
    assert any((learnt / EVENTS_FOLDER).iterdir())


def test_the_error_by_party_is_the_whole_error(learnt):
    parts, last = parts_of(learnt), last_round(learnt)
    errors = [part.metrics["mean_absolute_error"] for part in parts.parties]
    assert np.mean(errors) == pytest.approx(last.metrics["mean_absolute_error"], rel=1e-6)
    assert parts.budgets == []


@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_both_engines_descend_the_loss_alike(stays, tmp_path, loss):
    models = [
        load_file(
            regression(stays, tmp_path / engine, f"dataset.loss={loss}", f"simulation.engine={engine}")
            / MODEL_FILE
        )
        for engine in ("batched", "sequential")
    ]
    for name, values in models[0].items():
        np.testing.assert_allclose(values, models[1][name], atol=1e-6)


def test_both_engines_weigh_classes_alike(tmp_path):
    weights = "dataset.class_weights=[0.5,3]"
    runs = {
        name: simulate(tmp_path / name, "dataset=breast_cancer", *words)
        for name, words in {
            "batched": (weights, "simulation.engine=batched"),
            "sequential": (weights, "simulation.engine=sequential"),
            "alike": (),
        }.items()
    }
    models = {name: load_file(run / MODEL_FILE) for name, run in runs.items()}
    for name, values in models["batched"].items():
        np.testing.assert_allclose(values, models["sequential"][name], atol=1e-6)
        assert np.abs(values - models["alike"][name]).max() > 0.01
    # Class 1 counts six times as much as class 0, so the model leans to it.
    assert (models["batched"]["linear.bias"] - models["alike"]["linear.bias"])[1] > 0


def test_parties_with_a_budget_are_judged_by_it(tmp_path, capsys):
    words = ("dataset=breast_cancer", "method=dp_fedavg", "privacy.accountant=rdp")
    run = simulate(tmp_path / "run", *words)
    parts = parts_of(run)
    assert [part.name for part in parts.parties] == [f"party {number}" for number in range(6)]
    (budget,) = parts.budgets
    assert (budget.name, budget.examples) == ("budget 3 (group 0)", 114)
    last = last_round(run)
    assert budget.metrics == pytest.approx(last.metrics)
    assert list(last.metrics) == ["accuracy", "macro_f1", "auc"]
    card = (run / "model_card.md").read_text()
    low, high = (100 * each for each in budget.intervals["accuracy"])
    assert low < 100 * budget.metrics["accuracy"] < high < low + 20
    shown = f"{100 * budget.metrics['accuracy']:.1f} % ({low:.1f} to {high:.1f})"
    assert "| party 0 | 19 | too few | too few | too few |" in card
    assert f"| budget 3 (group 0) | 114 | {shown} |" in card
    assert "the figures carry no noise: no budget covers them" in card
    files = RunFiles.read(run)
    assert list(check_card(files)) == []
    assert list(check_card(replace(files, card=card.replace(f"({low:.1f} to", "(1.0 to"))))
    assert list(check_card(replace(files, card=card.replace("| 19 | too few |", "| 19 | 97.2 % |", 1))))
    assert main(["report", "--output", str(tmp_path / "out"), str(run)]) == 0
    rows = (tmp_path / "out" / "parts.csv").read_text().splitlines()
    assert len(rows) == 8
    assert rows[1].endswith("party 0,19,too few,–")
    assert rows[-1].endswith(f",114,{100 * budget.metrics['accuracy']:.1f},{low:.1f} to {high:.1f}")
    assert "By party and by budget" in capsys.readouterr().out
    assert read_run(run).results[-1] == pytest.approx(100 * last.accuracy)


def test_groups_of_records_are_judged_by_their_budgets(tmp_path, capsys):
    """The model is judged on the records of each budget; every third patient agrees to a larger one."""
    rng = np.random.default_rng(1)
    lines = [
        f"{age},{('yes', 'no')[int(age > 50)]},{('strict', 'open')[int(row % 3 == 0)]},{'nsw'[row % 3 - 1]}"
        for row, age in enumerate(rng.uniform(0, 100, 180))
    ]
    (tmp_path / "ages.csv").write_text("\n".join(["age,young,consent,site", *lines, ""]))
    (tmp_path / "columns.yaml").write_text(
        "label: {column: young, classes: [no, yes]}\nnumeric: {age: [0, 100]}\n"
        "party: {column: site, values: [n, s, w]}\nrecord_group: {column: consent, values: [strict, open]}\n"
    )
    run = simulate(
        tmp_path / "run",
        *("dataset=csv", f"dataset.path={tmp_path / 'ages.csv'}", "dataset.num_clients=3"),
        *("method=dp_sgd", "privacy.unit=record", "privacy.budgets_of=records", "privacy.budgets=[1,4]"),
        "privacy.accountant=rdp",
    )
    budgets = parts_of(run).budgets
    assert [part.name for part in budgets] == [
        "budget 1 (records of group 0)",
        "budget 4 (records of group 1)",
    ]
    assert sum(part.examples for part in budgets) == 36
    path = f"dataset.path={tmp_path / 'ages.csv'}"
    other = [path, "privacy.accountant=rdp", "privacy.budgets=[1,2,4]", f"run.directory={tmp_path / 'b'}"]
    words = ("dataset=csv", "dataset.num_clients=3", "method=dp_sgd", "privacy.unit=record")
    assert main(["simulate", *PLAIN, *words, "privacy.budgets_of=records", *other]) == 2
    assert (
        "has 3 budgets, and the data declares 2 groups of records: give each group one"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "b").exists()


def test_the_first_metric_is_the_one_that_is_shown(tmp_path, capsys):
    run = simulate(tmp_path / "run", "dataset=breast_cancer", "dataset.metrics=[auc,accuracy]")
    last = last_round(run)
    assert f"round 3/3  AUC {100 * last.metrics['auc']:.1f} %" in capsys.readouterr().out
    assert last.accuracy == last.metrics["accuracy"]
    other = simulate(tmp_path / "other", "dataset=breast_cancer")
    assert main(["report", str(run), str(other)]) == 2
    assert "the runs show different metrics (fedavg" in capsys.readouterr().err


def test_a_run_that_shows_accuracy_has_the_files_that_it_had(tmp_path):
    run = simulate(tmp_path / "run", "dataset.num_clients=12", "privacy.sampling_rate=1")
    line = json.loads((run / "rounds.jsonl").read_text().splitlines()[0])
    assert "metrics" not in line
    assert not (run / "parts.json").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["dataset.loss=squared_error"], "dataset.loss=squared_error does not fit labels that are 2 classes"),
        (["dataset.class_weights=[1,2,3]"], "class_weights has 3 numbers: give 2, one for each"),
        (["dataset.class_weights=[1,-2]"], "class_weights=[1.0, -2.0] must be positive numbers, one"),
        (["dataset.metrics=[r2]"], "dataset.metrics=r2 does not fit labels that are 2 classes"),
        (["dataset.metrics=[]"], "dataset.metrics=[] names no metric"),
        (["dataset.num_clients=7"], "dataset.num_clients=7 is more than the 6 clients that the data has"),
    ],
)
def test_what_does_not_fit_is_one_line_and_nothing_is_written(tmp_path, capsys, overrides, words):
    directory = tmp_path / "run"
    given = ["dataset=breast_cancer", *overrides, f"run.directory={directory}"]
    assert main(["simulate", *PLAIN, *given]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not directory.exists()


@pytest.mark.filterwarnings("error")
def test_numbers_as_classes_are_one_line_without_a_warning_of_torch(tmp_path, capsys):
    directory = tmp_path / "run"
    given = ["dataset=breast_cancer", "dataset.loss=huber", f"run.directory={directory}"]
    assert main(["simulate", *PLAIN, *given]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_plan_refuses_a_loss_that_the_declared_labels_do_not_take(stays, capsys):
    words = ["dataset=csv", f"dataset.path={stays}", "dataset.num_clients=3", "privacy.accountant=rdp"]
    assert main(["plan", *words, "dataset.loss=cross_entropy"]) == 2
    assert "dataset.loss=cross_entropy does not fit labels that are numbers" in capsys.readouterr().err
    assert main(["plan", *words, "dataset.loss=huber"]) == 0


def test_a_table_that_does_not_fit_is_one_line_and_nothing_is_written(stays, tmp_path, capsys):
    table = tmp_path / "stays.csv"
    table.write_text(stays.read_text().replace("east", "eest", 1))
    (tmp_path / "columns.yaml").write_text(DECLARATION)
    words = ["dataset=csv", f"dataset.path={table}", "dataset.num_clients=3", "dataset.loss=squared_error"]
    assert main(["simulate", *PLAIN, *words, f"run.directory={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert "column 'ward' holds 'eest' in row 1, which is not one of east, north, west" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
