"""Tests of whole runs on sets of labels: results by party, budgets of clients and records, predictions."""

import csv

import numpy as np
import pytest
from safetensors.numpy import load_file

import gdpfed
from gdpfed.cli import main
from gdpfed.report.parts import Parts
from gdpfed.runs.file_formats import MODEL_FILE
from gdpfed.runs.round_log import read_rounds
from testing.settings import last_of_each

PLAIN = ("secagg=off", "simulation.workers=1", "run.num_rounds=2", "dataset.loss=binary_cross_entropy")
DECLARATION = """\
label: {columns: {stroke: ["no", "yes"], sepsis: [0, 1], fall: [0, 1]}}
numeric: {age: [0, 100], score: [-1, 1]}
party: {column: ward, values: [east, north, west]}
"""


@pytest.fixture(scope="module")
def stays(tmp_path_factory):
    """Write a table of 180 patients of three wards with three labels: stroke, sepsis and fall."""
    folder, rng = tmp_path_factory.mktemp("stays"), np.random.default_rng(0)
    lines = [
        f"{age},{score},{('no', 'yes')[int(age > 60)]},{int(score > 0.3)},{int(age / 100 + score > 0.5)},"
        f"{('east', 'north', 'west')[row % 3]}"
        for row, (age, score) in enumerate(
            zip(rng.uniform(0, 100, 180), rng.uniform(-1, 1, 180), strict=True)
        )
    ]
    (folder / "stays.csv").write_text("\n".join(["age,score,stroke,sepsis,fall,ward", *lines, ""]))
    (folder / "columns.yaml").write_text(DECLARATION)
    return folder / "stays.csv"


def simulate(stays, directory, *overrides):
    words = ("dataset=csv", f"dataset.path={stays}", "dataset.num_clients=3", f"run.directory={directory}")
    assert main(["simulate", *last_of_each([*PLAIN, *words, *overrides])]) == 0
    return directory


@pytest.fixture(scope="module")
def learnt(stays, tmp_path_factory):
    metrics = "dataset.metrics=[mean_auc,micro_f1,mean_f1,exact_match,hamming_loss,mean_ece]"
    words = ("method=fedavg", "run.num_rounds=40", "training.learning_rate=1", metrics)
    return simulate(stays, tmp_path_factory.mktemp("sets") / "run", *words)


def test_every_label_is_learnt_and_shown_by_party(learnt):
    last = read_rounds(learnt)[-1]
    assert last.accuracy is None
    reached = {name: each for name, each in last.metrics.items() if each is not None}
    assert last.shown == ("mean_auc", reached["mean_auc"])
    assert reached["mean_auc"] > 0.97
    assert reached["micro_f1"] > 0.8
    assert reached["hamming_loss"] < 0.15
    parts = Parts.read(learnt)
    assert parts is not None
    assert [(part.name, part.examples) for part in parts.parties] == [
        *(("east", 12), ("north", 12), ("west", 12))
    ]
    wrong = [part.metrics["hamming_loss"] or 0.0 for part in parts.parties]
    assert np.mean(wrong) == pytest.approx(reached["hamming_loss"])
    card = (learnt / "model_card.md").read_text()
    assert f"* mean AUC on the server's test set: {100 * reached['mean_auc']:.1f} %" in card
    assert "* predicted: stroke, sepsis, fall: none, one or several of them" in card
    assert "It tells 'stroke, sepsis, fall' from 2 facts about a case." in card
    assert "without any model" not in card


def test_a_report_and_a_page_show_them(learnt, tmp_path, capsys):
    assert main(["report", "--output", str(tmp_path / "out"), str(learnt)]) == 0
    assert "test mean AUC (%)" in capsys.readouterr().out
    assert (tmp_path / "out" / "parts.csv").read_text().count("\n") >= 4


def test_a_new_table_is_told_every_label(learnt, stays, tmp_path):
    (tmp_path / "new.csv").write_text("bed,age,score\n1,90,0.9\n2,10,-0.9\n")
    words = ["--keep", "bed", "--output", str(tmp_path / "told.csv")]
    assert main(["predict", str(learnt), str(tmp_path / "new.csv"), *words]) == 0
    with (tmp_path / "told.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("stroke", "sepsis", "fall")
    assert [[row[f"predicted_{name}"] for name in names] for row in rows] == [["1"] * 3, ["0"] * 3]
    found = gdpfed.load_model(learnt).predict({"age": [90, 10], "score": [0.9, -0.9]})
    assert found.classes == names
    assert found.labels.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert found.probabilities is not None
    assert float(rows[0]["probability_fall"]) == pytest.approx(found.probabilities[0, 2], rel=1e-5)


def test_a_label_that_weighs_more_is_said_more(stays, tmp_path):
    runs = {
        weight: load_file(
            simulate(stays, tmp_path / str(weight), "method=fedavg", f"dataset.class_weights=[1,{weight},1]")
            / MODEL_FILE
        )["linear.bias"]
        for weight in (1, 4)
    }
    assert runs[4][1] > runs[1][1] + 0.01
    np.testing.assert_allclose(runs[4][[0, 2]], runs[1][[0, 2]], atol=1e-6)


def test_clients_with_budgets_are_judged_by_them(stays, tmp_path):
    words = ("method=dp_fedavg", "privacy.accountant=rdp", "dataset.metrics=[mean_auc,exact_match]")
    run = simulate(stays, tmp_path / "run", *words)
    parts = Parts.read(run)
    assert parts is not None
    (budget,) = parts.budgets
    assert (budget.name, budget.examples) == ("budget 3 (group 0)", 36)
    assert budget.metrics == pytest.approx(read_rounds(run)[-1].metrics)


@pytest.mark.parametrize("method", ["dp_sgd", "dp_sum"])
def test_records_with_sets_are_trained_on_and_audited(stays, tmp_path, method):
    run = simulate(stays, tmp_path / "run", "privacy=record_level", f"method={method}")
    assert read_rounds(run)[-1].metrics["mean_auc"] is not None
    assert main(["audit", str(run)]) == 0


def test_what_needs_one_class_is_refused_before_anything_is_charged(stays, tmp_path, capsys):
    words = ["simulate", *PLAIN[1:], "dataset=csv", f"dataset.path={stays}", "dataset.num_clients=3"]
    for more, line in (
        (
            ["run.evaluation=nodes", "secagg=pairwise"],
            "this data has labels that are not single classes: use run.evaluation=serv",
        ),
        (
            ["dataset.loss=cross_entropy"],
            "does not fit labels that are sets of 3 labels: choose for instance",
        ),
        (["dataset.metrics=[auc]"], "does not fit labels that are sets of 3 labels: use exact_match"),
    ):
        private = ("privacy=record_level", "method=dp_sum", f"run.directory={tmp_path}/r")
        assert main(last_of_each([*words, *private, *more])) == 2
        assert line in capsys.readouterr().err
        assert not (tmp_path / "r").exists()
