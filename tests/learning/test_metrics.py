"""Tests of losses and metrics, against scikit-learn and against formulas that the tests compute."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from gdpfed.errors import LearningError
from gdpfed.learning.data import DATASETS, Dataset, DataSource, Split, register
from gdpfed.learning.labels import LOSSES, METRICS, Metric, labels_of
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.evaluate import central_evaluation
from gdpfed.learning.training.local_update import local_update
from gdpfed.learning.training.loss_checks import check_loss
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.record_losses import chosen_metrics, make_loss

CPU = torch.device("cpu")


def drawn(seed, classes, count=60):
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(count, classes))
    # Rounded outputs have ties.
    return outputs.round(1) if classes == 2 else outputs, rng.integers(0, classes, count)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_classes_are_those_of_scikit_learn(classes, seed):
    outputs, targets = drawn(seed, classes)
    answers = outputs.argmax(axis=1)
    powers = np.exp(outputs)
    shares = powers / powers.sum(axis=1, keepdims=True)
    scores = outputs[:, 1] - outputs[:, 0] if classes == 2 else shares
    expected = {
        "accuracy": reference.accuracy_score(targets, answers),
        "macro_f1": reference.f1_score(targets, answers, average="macro"),
        "auc": reference.roc_auc_score(targets, scores, multi_class="ovr"),
    }
    found = {name: METRICS.get(name).of(outputs, targets) for name in expected}
    assert found == pytest.approx(expected, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 100))
def test_metrics_of_numbers_are_those_of_scikit_learn(seed, scale):
    rng = np.random.default_rng(seed)
    targets, outputs = scale * rng.normal(size=20), scale * rng.normal(size=(20, 1))
    expected = {
        "mean_absolute_error": reference.mean_absolute_error(targets, outputs[:, 0]),
        "r2": reference.r2_score(targets, outputs[:, 0]),
    }
    found = {name: METRICS.get(name).of(outputs, targets) for name in expected}
    assert found == pytest.approx(expected, rel=1e-9)


def test_metrics_that_are_not_defined_say_so():
    assert METRICS.get("auc").of(np.zeros((4, 2)), np.ones(4, dtype=np.int64)) is None
    assert METRICS.get("r2").of(np.zeros((4, 1)), np.ones(4)) is None
    # A class without an example is left out of the mean.
    outputs, targets = drawn(1, 3)
    kept = targets != 2
    both = METRICS.get("auc").of(outputs[kept], targets[kept])
    assert both is not None
    assert 0 < both < 1


@pytest.mark.parametrize(
    ("names", "classes", "words"),
    [
        (
            ["auk"],
            2,
            "metric 'auk' is not known; did you mean auc. Use accuracy, auc, concordance, ece, exact_match, ",
        ),
        (
            ["r2"],
            2,
            "metrics=r2 does not fit labels that are 2 classes: use accuracy, auc, ece",
        ),
        (["accuracy"], 1, "does not fit labels that are numbers: use mean_absolute_error or r2"),
        (["auc", "auc"], 2, "names auc twice"),
    ],
)
def test_metrics_that_cannot_be_chosen(names, classes, words):
    with pytest.raises(LearningError, match=words):
        chosen_metrics(names, labels_of("", classes))


@pytest.mark.parametrize(
    ("name", "weights", "classes", "words"),
    [
        (
            "entropy",
            (),
            2,
            "loss 'entropy' is not known; did you mean cross_entropy. Use "
            "binary_cross_entropy, cross_entropy, discrete_hazard, huber, "
            "next_token or squared_error",
        ),
        ("cross_entropy", (), 1, "does not fit labels that are numbers: .* dataset.loss=squared_error"),
        ("squared_error", (), 3, "does not fit labels that are 3 classes: .* dataset.loss=cross_entropy"),
        ("cross_entropy", (1.0, 2.0), 3, "class_weights has 2 numbers: give 3, one for each class"),
        ("squared_error", (1.0,), 1, "class_weights has 1 numbers: labels that are numbers have none"),
    ],
)
def test_losses_that_do_not_fit(name, weights, classes, words):
    with pytest.raises(LearningError, match=words):
        check_loss(name, labels_of("", classes), weights)


def test_losses_of_packages_are_checked_as_well(monkeypatch):
    monkeypatch.setattr(LOSSES, "_items", dict(LOSSES._items))
    LOSSES.register("mean", lambda outputs, targets: (outputs[:, 0] - targets).square().mean())
    words = (
        "dataset.loss=mean gives one number for 3 records, and a loss gives one for each: leave out the mean "
        '(reduction="none")'
    )
    for labels in (labels_of("numbers", 1), labels_of("", 3)):
        with pytest.raises(LearningError, match=f"^{re.escape(words)}$"):
            check_loss("mean", labels)


def broken(outputs, targets):
    raise ValueError("no\n such thing")


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (broken, "the loss raised ValueError: no such thing"),
        (lambda outputs, targets: dict[str, float]()["mean"], "the loss raised KeyError: 'mean'"),
        (lambda outputs, targets: 0.0, "the loss returns a float, and not a tensor"),
        (lambda outputs, targets: np.float64(0.0), "the loss returns a float64, and not a tensor"),
        (lambda outputs, targets: np.zeros((3, 4)), "the loss returns a ndarray, and not a tensor"),
        (lambda outputs, targets: outputs, "the loss of 3 records has the shape [3, 4]"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_with_what_it_did(loss, why, monkeypatch):
    monkeypatch.setattr(LOSSES, "_items", dict(LOSSES._items))
    LOSSES.register("own", loss)
    words = "dataset.loss=own does not fit labels that are 4 classes: choose for instance "
    with pytest.raises(LearningError) as raised:
        check_loss("own", labels_of("", 4))
    assert str(raised.value) == f"{words}dataset.loss=cross_entropy ({why})"


def test_weights_multiply_a_record_and_nothing_else():
    outputs, targets = (torch.from_numpy(each) for each in drawn(0, 3))
    labels = labels_of("classes", 3)
    plain, weighted = (
        make_loss("cross_entropy", labels, weights)(outputs, targets) for weights in ((), (1.0, 2.5, 4.0))
    )
    factors = torch.tensor([1.0, 2.5, 4.0])[targets]
    torch.testing.assert_close(weighted, plain * factors, check_dtype=False)
    one = make_loss("cross_entropy", labels, (1.0, 2.5, 4.0))(outputs[:1], targets[:1])
    torch.testing.assert_close(one[0], weighted[0])


@pytest.mark.parametrize("name", ["squared_error", "huber"])
def test_regression_descends_its_loss(name):
    """A linear model's update under a regression loss is that of gradient descent in numpy."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(8, 3)).astype(np.float32)
    y = (4 * rng.uniform(-1, 1, 8)).astype(np.float32)
    model = build_model("linear", (3,), 1, seed=1)
    theta = flatten(model)
    training = LocalTraining(local_steps=4, batch_size=8, learning_rate=0.1, momentum=0.0)
    update = local_update(model, theta, Split(x, y), training, rng=rng, device=CPU, loss=LOSSES.get(name))
    point = theta.astype(np.float64)
    for _ in range(4):
        error = x.astype(np.float64) @ point[:3] + point[3] - y
        slope = 2 * error if name == "squared_error" else np.clip(error, -1, 1)
        point = point - 0.1 * np.append(x.T.astype(np.float64) @ slope, slope.sum()) / 8
    np.testing.assert_allclose(update.numpy(), point - theta, atol=1e-6)


