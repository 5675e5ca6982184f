"""Tests of local training, against a second computation in numpy, and of clipping."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gdpfed.learning.data import Split
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.training.local_update import clip, local_update
from gdpfed.learning.training.optimizers import LocalTraining, difference

CPU = torch.device("cpu")


def softmax_regression(theta, x, y, *, classes, steps, rate, momentum):
    """Compute the update of full-batch gradient descent on the mean cross-entropy in numpy."""
    features = x.reshape(len(x), -1).astype(np.float64)
    weights = theta[: classes * features.shape[1]].reshape(classes, -1).astype(np.float64)
    bias = theta[classes * features.shape[1] :].astype(np.float64)
    velocity_w, velocity_b = np.zeros_like(weights), np.zeros_like(bias)
    for _ in range(steps):
        logits = features @ weights.T + bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        velocity_w = momentum * velocity_w + p.T @ features / len(y)
        velocity_b = momentum * velocity_b + p.mean(axis=0)
        weights, bias = weights - rate * velocity_w, bias - rate * velocity_b
    return np.concatenate([weights.ravel(), bias]) - theta


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_update_is_that_of_gradient_descent(momentum):
    rng = np.random.default_rng(0)
    data = Split(rng.normal(size=(4, 6)).astype(np.float32), np.array([0, 2, 1, 2]))
    model = build_model("linear", (6,), 3, seed=1)
    theta = flatten(model)
    training = LocalTraining(local_steps=5, batch_size=4, learning_rate=0.3, momentum=momentum)
    update = local_update(model, theta, data, training, rng=rng, device=CPU)
    expected = softmax_regression(theta, data.x, data.y, classes=3, steps=5, rate=0.3, momentum=momentum)
    np.testing.assert_allclose(update.numpy(), expected, atol=2e-6)
    assert np.abs(expected).max() > 0.05


def test_batches_walk_through_all_examples():
    data = Split(np.eye(10, dtype=np.float32), np.zeros(10, dtype=np.int64))
    model = build_model("linear", (10,), 2, seed=0)
    training = LocalTraining(local_steps=5, batch_size=2, learning_rate=0.1, momentum=0.0)
    update = local_update(
        model, flatten(model), data, training, rng=np.random.default_rng(3), device=CPU
    ).numpy()
    # Each example is one input coordinate: all of them have moved their weights, each once.
    assert (np.abs(update[:20].reshape(2, 10)) > 1e-4).all()


class Unused(nn.Linear):
    """A model with a parameter that no output depends on."""

    def __init__(self):
        super().__init__(4, 2)
        self.other = nn.Parameter(torch.ones(3))


def test_a_parameter_that_no_output_depends_on_does_not_move():
    data = Split(np.eye(4, dtype=np.float32), np.arange(4) % 2)
    training = LocalTraining(local_steps=2, batch_size=4, learning_rate=0.1, momentum=0.0)
    model = Unused()
    update = local_update(model, flatten(model), data, training, rng=np.random.default_rng(0), device=CPU)
    moved = dict(zip(model.state_dict(), update.split([8, 2, 3]), strict=True))
    assert not moved["other"].any()
    assert moved["weight"].abs().min() > 1e-3


def test_no_data_is_a_zero_update():
    model = build_model("linear", (6,), 3, seed=1)
    data = Split(np.zeros((0, 6), dtype=np.float32), np.zeros(0, dtype=np.int64))
    training = LocalTraining(5, 4, 0.3, 0.0)
    update = local_update(model, flatten(model), data, training, rng=np.random.default_rng(0), device=CPU)
    assert update.shape == (21,)
    assert not update.any()


@given(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=20),
    st.floats(1e-3, 1e3),
)
def test_clip_bounds_the_norm_and_keeps_the_direction(values, clipping_norm):
    update = torch.tensor(values, dtype=torch.float64)
    clipped = clip(update, clipping_norm)
    norm = float(torch.linalg.vector_norm(update))
    assert float(torch.linalg.vector_norm(clipped)) <= clipping_norm * (1 + 1e-12)
    factor = min(1.0, clipping_norm / norm) if norm else 1.0
    torch.testing.assert_close(clipped, update * factor)


def test_clip_leaves_zero_alone_and_turns_what_is_not_finite_to_zero():
    assert not clip(torch.zeros(3, dtype=torch.float64), 1.0).any()
    for bad in (float("nan"), float("inf"), -float("inf")):
        update = torch.tensor([1.0, bad, 2.0], dtype=torch.float64)
        assert not clip(update, 1.0).any()
        assert not clip(update, float("inf")).any()


def test_clip_of_an_overflowing_norm_is_zero_and_not_nan():
    assert torch.isfinite(clip(torch.full((4,), 1e200, dtype=torch.float64), 1.0)).all()


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_an_update_that_is_not_finite_is_one_without_a_warning(kind):
    largest = torch.finfo(kind).max
    ends = torch.tensor([torch.inf, torch.nan, largest, 2.0], dtype=kind)
    starts = torch.tensor([torch.inf, 1.0, -largest, 0.5], dtype=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = difference(ends, starts)
    assert torch.equal(found.nan_to_num(nan=-1.0), (ends.double() - starts.double()).nan_to_num(nan=-1.0))
