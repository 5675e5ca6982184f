"""Tests of softmax regression on inputs of norm one: bounded gradients, and a record's bounded effect."""

import math
from typing import Any, cast

import numpy as np
import pytest
import torch

from fastgrad.forms import record_gradients
from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import SoftmaxGradients
from gdpfed.errors import LearningError
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.models.networks import ConvexBounds, convex_bounds
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.record_training import RecordHolder, noised_updates
from gdpfed.privacy.accountants.pld import pld_epsilon
from gdpfed.privacy.events import LocalWindows
from gdpfed.record_steps import RecordSteps

CPU = torch.device("cpu")
SHAPE, CLASSES, STEPS, RATE = (6,), 4, 5, 0.3


def model(**options):
    return build_model("softmax", SHAPE, CLASSES, seed=0, options=tuple(options.items()))


def records(count, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, *SHAPE)).astype(np.float32) * rng.choice([1e-3, 1.0, 1e3], (count, 1))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(rng.integers(CLASSES, size=count))


def test_every_input_has_one_norm_and_zeros_stay_zeros():
    x, _ = records(50)
    bounded = model()[1](x)
    assert torch.linalg.vector_norm(bounded, dim=1).numpy() == pytest.approx(math.sqrt(1.01), rel=1e-6)
    assert model()[1](torch.zeros(1, *SHAPE)).tolist() == [[0.0] * 6 + [pytest.approx(0.1)]]
    assert sum(p.numel() for p in model().parameters()) == (6 + 1) * CLASSES


def test_no_gradient_is_longer_than_the_bound_and_some_come_near():
    x, y = records(400)
    network, bounds = model(bias_input=0.5), ConvexBounds(math.sqrt(2 * 1.25), 1.25 / 2)
    assert convex_bounds(network) == bounds
    form = record_gradients(network, cross_entropy, x[:4], y[:4], device=CPU)
    assert isinstance(form, SoftmaxGradients)
    for scale in (1.0, 1e3):
        rows = form.rows(scale * torch.from_numpy(flatten(network))[None], x[None], y[None])[0]
        norms = torch.linalg.vector_norm(rows.double(), dim=1)
        assert norms.max() <= bounds.gradient_norm * (1 + 1e-6)
    assert norms.max() > 0.99 * bounds.gradient_norm


