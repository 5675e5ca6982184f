"""Tests of labels that are sets or pictures: losses and metrics, against scikit-learn and torch."""

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch.nn import functional

from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.declaration import columns_of, read_columns, to_yaml
from gdpfed.learning.data.own import blank_example, own_split
from gdpfed.learning.data_warnings import data_warnings
from gdpfed.learning.labels import LABEL_KINDS, LOSSES, METRICS, labels_of
from gdpfed.learning.task import Task
from gdpfed.learning.training.evaluate import central_evaluation
from gdpfed.learning.training.loss_checks import check_loss
from gdpfed.learning.training.record_losses import chosen_metrics, make_loss

SETS, PIXELS = labels_of("label_sets", 3, (3,)), labels_of("pixels", 4, (5, 6))


def drawn_sets(seed=0, count=80):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 3)).round(1), rng.integers(0, 2, (count, 3))


def drawn_pixels(seed=0, count=7):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 4, 5, 6)), rng.integers(0, 4, (count, 5, 6))


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_sets_are_those_of_scikit_learn(seed):
    outputs, targets = drawn_sets(seed)
    answers = (outputs > 0).astype(int)
    expected = {
        "mean_auc": reference.roc_auc_score(targets, outputs, average="macro"),
        "exact_match": reference.accuracy_score(targets, answers),
        "hamming_loss": reference.hamming_loss(targets, answers),
        "micro_f1": reference.f1_score(targets, answers, average="micro"),
        "mean_f1": reference.f1_score(targets, answers, average="macro"),
    }
    found = {name: METRICS.get(name).of(outputs, targets) for name in expected}
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_pixels_are_those_of_scikit_learn(seed):
    outputs, targets = drawn_pixels(seed)
    answers = outputs.argmax(axis=1).reshape(-1)
    expected = {
        "mean_iou": reference.jaccard_score(targets.reshape(-1), answers, average="macro"),
        "pixel_accuracy": reference.accuracy_score(targets.reshape(-1), answers),
    }
    found = {name: METRICS.get(name).of(outputs, targets) for name in expected}
    assert found == pytest.approx(expected, abs=1e-12)


def test_calibration_is_counted_for_every_label_and_pixel():
    # Of one label 0.9 is said four times and it is there three times; the other label is said as it is.
    outputs = np.log(np.array([[9.0, 1e9], [9.0, 1e-9], [9.0, 1e9], [9.0, 1e-9]]))
    targets = np.array([[1, 1], [1, 0], [1, 1], [0, 0]])
    assert METRICS.get("mean_ece").of(outputs, targets) == pytest.approx((0.15 + 0) / 2, abs=1e-6)
    places = np.log(np.array([0.9, 0.1])).reshape(1, 2, 1, 1) * np.ones((1, 1, 2, 2))
    assert METRICS.get("pixel_ece").of(places, np.array([[[0, 0], [0, 1]]])) == pytest.approx(0.15)


def test_a_label_that_nobody_has_is_left_out_of_the_means():
    outputs, targets = drawn_sets()
    targets[:, 1] = 0
    rest = METRICS.get("mean_auc").of(outputs[:, [0, 2]], targets[:, [0, 2]])
    assert METRICS.get("mean_auc").of(outputs, targets) == rest
    assert METRICS.get("mean_auc").of(outputs, np.ones_like(targets)) is None


@pytest.mark.parametrize("weights", [(), (1.0, 2.5, 0.5)])
def test_the_loss_of_a_set_is_the_mean_over_its_labels(weights):
    outputs, targets = (torch.from_numpy(each) for each in drawn_sets())
    expected = functional.binary_cross_entropy_with_logits(
        outputs, targets.double(), reduction="none", pos_weight=torch.tensor(weights or (1.0,) * 3)
    ).mean(dim=1)
    found = make_loss("binary_cross_entropy", SETS, weights)(outputs, targets)
    torch.testing.assert_close(found, expected, check_dtype=False)


@pytest.mark.parametrize("weights", [(), (1.0, 2.5, 0.5, 3.0)])
def test_the_loss_of_a_picture_is_the_mean_over_its_pixels(weights):
    outputs, targets = (torch.from_numpy(each) for each in drawn_pixels())
    factors = torch.tensor(weights or (1.0,) * 4)[targets]
    each = functional.cross_entropy(outputs, targets, reduction="none")
    found = make_loss("cross_entropy", PIXELS, weights)(outputs, targets)
    torch.testing.assert_close(found, (factors * each).mean(dim=(1, 2)), check_dtype=False)