@pytest.fixture
def numbers(monkeypatch):
    """Return a task whose label is 5 + 20 x, in the range from 0 to 10, and the scaled labels."""
    monkeypatch.setattr(DATASETS, "_items", dict(DATASETS._items))
    x = np.linspace(-0.25, 0.25, 12, dtype=np.float32)[:, None]
    y = (4 * x[:, 0]).astype(np.float32)
    register(
        "numbers",
        lambda source: Dataset(Split(x, y), Split(x, y), num_classes=1, target_range=(0.0, 10.0)),
    )
    return Task(DataSource("numbers"), "linear", "iid", 2, seed=0, loss="squared_error"), y


def test_numbers_are_judged_in_their_own_unit(numbers):
    task, y = numbers
    found = central_evaluation(task, "cpu", ["mean_absolute_error", "r2"])(np.zeros(2, dtype=np.float32))
    assert found.accuracy is None
    assert found.loss == pytest.approx(np.mean(y**2), rel=1e-5)
    assert found.metrics == pytest.approx({"mean_absolute_error": np.mean(np.abs(5 * y)), "r2": 0}, abs=1e-6)


def test_what_does_not_fit_the_data_is_refused_before_anything_is_trained(numbers):
    from dataclasses import replace

    task, _ = numbers
    with pytest.raises(LearningError, match="loss=cross_entropy does not fit labels that are numbers"):
        central_evaluation(replace(task, loss="cross_entropy"), "cpu")
    with pytest.raises(LearningError, match="partition=dirichlet shares out classes, and the labels"):
        replace(task, partition="dirichlet", dirichlet_alpha=1.0).client_indices(0)


