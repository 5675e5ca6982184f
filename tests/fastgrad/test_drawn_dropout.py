"""Tests of dropout by random keys: which entries a key drops, and that compiled programs drop the same."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from fastgrad.lowered import NotLoweredError
from fastgrad.lowering import lower
from fastgrad.modules import DrawnDropout, cross_entropy, mixed
from fastgrad.program import Program
from gdpfed.learning.models import flatten
from gdpfed.learning.models.build import DropoutKeys, draw_keys, with_drawn_dropout


def layer_with(key, rate=0.3, number=0):
    layer = DrawnDropout(rate, number).train()
    DropoutKeys(layer).set(key)
    return layer


def test_the_mixing_is_that_of_splitmix64():
    """The mixing function gives the first three numbers of SplitMix64 with the seed 1234567."""
    state = torch.arange(1, 4) * -0x61C8864680B583EB + 1234567
    assert [int(z) % 2**64 for z in mixed(state)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_a_share_of_the_rate_is_left_out_otherwise_for_every_key_layer_and_record():
    x = torch.ones(200, 500)
    masks = [layer_with(key, number=number)(x) for key, number in ((1, 0), (2, 0), (1, 1))]
    for mask in masks:
        assert sorted(set(mask.flatten().tolist())) == pytest.approx([0.0, 1 / 0.7])
        assert float((mask == 0).float().mean()) == pytest.approx(0.3, abs=0.005)
        # Rows, too, are alike by chance only: 0.3^2 + 0.7^2.
        assert float((mask[0] == mask[1]).float().mean()) == pytest.approx(0.58, abs=0.1)
    assert all(0.55 < float((masks[0] == other).float().mean()) < 0.61 for other in masks[1:])
    assert torch.equal(layer_with(1)(x), masks[0])
    assert torch.equal(layer_with(1)(x[:7]), masks[0][:7])


def test_nothing_is_left_out_in_evaluation_and_everything_at_rate_one():
    x = torch.ones(3, 4)
    assert torch.equal(layer_with(5).eval()(x), x)
    assert torch.equal(layer_with(5, rate=1.0)(x), torch.zeros(3, 4))


def test_a_model_is_given_keys_for_every_layer_of_its_own():
    model = with_drawn_dropout(nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Dropout(0.2)), nn.Dropout()))
    keys = DropoutKeys(model)
    assert keys.names == ("1.0.key", "2.key")
    assert [layer.number for layer in model.modules() if isinstance(layer, DrawnDropout)] == [1, 0]
    assert not DropoutKeys(nn.Linear(2, 2))
    assert not model.state_dict().keys() & set(keys.names)
    assert draw_keys(4, np.random.default_rng(1)).min() >= 0


@pytest.mark.parametrize("pieces", [(5,), (2, 3)])
def test_a_program_draws_the_same(pieces):
    torch.manual_seed(0)
    layers = [
        *(nn.Dropout(0.2), nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Dropout(0.4), nn.Linear(6 * 2 * 3, 7), nn.ReLU(), nn.Dropout(0.1), nn.Linear(7, 4)),
    ]
    model = with_drawn_dropout(nn.Sequential(*layers)).train()
    x, y, weights = torch.randn(5, 2, 6, 8), torch.arange(5) % 4, torch.rand(5)
    lowered = lower(model, (2, 6, 8))
    parameters = torch.from_numpy(flatten(model))[torch.from_numpy(lowered.order)]
    gradient, ours, before = torch.empty_like(parameters), torch.zeros_like(parameters), 0
    for count in pieces:
        part = slice(before, before + count)
        Program(lowered, cross_entropy, count, parameters, gradient).run(
            x[part], y[part], weights[part], 77, before
        )
        ours += gradient
        before += count
    exact = deepcopy(model).double()
    DropoutKeys(exact).set(77)
    loss = (cross_entropy(exact(x.double()), y) * weights.double()).sum()
    parts = torch.autograd.grad(loss, list(exact.parameters()))
    theirs = torch.cat([part.reshape(-1) for part in parts])
    assert (ours[torch.from_numpy(lowered.inverse)] - theirs).norm() <= 1e-5 * theirs.norm()


def test_relu_behind_dropout_has_no_program():
    model = with_drawn_dropout(nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.ReLU(), nn.Linear(3, 2)))
    with pytest.raises(NotLoweredError, match="ReLU behind dropout"):
        lower(model, (3,))