@pytest.mark.parametrize(
    ("name", "labels", "weights", "words"),
    [
        ("cross_entropy", SETS, (), "fit labels that are sets of 3 labels: .*loss=binary_cross_entropy"),
        (
            "squared_error",
            PIXELS,
            (),
            "4 classes at 5 x 6 places: choose for instance dataset.loss=cross_ent",
        ),
        ("binary_cross_entropy", SETS, (1.0,), "class_weights has 1 numbers: give 3, one for each label"),
        ("cross_entropy", PIXELS, (1.0, 2.0), "class_weights has 2 numbers: give 4, one for each class"),
    ],
)
def test_losses_that_do_not_fit(name, labels, weights, words):
    with pytest.raises(LearningError, match=words):
        check_loss(name, labels, weights)


def test_weights_need_a_loss_of_every_label(monkeypatch):
    monkeypatch.setattr(LOSSES, "_items", dict(LOSSES._items))
    LOSSES.register("worst", lambda outputs, y: (outputs - y).square().amax(dim=1))
    check_loss("worst", SETS)
    with pytest.raises(
        LearningError, match="class_weights weigh the loss of each label, and .*=worst is one"
    ):
        check_loss("worst", SETS, (1.0, 1.0, 2.0))


def test_metrics_are_those_of_the_kind():
    assert [*chosen_metrics(None, SETS)] == ["mean_auc"]
    assert [*chosen_metrics(["pixel_ece", "mean_iou"], PIXELS)] == ["pixel_ece", "mean_iou"]
    words = "metrics=auc does not fit labels that are sets of 3 labels: use exact_match, hamming_loss, "
    with pytest.raises(LearningError, match=words):
        chosen_metrics(["auc"], SETS)


def arrays(**changes):
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {"x_train": rng.normal(size=(40, 3)), "x_test": rng.normal(size=(20, 3))}
    made |= {"y_train": rng.integers(0, 2, (40, 3)), "y_test": rng.integers(0, 2, (20, 3))}
    return made | changes


def saved(path, **changes):
    np.savez(path, **arrays(**changes))
    return DataSource("npz", str(path))


def test_arrays_say_by_their_shape_what_labels_are(tmp_path):
    sets = load_dataset(saved(tmp_path / "sets.npz"))
    assert (sets.labels, sets.num_classes) == (SETS, 3)
    pictures = {f"x_{part}": np.zeros((9, 1, 5, 6)) for part in ("train", "test")}
    places = {f"y_{part}": np.arange(270).reshape(9, 5, 6) % 4 for part in ("train", "test")}
    assert load_dataset(saved(tmp_path / "pixels.npz", **pictures, **places)).labels == PIXELS
    numbers = load_dataset(
        saved(tmp_path / "n.npz", y_train=np.linspace(-1, 1, 40), y_test=np.linspace(-1, 1, 20))
    )
    assert numbers.labels == labels_of("numbers", 1)
    form = ExampleForm.of(sets)
    assert ExampleForm.from_values({**vars(form), "label_shape": [3]}) == form
    assert blank_example(form).y.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": np.full((20, 3), 2)}, "hold 2 at most; a set has two labels or more, each 0 or 1"),
        ({"y_train": np.ones((40, 1), int), "y_test": np.zeros((20, 1), int)}, "For one class a record give"),
        ({"y_train": np.full((40, 3), 0.5)}, "y_train must hold class numbers"),
        ({"y_train": np.zeros((40, 4), int)}, r"labels of shape \(4,\) .* in y_train but \(3,\)"),
        (
            {
                f"y_{part}": np.eye(3, dtype=int)[np.arange(n) % 2]
                for part, n in (("train", 40), ("test", 20))
            },
            "label 2 is 0 in all rows, and nothing is learnt of it",
        ),
    ],
)
def test_sets_that_cannot_be_used_are_named(tmp_path, changes, words):
    with pytest.raises(LearningError, match=words):
        load_dataset(saved(tmp_path / "sets.npz", **changes))


