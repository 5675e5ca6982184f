"""Tests of survival runs: budgets for clients, records and persons, training at nodes, and predictions."""

import csv
from itertools import pairwise

import numpy as np
import pytest

import gdpfed
from gdpfed.cli import main
from gdpfed.report.parts import Parts
from gdpfed.runs.round_log import read_rounds
from testing.local_grid import FIRST_NODE_ID, LocalGrid
from testing.settings import last_of_each
from testing.small_runs import final_model, run

PLAIN = ("secagg=off", "simulation.workers=1", "run.num_rounds=2", "dataset.loss=discrete_hazard")
SITES = ("east", "north", "west")
LABEL = "label: {time: days, event: {column: status, censored: [alive, moved], happened: dead}, %s}\n"
INPUTS = "numeric: {age: [0, 100]}\ncategorical: {arm: [old, new]}\n"
PARTY = "party: {column: ward, values: [east, north, west]}\n"
EDGES = "intervals: 6, horizon: 60"


def patients(count=240, seed=0):
    """Yield patients: the old die earlier, the newly treated die later, and one in three is censored."""
    draws = np.random.default_rng(seed)
    for number in range(count):
        age, arm = draws.uniform(0, 100), number // 3 % 2
        dies = draws.exponential(40 * np.exp(1.5 * (0.5 - age / 100) + 0.8 * arm))
        leaves = draws.uniform(10, 120)
        status = "dead" if dies <= leaves else ("alive", "moved")[number % 2]
        days, ward = min(dies, leaves), SITES[number % 3]
        yield f"{age:.1f},{('old', 'new')[arm]},{days:.2f},{status},{ward},{number // 6 * 3 + number % 3}"


HEADER = "age,arm,days,status,ward,who"


def write(folder, lines, *declared):
    folder.mkdir(exist_ok=True)
    (folder / "data.csv").write_text("\n".join([HEADER, *lines, ""]))
    (folder / "columns.yaml").write_text("".join([LABEL % EDGES, INPUTS, *(declared or [PARTY])]))
    return folder / "data.csv"


@pytest.fixture(scope="module")
def stays(tmp_path_factory):
    return write(tmp_path_factory.mktemp("stays"), patients())


def simulate(table, directory, *overrides):
    words = ("dataset=csv", f"dataset.path={table}", "dataset.num_clients=3", f"run.directory={directory}")
    assert main(["simulate", *last_of_each([*PLAIN, *words, *overrides])]) == 0
    return directory


@pytest.fixture(scope="module")
def learnt(stays, tmp_path_factory):
    words = ("method=fedavg", "run.num_rounds=20", "training.learning_rate=1", "training.local_steps=10")
    metrics = "dataset.metrics=[concordance,integrated_brier]"
    return simulate(stays, tmp_path_factory.mktemp("times") / "run", *words, metrics)


def test_times_are_learnt_and_shown_by_party(learnt, tmp_path, capsys):
    last = read_rounds(learnt)[-1]
    assert last.accuracy is None
    concordance, brier = (last.metrics[name] or 0.0 for name in ("concordance", "integrated_brier"))
    assert concordance > 0.65
    assert 0.05 < brier < 0.22
    parts = Parts.read(learnt)
    assert parts is not None
    low, high = parts.parties[0].intervals["concordance"] or (1, 0)
    assert low < (parts.parties[0].metrics["concordance"] or 0) < high
    card = (learnt / "model_card.md").read_text()
    assert f"* concordance on the server's test set: {concordance:.4g}" in card
    assert "* predicted: days, status: the time to an event, in 6 intervals up to 60" in card
    assert main(["audit", str(learnt)]) == 0
    assert main(["report", "--output", str(tmp_path / "out"), str(learnt)]) == 0
    assert "test concordance" in capsys.readouterr().out


def test_a_new_table_is_told_survival_at_the_ends_and_a_median(learnt, tmp_path):
    (tmp_path / "new.csv").write_text("bed,age,arm\n1,95,old\n2,5,new\n")
    words = ["--keep", "bed", "--output", str(tmp_path / "told.csv")]
    assert main(["predict", str(learnt), str(tmp_path / "new.csv"), *words]) == 0
    with (tmp_path / "told.csv").open() as file:
        old, young = csv.DictReader(file)
    curves = [[float(row[f"survival_{edge}"]) for edge in range(10, 61, 10)] for row in (old, young)]
    assert all(first > later for curve in curves for first, later in pairwise(curve))
    assert all(early < late for early, late in zip(*curves, strict=True))
    # More than half of such are expected to survive the horizon.
    assert (0 < float(old["median"]) < 60, young["median"]) == (True, "")
    found = gdpfed.load_model(learnt).predict({"age": [95.0, 5.0], "arm": ["old", "new"]})
    assert found.classes == ("10", "20", "30", "40", "50", "60")
    assert found.labels[0] == pytest.approx(float(old["median"]))
    assert np.isnan(found.labels[1])