def test_a_metric_that_the_test_split_cannot_have_is_refused(monkeypatch):
    monkeypatch.setattr(DATASETS, "_items", dict(DATASETS._items))
    train = Split(np.eye(4, dtype=np.float32), np.arange(4) % 2)
    register("alike", lambda source: Dataset(train, Split(train.x[:2], np.zeros(2, dtype=np.int64)), 2))
    task = Task(DataSource("alike"), "linear", "iid", 2, seed=0)
    with pytest.raises(LearningError, match="metrics=auc is not defined on the test split, whose 2 labels"):
        central_evaluation(task, "cpu", ["auc"])
    central_evaluation(task, "cpu", ["accuracy", "macro_f1"])


def test_a_task_travels_with_its_loss():
    task = Task(DataSource("digits"), "linear", "iid", 3, 0, class_weights=(1.0,) * 10).described()
    assert Task.from_json(task.to_json()) == task
    assert hash(task) == hash(Task.from_json(task.to_json()))


def test_calibration_is_the_gap_of_confidence_and_accuracy():
    # Four answers of confidence 0.9, of which three are right, and two of 0.6, both right.
    outputs = np.log(np.array([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 2))
    targets = np.array([0, 0, 0, 1, 1, 1])
    assert METRICS.get("ece").of(outputs, targets) == pytest.approx((4 * 0.15 + 2 * 0.4) / 6)
    certain = np.array([[50.0, 0.0], [0.0, 50.0]])
    assert METRICS.get("ece").of(certain, np.array([0, 1])) == pytest.approx(0, abs=1e-9)


def test_a_given_metric_is_not_defined_where_its_figure_is_not_finite_and_changes_no_label(monkeypatch):
    def blank(outputs, targets):
        outputs[:], targets[:] = 0, 0
        return float("nan")

    monkeypatch.setitem(METRICS._items, "blank", Metric(blank, "blank"))
    outputs, targets = drawn(0, 3)
    metric = chosen_metrics(["blank"], labels_of("classes", 3))["blank"]
    assert metric.of(outputs, targets) is None
    assert outputs.any()
    assert targets.any()


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Metric(lambda outputs, targets: 1 / 0, "broken"), "=broken fails on outputs of .*ZeroDivisionError"),
        (lambda outputs, targets: 1.0, "=broken is of type function: its package must declare a"),
    ],
)
def test_an_error_of_a_given_metric_is_one_line(item, words, monkeypatch):
    monkeypatch.setitem(METRICS._items, "broken", item)
    with pytest.raises(LearningError, match=words):
        chosen_metrics(["broken"], labels_of("classes", 3))["broken"].of(*drawn(0, 3))