@pytest.mark.parametrize("name", ["dirichlet", "labels", "shards", "pathological"])
def test_partitions_by_class_refuse_sets(tmp_path, name):
    task = Task(saved(tmp_path / "sets.npz"), "linear", name, 4, 0, dirichlet_alpha=0.5, shards=2)
    with pytest.raises(LearningError, match=f"partition={name} shares out classes, .* sets of 3 labels: use"):
        task.client_indices(0)


def test_partitions_by_size_share_out_sets(tmp_path):
    task = Task(saved(tmp_path / "sets.npz"), "linear", "linear", 4, 0)
    assert sum(len(task.client_indices(client)) for client in range(4)) == 40
    assert task.class_counts().sum(axis=0).tolist() == arrays()["y_train"].sum(axis=0).tolist()


def test_labels_of_a_node_that_are_none_count_as_blank(tmp_path):
    form = ExampleForm.of(load_dataset(saved(tmp_path / "sets.npz")))
    wrong = arrays()["y_train"].copy()
    wrong[5, 1] = 7
    np.savez(tmp_path / "own.npz", x_train=arrays()["x_train"], y_train=wrong)
    own = own_split(tmp_path / "own.npz", form)
    assert own.y[5].tolist() == [0, 0, 0]
    assert not own.x[5].any()
    np.savez(tmp_path / "own.npz", x_train=arrays()["x_train"], y_train=wrong[:, :2])
    with pytest.raises(LearningError, match=r"y_train \(40, 2\); this training takes \(N, 3\) and \(N, 3\)"):
        own_split(tmp_path / "own.npz", form)


DECLARED = {
    "label": {"columns": {"stroke": ["no", "yes"], "sepsis": ["0", "1"]}},
    "numeric": {"age": ["0", "99"]},
}


def table(folder, rows):
    (folder / "stays.csv").write_text("\n".join(["age,stroke,sepsis", *rows, ""]))
    (folder / "columns.yaml").write_text(to_yaml(columns_of(DECLARED, "here")))
    return DataSource("csv", str(folder / "stays.csv"))


ROWS = ["20,no,0", "30,yes,1", "40,no,1", "50,yes,0", "60,no,0"] * 4


def test_a_set_is_declared_by_its_columns(tmp_path):
    data = load_dataset(table(tmp_path, ROWS))
    assert data.labels == labels_of("label_sets", 2, (2,))
    assert data.columns is not None
    assert data.columns.class_names == ("stroke", "sepsis")
    held = np.concatenate([data.train.y, data.test.y]).tolist()
    assert sorted(held) == sorted([int("yes" in row), int(row[-1])] for row in ROWS)
    assert read_columns(tmp_path / "columns.yaml") == data.columns
    short = columns_of({"label": {"columns": ["stroke", "sepsis"]}, "numeric": {"age": ["0", "99"]}}, "here")
    assert [each.values for each in short.label_set] == [("0", "1")] * 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([*ROWS, "20,no,2"], "column 'sepsis' holds '2' in row 21, which is not one of 0, 1"),
        ([*ROWS, "20,,1"], "row 21 has no label in the column 'stroke': declare missing_labels: drop"),
    ],
)
def test_values_of_a_set_that_are_not_declared_are_named(tmp_path, rows, words):
    with pytest.raises(LearningError, match=words):
        load_dataset(table(tmp_path, rows))


@pytest.mark.parametrize("columns", [["stroke"], {"stroke": ["no", "yes", "perhaps"], "sepsis": ["0", "1"]}])
def test_a_set_of_one_column_or_of_three_values_is_refused(columns):
    with pytest.raises(LearningError, match="label.columns is .*; it must be two columns or more"):
        columns_of({**DECLARED, "label": {"columns": columns}}, "here")


def test_a_label_that_all_have_is_warned_of(tmp_path):
    source = table(tmp_path, ["20,no,0", "30,yes,0", "40,no,0", "50,yes,0", "60,no,0"] * 4)
    task = Task(source, "linear", "iid", 2, 0, loss="binary_cross_entropy")
    assert any("label sepsis is alike in all training examples" in line for line in data_warnings(task))
    central_evaluation(task, "cpu")


def test_a_kind_that_there_is_not_is_refused():
    assert LABEL_KINDS.names() == ["classes", "label_sets", "numbers", "pixels", "times_to_event"]
    with pytest.raises(LearningError, match="kind of labels 'trees' is not known: use classes, label_sets"):
        labels_of("trees", 3)
