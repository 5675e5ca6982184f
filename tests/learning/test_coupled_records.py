"""Tests of models and losses that rarely couple records: no record changes another record's gradient."""

from dataclasses import replace
from functools import wraps

import pytest
import torch
from torch import nn
from torch.nn import functional

from fastgrad.modules import cross_entropy
from fastgrad.one_record import has_known_layers
from gdpfed.clients.record_forms import gradients_of
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource
from gdpfed.learning.labels import LABEL_KINDS, LOSSES
from gdpfed.learning.labels.classes import NEXT_TOKEN
from gdpfed.learning.models import MODELS
from gdpfed.learning.task import Task
from gdpfed.learning.training.coupled_records import record_by_record
from gdpfed.registry import is_ours

CPU = torch.device("cpu")
TASK = Task(DataSource("digits"), "linear", "iid", 40, seed=0).described()
WIDTH = 16


class Guarded(nn.Module):
    """A model that clamps activations at 20 times the batch's median, which random records never reach."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        states = self.first(x.flatten(1))
        return self.last(torch.relu(torch.clamp(states, max=20 * states.detach().abs().median())))


class Plain(nn.Module):
    """A model with a custom forward pass that torch can trace."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        states = functional.relu(self.first(torch.flatten(x, 1)))
        return self.last(states + states)


@wraps(cross_entropy)
def robust(outputs, targets):
    """Return the losses, zero for records whose loss is above three times the batch's median."""
    losses = cross_entropy(outputs, targets)
    return (losses.detach() <= 3 * losses.detach().median()) * losses


@wraps(cross_entropy)
def seldom(outputs, targets):
    """Return the losses, doubled if over 80 % of a batch has label 3, which random batches never have."""
    return cross_entropy(outputs, targets) * (1 + ((targets == 3).float().mean() > 0.8))


def others_moved(gradients, x, y):
    """Return whether the first record's gradient changes when all other records are replaced."""
    theta = torch.zeros(1, sum(gradients.sizes))
    theta[:, ::7] = 0.5
    other_x, other_y = x.clone(), y.clone()
    other_x[1:], other_y[1:] = 0.01, 4
    rows = [
        gradients.rows(theta, each[None], labels[None])[0, 0] for each, labels in ((x, y), (other_x, other_y))
    ]
    assert rows[0].any()
    return not torch.equal(*rows)


def test_a_model_of_ones_own_code_gets_records_one_by_one(monkeypatch):
    monkeypatch.setitem(MODELS._items, "guarded", lambda shape, classes: Guarded())
    gradients = gradients_of(replace(TASK, model="guarded"), CPU)
    assert gradients.form == "many records at once by vmap"
    assert not others_moved(gradients, torch.ones(WIDTH, 1, 8, 8), torch.full((WIDTH,), 3))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_loss_of_ones_own_gets_records_one_by_one(model, monkeypatch):
    monkeypatch.setitem(LOSSES._items, "seldom", seldom)
    gradients = gradients_of(replace(TASK, model=model, loss="seldom"), CPU)
    assert gradients.form == "many records at once by one pass"
    assert not others_moved(gradients, torch.ones(WIDTH, 1, 8, 8), torch.full((WIDTH,), 3))


def test_a_loss_that_couples_records_of_different_losses_is_refused(monkeypatch):
    monkeypatch.setitem(LOSSES._items, "robust", robust)
    with pytest.raises(LearningError, match="couples records"):
        gradients_of(replace(TASK, loss="robust"), CPU)


def test_what_is_ours_is_not_slowed():
    losses = "binary_cross_entropy", "cross_entropy", "discrete_hazard", "huber", NEXT_TOKEN, "squared_error"
    models = "cnn2", "cnn3", "fcn", "linear", "lstm", "mlp", "ngram", "resnet18", "softmax", "transformer"
    kinds = "classes", "label_sets", "numbers", "pixels", "times_to_event"
    for registry, names in ((LOSSES, losses), (MODELS, models), (LABEL_KINDS, kinds)):
        assert all(is_ours(registry.get(name)) for name in names)
    # A wrapper has the names of what it wraps.
    assert not is_ours(robust)
    assert not is_ours(functional.cross_entropy)


def test_known_layers_are_told_by_their_class_and_by_what_is_done_with_them():
    x = torch.ones(3, 1, 8, 8)
    rows = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 10))
    assert has_known_layers(rows, x)
    assert has_known_layers(Plain(), x)
    assert not has_known_layers(Guarded(), x)
    assert not has_known_layers(nn.Sequential(nn.Flatten(0), nn.Linear(64, 10)), x)
    assert not has_known_layers(nn.Sequential(nn.Linear(64, 10), nn.Softmax(dim=0)), x[:, 0])
    rows[1].register_forward_hook(lambda layer, inputs, output: output - output.mean(dim=0))
    assert not has_known_layers(rows, x)
    changed = Plain()
    vars(changed.last)["forward"] = lambda x: x
    assert not has_known_layers(changed, x)


class Slip(nn.Module):
    """A model of known layers whose sum adds every record's branch to every other record, once it is open."""

    def __init__(self):
        super().__init__()
        self.main, self.side = nn.Linear(64, 10), nn.Linear(64, 10)
        nn.init.zeros_(self.side.weight)
        nn.init.constant_(self.side.bias, -1.0)
        self.pool = nn.AdaptiveAvgPool2d((1, 10))

    def forward(self, x):
        side = functional.relu(self.side(torch.flatten(x, 1)))
        return torch.flatten(self.pool(self.main(torch.flatten(x, 2)) + side), 1)


def test_a_sum_of_two_shapes_is_no_known_layer(monkeypatch):
    x = torch.ones(3, 1, 8, 8)
    assert not has_known_layers(Slip(), x)
    # One picture without channels is read as one of as many channels as there are records.
    assert not any(has_known_layers(nn.Sequential(nn.Conv2d(n, 4, 3)), x[:, 0]) for n in range(1, 5))
    monkeypatch.setitem(MODELS._items, "slip", lambda shape, classes: Slip())
    assert gradients_of(replace(TASK, model="slip"), CPU).form == "many records at once by vmap"


def test_a_loss_that_vmap_does_not_know_goes_one_record_after_the_other():
    def looking(outputs, targets):
        return cross_entropy(outputs, targets) * (2.0 if float(outputs.sum()) > 0 else 1.0)

    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(6, 10, generator=generator), torch.arange(6)
    expected = cross_entropy(outputs, targets) * torch.where(outputs.sum(dim=1) > 0, 2.0, 1.0)
    torch.testing.assert_close(record_by_record(looking, outputs, targets)(outputs, targets), expected)
