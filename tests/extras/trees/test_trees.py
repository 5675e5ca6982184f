"""Tests of random trees: splits from public numbers alone, one leaf per tree, and a record's influence."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

import gdpfed
from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import task_of
from gdpfed.clients.record_forms import gradients_of
from gdpfed.errors import ConfigError, LearningError
from gdpfed.extras.trees.audit import check_trees
from gdpfed.extras.trees.splits import drawn_splits, read_widths
from gdpfed.learning.models import build_model
from gdpfed.methods import make_method, resolve
from gdpfed.report.run_observers import ModelCard
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.in_process_fleet import simulate_prepared

TREES = ("dataset=breast_cancer", "privacy=record_level", "method=trees", "method.trees=20")
TRAINED = (
    *("method.chosen=[]", "privacy.batch_rate=1", "run.num_rounds=3", "training.learning_rate=16"),
    *("privacy.budgets=[20]", "secagg.minimum_cohort=2", "simulation.workers=1"),
)


def test_splits_follow_from_seed_and_columns_alone():
    # Whoever changes the law changes the models of all parties that have another version.
    splits = drawn_splits((1, 1, 4), trees=3, depth=2, seed=1)
    assert splits.inputs.tolist() == SPLIT_INPUTS
    np.testing.assert_allclose(splits.thresholds, SPLIT_THRESHOLDS, atol=5e-5)


SPLIT_INPUTS = [[1, 1], [1, 0], [1, 1]]
SPLIT_THRESHOLDS = [[-0.2245, -0.5557], [-0.8129, -0.8255], [0.5613, -0.0036]]


def test_every_column_is_asked_as_often_whatever_number_of_values_it_has():
    splits = drawn_splits((1, 1, 38), trees=1000, depth=2, seed=7)
    asked = splits.inputs.reshape(-1)
    shares = [np.mean(asked == 0), np.mean(asked == 1), np.mean(asked >= 2)]
    # Six standard deviations of a share of 2,000 draws.
    assert np.abs(np.array(shares) - 1 / 3).max() < 6 * math.sqrt(2 / 9 / 2000)
    assert set(asked[asked >= 2].tolist()) == set(range(2, 40))
    of_numbers, of_values = splits.thresholds[splits.inputs < 2], splits.thresholds[splits.inputs >= 2]
    assert set(of_values.tolist()) == {0.5}
    assert -1 < of_numbers.min() < -0.98
    assert 0.98 < of_numbers.max() < 1
    assert abs(of_numbers.mean()) < 6 / math.sqrt(3 * len(of_numbers))


def test_a_record_is_in_one_leaf_of_each_tree():
    model = build_model("trees", (6,), 2, seed=0, options=(("columns", "1,1,4"), ("depth", 3), ("trees", 11)))
    x = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = model.get_submodule("leaves")(x)
    splits = drawn_splits((1, 1, 4), 11, 3, 1)
    for row, leaves in zip(x.numpy(), found.numpy().reshape(5, 11, 8), strict=True):
        for tree, values in enumerate(leaves):
            answers = row[splits.inputs[tree]] > splits.thresholds[tree]
            expected = np.zeros(8)
            expected[answers @ [1, 2, 4]] = 1 / math.sqrt(11)
            np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert not model(x).any()


def test_a_record_moves_the_sum_by_the_gradient_of_its_loss_however_many_trees_there_are():
    expected = None
    for trees in (1, 40):
        task = task_of(resolve(load([*TREES, f"method.trees={trees}", "method.chosen=[]"])))
        gradients = gradients_of(task, torch.device("cpu"))
        data = task.load().train.take(np.arange(12))
        x, y = torch.from_numpy(data.x)[None], torch.from_numpy(data.y)[None]
        rows = gradients.rows(torch.zeros(1, task.dimension), x, y)[0]
        # Without values p is 1/2 for both classes, and (p - 1, p) has norm sqrt(1/2).
        np.testing.assert_allclose(rows.norm(dim=1), math.sqrt(0.5), rtol=1e-5)
        assert ((rows != 0).sum(dim=1) == 2 * trees).all()
        expected = rows.norm(dim=1) if expected is None else expected
        np.testing.assert_allclose(rows.norm(dim=1), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["dataset.model=mlp"], "trains trees, not dataset.model=mlp"),
        (["dataset=digits"], "asks for declared columns, and dataset=digits has none"),
        (["dataset.model_options={trees:7}"], "follow from method=trees"),
        (["privacy=client_level", "privacy.unit=client"], "protects a record, not privacy.unit=client"),
        (["privacy.noise=correlated"], "privacy.noise=correlated"),
        (["method.depth=9"], "method.depth=9 must be a whole number from 1 to 6"),
        (["method.trees=0"], "method.trees=0 must be a whole number from 1 to 2000"),
        (["training.optimizer=adam", "method.chosen=[]"], "made for steps of SGD"),
    ],
)
def test_what_does_not_go_with_trees_is_refused_in_one_line(more, line):
    with pytest.raises(ConfigError, match=line.replace("(", r"\(")) as refused:
        make_method(load([*TREES, *more]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["1,1", "1,1,x", "0,6", "1,,5", "-1,7"])
def test_columns_that_are_not_the_inputs_are_refused(text):
    with pytest.raises(LearningError, match="must list how many inputs each column has"):
        read_widths(text, 6)


def test_what_is_resolved_resolves_to_itself():
    found = resolve(load(TREES))
    assert resolve(found) == found
    assert found.dataset.model == "trees"
    assert found.dataset.model_options["columns"] == ",".join(["1"] * 30)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trees") / "run"
    prepared = PreparedRun.of(load([*TREES, *TRAINED, f"run.directory={directory}"]))
    simulate_prepared(
        prepared, make_observers=lambda run, _: [*run.method.observers(run.path), ModelCard(run)]
    )
    return directory


def test_trees_learn_and_the_audit_agrees(run):
    found = audit_run(run)
    assert found.findings == ()
    assert found.passed
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["metrics"]["auc"] > 0.9


def test_another_program_computes_what_the_folder_predicts(run):
    model = gdpfed.load_model(run)
    assert type(model.module.leaves).__name__ == "Leaves"
    x = np.random.default_rng(0).uniform(-1, 1, (4, 30)).astype(np.float32)
    weights = model.module.state_dict()
    splits = drawn_splits((1,) * 30, 20, 2, 1)
    scores = np.zeros((4, 2))
    for tree in range(20):
        places = (x[:, splits.inputs[tree]] > splits.thresholds[tree]) @ [1, 2]
        scores += weights["values.weight"].numpy()[:, 4 * tree + places].T / math.sqrt(20)
    with torch.no_grad():
        np.testing.assert_allclose(model.module(torch.from_numpy(x)), scores, rtol=1e-4, atol=1e-5)


def test_onnx_gives_the_same_answers(run, tmp_path):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    onnxruntime = pytest.importorskip("onnxruntime")
    from gdpfed.learning.onnx_export import save_onnx

    model = gdpfed.load_model(run)
    save_onnx(model, tmp_path / "trees.onnx")
    x = np.random.default_rng(1).uniform(-1, 1, (5, 30)).astype(np.float32)
    with torch.no_grad():
        expected = torch.softmax(model.module(torch.from_numpy(x)), dim=1)
    session = onnxruntime.InferenceSession(tmp_path / "trees.onnx")
    assert model.columns is not None
    ranges = np.array([[each.low, each.high] for each in model.columns.numeric])
    raw = ranges[:, 0] + (x + 1) / 2 * (ranges[:, 1] - ranges[:, 0])
    (answer,) = session.run(None, {"inputs": raw.astype(np.float64)})
    np.testing.assert_allclose(answer, expected, atol=1e-4)


def _with_threshold(directory):
    path = directory / "model" / "weights.safetensors"
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    begin = json.loads(data[8 : 8 + length])["leaves.thresholds"]["data_offsets"][0] + 8 + length
    data[begin : begin + 4] = np.float32(0.123).tobytes()
    path.write_bytes(data)


def _with_seed(directory):
    path = directory / "config.yaml"
    path.write_text(path.read_text().replace("seed: 1\n", "seed: 2\n", 1))


def _with_less_noise(directory):
    path = directory / "plan.json"
    plan = json.loads(path.read_text())
    plan["groups"][0]["records"]["noise_multiplier"] *= 0.9
    path.write_text(json.dumps(plan))


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (_with_threshold, "other leaves.thresholds than those that are drawn"),
        (_with_seed, "where {'trees': 20"),
        (_with_less_noise, "whose delta at epsilon 20"),
    ],
)
def test_the_audit_names_splits_of_other_origin_and_a_charge_that_is_too_small(run, tmp_path, edit, line):
    from gdpfed.audit.run_files import RunFiles

    directory = tmp_path / "edited"
    shutil.copytree(run, directory)
    edit(directory)
    found = list(check_trees(directory, RunFiles.read(directory)))
    assert len(found) == 1
    assert line in found[0]
    assert found[0] in audit_run(directory).findings
