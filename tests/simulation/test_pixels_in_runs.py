"""Tests of runs on pictures with a class at every pixel, also with a user's loss, metric and model."""

import numpy as np
import pytest
import torch
from torch import nn

import gdpfed
from gdpfed.cli import main
from gdpfed.learning.labels import LOSSES, METRICS, Metric
from gdpfed.learning.models import MODELS
from gdpfed.runs.round_log import read_rounds
from testing.settings import last_of_each

PLAIN = ("secagg=off", "simulation.workers=1", "dataset=npz", "dataset.num_clients=6", "dataset.model=fcn")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Save pictures with noise, in which bright pixels are of class 1."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("pictures") / "pictures.npz"
    clear = rng.integers(0, 2, (80, 1, 6, 6)).astype(float)
    x, y = clear + 0.1 * rng.normal(size=clear.shape), clear[:, 0].astype(int)
    np.savez(path, x_train=x[20:], y_train=y[20:], x_test=x[:20], y_test=y[:20])
    return path


def simulate(pictures, directory, *overrides):
    words = (*PLAIN, f"dataset.path={pictures}", f"run.directory={directory}", *overrides)
    assert main(["simulate", *last_of_each(words)]) == 0
    return directory


def metrics_of(run):
    """Return the metrics of the last round that are defined."""
    return {k: each for k, each in read_rounds(run)[-1].metrics.items() if each is not None}


def test_every_pixel_is_learnt_and_predicted(pictures, tmp_path, capsys):
    metrics = "dataset.metrics=[mean_iou,pixel_accuracy,pixel_ece]"
    words = (
        "method=fedavg",
        "run.num_rounds=30",
        "privacy.sampling_rate=1",
        "training.learning_rate=1",
        metrics,
    )
    run = simulate(pictures, tmp_path / "run", *words)
    assert read_rounds(run)[-1].accuracy is None
    reached = metrics_of(run)
    assert reached["mean_iou"] > 0.95
    assert reached["pixel_accuracy"] > 0.97
    assert "mean IoU" in capsys.readouterr().out
    assert "* mean IoU on the server's test set" in (run / "model_card.md").read_text()
    with np.load(pictures) as arrays:
        found = gdpfed.load_model(run).predict(arrays["x_test"])
        assert found.labels.shape == (20, 6, 6)
        assert np.mean(found.labels == arrays["y_test"]) == pytest.approx(reached["pixel_accuracy"])
    assert found.probabilities is not None
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-6)


def test_pixels_of_protected_records_are_trained_on_and_audited(pictures, tmp_path):
    run = simulate(pictures, tmp_path / "run", "privacy=record_level", "method=dp_sum", "run.num_rounds=2")
    assert 0 <= metrics_of(run)["mean_iou"] <= 1
    assert main(["audit", str(run)]) == 0


def dice(outputs, targets):
    """Return the Dice loss of each record: 1 minus twice the overlap over the total of class 1."""
    inked = outputs.softmax(dim=1)[:, 1].flatten(1)
    wanted = targets.flatten(1).to(inked.dtype)
    return 1 - 2 * (inked * wanted).sum(dim=1) / (inked + wanted).sum(dim=1)


def test_a_loss_a_metric_and_a_model_of_ones_own(pictures, tmp_path, monkeypatch):
    for registry in (LOSSES, METRICS, MODELS):
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    gdpfed.register("loss", "dice", dice)
    gdpfed.register("model", "by_pixel", lambda shape, classes: nn.Conv2d(shape[0], classes, 1))
    overlap = Metric(
        lambda outputs, y: float(1 - dice(*map(torch.from_numpy, (outputs, y))).mean()),
        "Dice",
        labels="pixels",
    )
    gdpfed.register("metric", "overlap", overlap)
    words = ("dataset.loss=dice", "dataset.model=by_pixel", "dataset.metrics=[overlap,mean_iou]")
    more = ("method=fedavg", "run.num_rounds=10", "privacy.sampling_rate=1", "training.learning_rate=3")
    run = simulate(pictures, tmp_path / "run", *words, *more)
    last, reached = read_rounds(run)[-1], metrics_of(run)["overlap"]
    assert last.shown == ("overlap", reached)
    assert last.loss == pytest.approx(1 - reached, abs=1e-5)
    assert reached > 0.7
    private = simulate(
        pictures, tmp_path / "private", *words, "privacy=record_level", "method=dp_sgd", "run.num_rounds=2"
    )
    assert main(["audit", str(private)]) == 0