@pytest.mark.parametrize(
    "words",
    [
        ("privacy=client_level", "method=dp_fedavg", "privacy.accountant=rdp"),
        ("privacy=record_level", "method=dp_sgd", "dataset.model=mlp"),
    ],
    ids=["clients", "records"],
)
def test_times_are_learnt_under_budgets_and_audited(stays, tmp_path, words):
    directory = simulate(stays, tmp_path / "run", *words)
    assert read_rounds(directory)[-1].metrics["concordance"] is not None
    assert main(["audit", str(directory)]) == 0


def test_a_person_with_several_times_is_one_record(tmp_path, capsys):
    table = write(tmp_path / "persons", patients(120), PARTY, "person: who\n")
    words = ("privacy=record_level", "method=dp_sum", "privacy.accountant=rdp", "privacy.batch_rate=0.2")
    directory = simulate(table, tmp_path / "run", *words)
    assert main(["audit", str(directory)]) == 0
    assert "what is protected is one person" in capsys.readouterr().out


def own_settings(folder):
    return [
        *("dataset=csv", f"dataset.path={folder / 'public' / 'data.csv'}", "dataset.num_clients=3"),
        *("dataset.partition=iid", "method=fedavg", "run.num_rounds=2", "privacy.sampling_rate=1"),
        "dataset.loss=discrete_hazard",
    ]


def test_nodes_train_on_times_of_their_own(tmp_path):
    """Nodes train on their own times to a finite model, also if one of three sites has no event."""
    rows = [*patients(90)]
    write(tmp_path / "public", rows[:30], "purpose: x\n")
    grid = LocalGrid(3)
    for node in range(3):
        own = rows[30 + 20 * node : 50 + 20 * node]
        path = write(tmp_path / str(node), own, "purpose: x\n")
        grid.contexts[FIRST_NODE_ID + node].node_config["data"] = str(path)
    run(tmp_path / "first", own_settings(tmp_path), grid=grid)
    before = final_model(tmp_path / "first")
    write(tmp_path / "2", [row.replace("dead", "alive") for row in rows[70:90]], "purpose: x\n")
    run(tmp_path / "second", own_settings(tmp_path), grid=grid)
    assert np.isfinite(final_model(tmp_path / "second")).all()
    assert (final_model(tmp_path / "second") != before).any()


def test_what_times_do_not_go_with_is_refused_before_anything_is_charged(stays, tmp_path, capsys):
    words = ["simulate", *PLAIN[1:], "dataset=csv", f"dataset.path={stays}", "dataset.num_clients=3"]
    private = ("privacy=record_level", "method=dp_sum", f"run.directory={tmp_path}/r")
    times = "labels that are times to an event, in 6 intervals"
    for more, line in (
        (["run.evaluation=nodes", "secagg=pairwise"], "labels that are not single classes: use run.eval"),
        (["dataset.loss=cross_entropy"], f"does not fit {times}: choose for instance dataset.loss=discrete"),
        (["dataset.metrics=[auc]"], f"does not fit {times}: use concordance or integrated_brier"),
        (["dataset.class_weights=[1,2]"], f"has 2 numbers: {times} have none"),
        (["dataset.partition=dirichlet", "dataset.dirichlet_alpha=1"], "dirichlet"),
    ):
        assert main(last_of_each([*words, *private, *more])) == 2
        assert line in capsys.readouterr().err
        assert not (tmp_path / "r").exists()


ALIKE = "dataset.metrics=concordance is not defined on the test split, whose 18 labels are too much alike"


@pytest.mark.parametrize(
    ("edges", "dead", "line"),
    [("edges: [60]", "dead", ""), ("edges: [0.001]", "dead", ALIKE), (EDGES, "alive", ALIKE)],
    ids=["one interval", "a horizon below all times", "no event"],
)
def test_extreme_tables(tmp_path, capsys, edges, dead, line):
    table = write(tmp_path / "t", [row.replace("dead", dead) for row in patients(90)])
    declared = table.with_name("columns.yaml")
    declared.write_text(declared.read_text().replace(EDGES, edges))
    words = ["dataset=csv", f"dataset.path={table}", "dataset.num_clients=3", f"run.directory={tmp_path}/r"]
    words = ["simulate", *PLAIN, *words, "method=fedavg"]
    assert main(words) == (2 if line else 0)
    assert line in capsys.readouterr().err
    if line:
        assert not (tmp_path / "r").exists()
        assert main([*words, "dataset.metrics=[integrated_brier]"]) == 0
        assert "no training row has its event there" in capsys.readouterr().out