def test_the_closed_form_is_what_autograd_computes():
    x, y = records(20)
    network = model()
    form = record_gradients(network, cross_entropy, x[:4], y[:4], device=CPU)
    weight = next(network.parameters())
    (expected,) = torch.autograd.grad(cross_entropy(network(x), y).sum(), weight)
    found = form.rows(torch.from_numpy(flatten(network))[None], x[None], y[None]).sum(dim=1)
    assert torch.allclose(found[0], expected.reshape(-1), atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_other_models_have_no_bounds(name):
    assert convex_bounds(build_model(name, SHAPE, CLASSES, seed=0)) is None


def test_a_constant_input_is_positive():
    with pytest.raises(LearningError, match="bias_input=0"):
        model(bias_input=0)


def test_how_large_a_batch_a_step_stands():
    bounds = ConvexBounds(gradient_norm=1.4, smoothness=0.5)
    assert bounds.largest_batch(2.0, 0.05, 100) == 10
    assert bounds.chance_of_long_step(0.2, 0.05, 100) == 0.0
    assert bounds.chance_of_long_step(2.0, 0.05, 100) == pytest.approx(0.0115, abs=2e-4)


class Coupled:
    """A sampler that returns given batches without the record `without`, and counts batches with record 0."""

    def __init__(self, batches, without=None):
        self.expected_size = 12.0
        self.met = 0
        self._batches, self._without = iter(batches), without

    def draw(self, random_bytes):
        batch = next(self._batches)
        self.met += bool((batch == 0).any())
        return batch[batch != self._without]


@pytest.mark.parametrize("seed", range(8))
def test_coupled_windows_drift_no_further_than_the_record_was_met(seed):
    """If two runs differ by one record, the number of batches with it bounds the distance of their models."""
    rng = np.random.default_rng(seed)
    x, y = records(40, seed)
    network = model()
    bounds = convex_bounds(network)
    assert bounds is not None
    form = record_gradients(network, cross_entropy, x[:4], y[:4], device=CPU)
    batches = [np.flatnonzero(rng.random(40) < RATE) for _ in range(STEPS)]
    eta = 2 * 12.0 / (bounds.smoothness * max(map(len, batches)))
    steps = RecordSteps(
        num_steps=STEPS, batch_rates=(RATE,), clipping_norm=bounds.gradient_norm, noise_multiplier=0.0
    )
    both = [Coupled(batches), Coupled(batches, without=0)]
    holders = [RecordHolder(np.arange(40), steps, cast("Any", each), lambda n: bytes(n)) for each in both]
    theta = rng.choice([0.1, 3.0]) * rng.normal(size=7 * CLASSES).astype(np.float32)
    ends = noised_updates(
        form,
        theta.astype(np.float32),
        LocalTraining(STEPS, 1, eta, 0.0),
        holders,
        lambda places: (x[places], y[places]),
    )
    drift = float((ends[0] - ends[1]).norm())
    assert drift <= both[0].met * eta * bounds.gradient_norm / 12.0 * (1 + 1e-3) + 1e-5
    assert drift > 0 or both[0].met == 0


class Flipping:
    """A worst-case loss in one dimension, whose gradient changes sign once a batch contains record 0.

    Without it every step goes down by eta G. The record's own gradient is huge and goes up, and from then on
    the model lies above the way down, where all others point up as well.
    """

    device, stacks, most_clients = CPU, True, None

    def __init__(self):
        self.taken = 0

    def records_at_once(self, least_bytes=0):
        return 10**9

    def clipped_sums(self, thetas, x, y, present, clipping_norms):
        way_down = -0.1 * self.taken
        on_the_way = (thetas[:, 0] - way_down).abs() < 0.01
        met = ((x == 0) & present).any(dim=1)
        self.taken += 1
        return torch.where(on_the_way & ~met, 1e3, -1e3)[:, None]


def test_a_flipping_loss_attains_the_mixture_of_clipped_windows():
    """With a worst-case loss, the shifts of a model follow the distribution that the accounting assumes."""
    loss, paths = Flipping(), 6_000
    rng = np.random.default_rng(0)

    class Drawn:
        expected_size = 1.0

        def draw(self, random_bytes):
            # Record 0 with chance q; record 1, which keeps the batch from being empty, always.
            return np.array([0, 1]) if rng.random() < 0.05 else np.array([1])

    steps = RecordSteps(num_steps=STEPS, batch_rates=(0.05,), clipping_norm=1.0, noise_multiplier=0.0)
    holders = [
        RecordHolder(np.arange(2), steps, cast("Any", Drawn()), lambda n: bytes(n)) for _ in range(paths)
    ]
    ends = noised_updates(
        cast("Any", loss),
        np.zeros(1, np.float32),
        LocalTraining(STEPS, 1, 0.1, 0.0),
        holders,
        lambda places: (torch.from_numpy(places), torch.from_numpy(places)),
        bound="step",
    )
    moved = (ends[:, 0].numpy() + 0.1 * STEPS) / (2 * 0.1 * STEPS)
    event = LocalWindows(
        bound="window", batch_rate=0.05, noise_multiplier=2.0, num_steps=STEPS, window_steps=STEPS
    )
    found = {}
    for move, chance in zip(event.mixture.sensitivities, event.mixture.weights, strict=True):
        found[move] = np.mean(np.abs(moved - move) < 1e-3)
        assert found[move] == pytest.approx(chance, abs=4 * math.sqrt(chance / paths))
    assert sum(found.values()) == pytest.approx(1.0)
    # Delta of those moves under noise of z = 2, against the specification's 0.0203 and 0.0050.
    noise = rng.normal(size=(100, paths)) * 2.0
    seen = moved + noise
    moves, chances = np.array(event.mixture.sensitivities), np.array(event.mixture.weights)
    losses = np.log((chances * np.exp((2 * seen[..., None] * moves - moves**2) / 8)).sum(axis=-1))
    for epsilon, delta in [(0.02, 0.0203), (0.1, 0.0050)]:
        attained = np.maximum(-np.expm1(epsilon - losses), 0).mean()
        assert attained == pytest.approx(delta, rel=0.1)
        assert pld_epsilon(event, 1, delta) == pytest.approx(epsilon, rel=0.05)
