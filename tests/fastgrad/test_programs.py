"""Tests of lowered (compiled) models, by layer and as a whole: gradients equal autograd's in float64."""

import sys
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fastgrad import embedding_lstm, kernels, layer
from fastgrad.fitting import UncompiledError, fitted
from fastgrad.layer import Given, Rows
from fastgrad.lowered import NotLoweredError
from fastgrad.lowering import lower
from fastgrad.modules import LastPosition, LSTMLayer, cross_entropy
from fastgrad.products import panel_size
from fastgrad.program import Program, layer_of
from fastgrad.programmed_gradients import ClippedProgram
from gdpfed.learning.labels import labels_of
from gdpfed.learning.labels.numbers import huber, squared_error
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.training.record_losses import make_loss

CPU = torch.device("cpu")
CLASSES = 5
NO_KEY = np.zeros(2, np.int64)
# Height, width, channels; kernel, stride, padding.
PATCHES = [
    ((28, 28, 1), (8, 8), (2, 2), (3, 3)),
    ((9, 7, 3), (3, 3), (1, 1), (1, 1)),
    ((8, 11, 2), (2, 4), (1, 3), (0, 2)),
    ((6, 6, 4), (1, 1), (2, 2), (0, 0)),
    ((5, 4, 2), (5, 4), (1, 1), (0, 0)),
    ((3, 3, 1), (7, 2), (3, 1), (4, 1)),
]


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def flat(tensor):
    return tensor.contiguous().view(-1).numpy()


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), PATCHES)
def test_patches_are_those_of_torch_both_ways(shape, kernel, stride, padding, count):
    channels = shape[2]
    places = [
        (size + 2 * pad - k) // by + 1
        for size, k, by, pad in zip(shape[:2], kernel, stride, padding, strict=True)
    ]
    geometry = (count, *shape, *kernel, *stride, *padding, *places)
    pictures = drawn(count, *shape)
    ours = torch.full((count, *places, kernel[0] * kernel[1] * channels), torch.nan)
    kernels.patches(flat(pictures), geometry, flat(ours))
    leaf = pictures.double().permute(0, 3, 1, 2).requires_grad_()
    if count:
        unfolded = functional.unfold(leaf, kernel, padding=padding, stride=stride)
        theirs = unfolded.unflatten(1, (channels, -1)).permute(0, 3, 2, 1).reshape(ours.shape)
    else:
        theirs = leaf.new_zeros(ours.shape)
    torch.testing.assert_close(ours.double(), theirs.detach(), rtol=0, atol=0)
    gradient, back = drawn(*ours.shape, seed=1), torch.full((count, *shape), torch.nan)
    kernels.patches_back(flat(gradient), geometry, flat(back))
    if count:
        (expected,) = torch.autograd.grad(theirs, leaf, gradient.double())
        torch.testing.assert_close(back.double(), expected.permute(0, 2, 3, 1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rectify", [True, False])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 2), (3, 1), (2, 3)])
@pytest.mark.parametrize("shape", [(0, 4, 5, 3), (1, 2, 2, 1), (3, 7, 5, 4), (2, 6, 9, 17)])
def test_pooling_is_that_of_torch_both_ways(shape, stride, rectify):
    values, bias = drawn(*shape), drawn(shape[3], seed=1)
    places = [(size - 2) // by + 1 for size, by in zip(shape[1:3], stride, strict=True)]
    geometry = (*shape, *stride, *places)
    out = torch.empty(shape[0], *places, shape[3])
    which = np.empty(out.numel(), dtype=np.int32)
    kernels.pool(flat(values), geometry, flat(bias), rectify, flat(out), which)
    leaves = values.double().requires_grad_(), bias.double().requires_grad_()
    biased = (leaves[0] + leaves[1]).permute(0, 3, 1, 2)
    pooled = functional.max_pool2d(biased, 2, stride) if shape[0] else biased[:, :, : places[0], : places[1]]
    theirs = (pooled.relu() if rectify else pooled).permute(0, 2, 3, 1)
    torch.testing.assert_close(out.double(), theirs.detach(), rtol=1e-6, atol=1e-6)
    gradient = drawn(*out.shape, seed=2)
    expected = torch.autograd.grad(theirs, leaves, gradient.double(), materialize_grads=True)
    sums, back = torch.empty(1, shape[3]), torch.empty(shape)
    given = gradient.clone()
    kernels.pool_back(flat(out), which, flat(given), geometry, rectify, 1, flat(sums), flat(back))
    torch.testing.assert_close(back.double(), expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums[0].double(), expected[1], rtol=1e-5, atol=1e-5)
    apart, given = torch.empty(shape[0], shape[3]), gradient.clone()
    kernels.pool_back(flat(out), which, flat(given), geometry, rectify, shape[0], flat(apart), flat(back))
    torch.testing.assert_close(apart.sum(dim=0), sums[0], rtol=1e-4, atol=1e-4)


def test_what_is_not_a_number_goes_on_through_every_layer():
    for place in range(4):
        values = torch.zeros(1, 2, 2, 1)
        values.view(-1)[place] = torch.nan
        out, which = np.zeros(1, np.float32), np.zeros(1, np.int32)
        kernels.pool(flat(values), (1, 2, 2, 1, 1, 1, 1, 1), np.zeros(1, np.float32), True, out, which)
        assert np.isnan(out[0])
        assert which[0] == place
    alone = np.array([np.nan], np.float32)
    kernels.activate(alone, 1, np.zeros(1, np.float32), True)
    assert np.isnan(alone[0])


@pytest.mark.parametrize("rectify", [True, False])
def test_activation_is_that_of_torch_both_ways(rectify):
    values, bias, gradient = drawn(3, 5, 7), drawn(7, seed=1), drawn(3, 5, 7, seed=2)
    leaves = values.double().requires_grad_(), bias.double().requires_grad_()
    biased = leaves[0] + leaves[1]
    theirs = biased.relu() if rectify else biased
    expected = torch.autograd.grad(theirs, leaves, gradient.double())
    kernels.activate(flat(values), 7, flat(bias), rectify)
    torch.testing.assert_close(values.double(), theirs.detach(), rtol=1e-6, atol=1e-6)
    sums = torch.empty(7)
    kernels.activate_back(flat(values), flat(gradient), 3, 7, rectify, 1, flat(sums))
    torch.testing.assert_close(gradient.double(), expected[0], rtol=0, atol=0)
    torch.testing.assert_close(sums.double(), expected[1], rtol=1e-5, atol=1e-5)


LAYERS = [
    nn.GroupNorm(2, 6),
    nn.GroupNorm(6, 6, eps=0.1),
    nn.GroupNorm(1, 6, affine=False),
    nn.AvgPool2d(2),
    nn.AvgPool2d((3, 2), stride=(1, 3), padding=(1, 1)),
    nn.AvgPool2d(3, padding=1, count_include_pad=False),
    nn.AvgPool2d(2, divisor_override=3),
    nn.AdaptiveAvgPool2d(1),
    nn.AdaptiveAvgPool2d((3, None)),
    nn.AdaptiveAvgPool2d((4, 9)),
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.MaxPool2d((1, 4), stride=(2, 1), padding=(0, 2)),
]


@pytest.mark.parametrize("rectify", [True, False])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_layer_by_itself_is_that_of_torch_both_ways(layer, rectify):
    layer = deepcopy(layer)
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data = drawn(6, seed=seed)
    before = (layer, nn.ReLU()) if rectify else (layer,)
    model = nn.Sequential(*before, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
    lowered = lower(model, (6, 5, 7))
    parameters = torch.from_numpy(flatten(model))[torch.from_numpy(lowered.order)]
    exact = nn.Sequential(*deepcopy(before)).double()
    for count in (0, 1, 3):
        inputs = drawn(count, 5, 7, 6) + 0.5
        gradient = torch.full_like(parameters, torch.nan)
        ours = layer_of(lowered.stages[0], Given(inputs, parameters, gradient, NO_KEY))
        apart = layer_of(lowered.stages[0], Given(inputs, parameters, None, NO_KEY))
        given, back = drawn(*ours.output.shape, seed=1), torch.full_like(inputs, torch.nan)
        for one in (apart, ours):
            one.output_back.copy_(given)
            for call in [*one.forward, *one.backward(back)]:
                call()
        leaf = inputs.double().requires_grad_()
        # torch refuses to pool no pictures.
        theirs = exact(leaf.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) if count else ours.output.double()
        torch.testing.assert_close(ours.output.double(), theirs.detach(), rtol=1e-5, atol=1e-6)
        leaves = [leaf, *exact.parameters()]
        expected = [torch.zeros_like(each) for each in leaves]
        if count:
            expected = list(torch.autograd.grad(theirs, leaves, given.double()))
        torch.testing.assert_close(back.double(), expected[0], rtol=1e-5, atol=2e-6)
        for part, sums in zip(apart.parts, expected[1:], strict=True):
            assert isinstance(part, Rows)
            torch.testing.assert_close(gradient[part.where].double(), sums, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(part.values.double().sum(dim=0), sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.MaxPool2d(3), nn.AvgPool2d(3), nn.GroupNorm(1, 2)])
def test_what_is_not_a_number_goes_on_for_its_own_record(layer):
    model = nn.Sequential(layer, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    lowered = lower(model, (2, 3, 3))
    parameters = torch.from_numpy(flatten(model))[torch.from_numpy(lowered.order)]
    for place in range(9):
        pictures = drawn(2, 3, 3, 2)
        pictures[0].view(9, 2)[place] = torch.nan
        ours = layer_of(lowered.stages[0], Given(pictures, parameters, None, NO_KEY))
        for call in ours.forward:
            call()
        assert ours.output[0].isnan().all()
        assert ours.output[1].isfinite().all()


def test_cross_entropy_is_that_of_torch_and_needs_a_class():
    logits, targets, weights = drawn(6, CLASSES) * 30, torch.arange(6) % CLASSES, torch.rand(6)
    leaf = logits.double().requires_grad_()
    (expected,) = torch.autograd.grad((cross_entropy(leaf, targets) * weights.double()).sum(), leaf)
    out = torch.empty_like(logits)
    kernels.cross_entropy_back(flat(logits), CLASSES, targets.numpy(), weights.numpy(), flat(out))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    for wrong in (-1, CLASSES):
        with pytest.raises(IndexError, match="not a class of the model"):
            kernels.cross_entropy_back(flat(logits), CLASSES, np.full(6, wrong), weights.numpy(), flat(out))


def test_norms_of_long_gradients_are_exact_and_factors_never_too_large():
    rows = torch.rand(2, 3_000_000, generator=torch.Generator().manual_seed(0))
    squares = np.zeros(2)
    layer.add_squares(flat(rows), squares)
    np.testing.assert_allclose(squares, rows.double().square().sum(dim=1), rtol=1e-12)
    layer.add_outer_squares(flat(rows), flat(rows), squares := np.zeros(2), unscaled := np.ones(2))
    np.testing.assert_allclose(squares, rows.double().square().sum(dim=1) ** 2, rtol=1e-12)
    np.testing.assert_allclose(unscaled, rows.double().square().sum(dim=1), rtol=1e-12)
    factors = np.empty(6)
    squares, unscaled = np.array([[0.25, 4.0, np.inf, np.nan, 1e39, 4.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1e39]])
    layer.clip_factors(squares, unscaled, 1.0, 1e19, factors)
    assert factors.tolist() == [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]


class Branched(nn.Module):
    """A network with branches that join, functions in place of layers, and results that are used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.second, self.skip = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(2, 4, 1, stride=2)
        self.nothing, self.hidden = nn.Identity(), nn.Linear(4 * 2, 6)
        self.head, self.other = nn.Linear(6, CLASSES), nn.Linear(4 * 2, CLASSES, bias=False)

    def forward(self, x):
        y = functional.relu(self.norm(self.first(x)), inplace=True)
        z = self.nothing(self.second(y))
        z += y
        z = torch.relu(z)
        z = functional.max_pool2d(z, 2) + functional.avg_pool2d(z, 2, stride=2)
        z = torch.add(z, self.skip(x))
        z = functional.max_pool2d(z, 2) + functional.max_pool2d(self.second_of(z), 2)
        rows = functional.adaptive_avg_pool2d(z.relu(), (2, 1)).flatten(1)
        return self.head(functional.relu(self.hidden(rows))) + self.other(rows)

    def second_of(self, z):
        return z + z


# Of one seed, whatever was drawn before: float32 errs by more than the bound at one draw of some hundred.
torch.manual_seed(0)
MODELS = {
    "branches": (Branched(), (2, 8, 10)),
    "convolution alone": (nn.Sequential(nn.Conv2d(2, 5, (7, 5)), nn.Flatten()), (2, 7, 5)),
    "pooled, then rectified": (
        nn.Sequential(
            nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=(1, 0), bias=False),
            nn.MaxPool2d(2, stride=1),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(4, 6, 3, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            nn.Flatten(),
            nn.Linear(6 * 4 * 2, CLASSES),
        ),
        (3, 7, 9),
    ),
    "one place with padding": (
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 4, padding=1), nn.Flatten()),
        (2, 4, 4),
    ),
    "normalised": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, bias=False),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Sequential(nn.Conv2d(4, 6, 2, padding=1), nn.MaxPool2d(2, stride=1), nn.GroupNorm(6, 6)),
            nn.AvgPool2d((2, 1), padding=(1, 0)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6 * 2 * 4, 8),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Linear(8, CLASSES),
        ),
        (3, 7, 9),
    ),
    "pooled before and behind": (
        nn.Sequential(
            nn.AvgPool2d(2, padding=1, count_include_pad=False),
            nn.GroupNorm(1, 2, affine=False),
            nn.Conv2d(2, CLASSES, 2),
            nn.AdaptiveAvgPool2d((1, 1)),
            nn.Flatten(),
        ),
        (2, 5, 6),
    ),
    "linear": (
        nn.Sequential(nn.Flatten(), nn.Linear(12, 6, bias=False), nn.ReLU(), nn.Linear(6, 5)),
        (3, 2, 2),
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_those_of_autograd_in_float64(name, count, weighted):
    model, shape = MODELS[name]
    x, weights = drawn(count, *shape), drawn(count, seed=1).abs()
    exact = deepcopy(model).double()
    outputs = exact(x.double())
    y = torch.arange(count) % outputs.shape[1]
    class_weights = np.linspace(0.5, 2.0, outputs.shape[1]).tolist() if weighted else ()
    labels = labels_of("classes", outputs.shape[1])
    loss, leaves = make_loss("cross_entropy", labels, class_weights), list(exact.parameters())
    each = [torch.autograd.grad(one, leaves, retain_graph=True) for one in loss(outputs, y)]
    expected = torch.stack([torch.cat([part.flatten() for part in row]) for row in each])
    lowered = lower(model, shape)
    order = torch.from_numpy(lowered.order)
    parameters = torch.from_numpy(flatten(model))[order]
    gradient = torch.full_like(parameters, torch.nan)
    program = Program(lowered, loss, count, parameters, gradient)
    # Twice: a pass leaves nothing behind.
    for _ in range(2):
        program.run(x, y, weights)
        total = weights.double() @ expected
        assert (gradient - total[order]).norm() <= 1e-5 * total.norm()
    apart = torch.empty(count, len(order))
    sums, integers = torch.zeros(len(order)), torch.zeros(len(order), dtype=torch.int64)
    clipped = ClippedProgram(lowered, loss, count, parameters, sums, integers)
    clipped.write(x, y, apart)
    assert (apart - expected[:, order]).norm() <= 1e-5 * expected.norm()
    norms = expected.norm(dim=1, keepdim=True)
    clipped.add(x, y, np.zeros(count, bool), float(norms.median()))
    total = (expected * (norms.median() / norms).clamp(max=1.0)).sum(dim=0)
    assert (sums - total[order]).norm() <= 1e-5 * total.norm()
    clipped.add_truncated(x, y, np.zeros(count, bool), float(norms.median()), 2.0**-20)
    assert (integers * 2.0**-20 - total[order]).abs().max() <= count * 2.0**-20 + 1e-5 * total.norm()


# Vocabulary, length, width of the embedding, units of each layer.
TEXTS = [(6, 7, 3, (5, 4)), (9, 1, 2, (3,)), (5, 4, 1, (1,)), (7, 6, 8, (9, 2, 8))]


class Residual(nn.Module):
    """A residual layer: its input plus the ReLU of a linear layer."""

    def __init__(self, entries):
        super().__init__()
        self.layer = nn.Linear(entries, entries)

    def forward(self, x):
        return x + self.layer(x).relu()


def reader(vocabulary, width, units):
    torch.manual_seed(0)
    layers = [LSTMLayer(a, b) for a, b in zip((width, *units), units, strict=False)]
    head = nn.Sequential(Residual(units[-1]), nn.Linear(units[-1], 4), nn.ReLU(), nn.Linear(4, vocabulary))
    return nn.Sequential(nn.Embedding(vocabulary, width), *layers, LastPosition(), head)


@pytest.mark.parametrize(("vocabulary", "length", "width", "units"), TEXTS)
@pytest.mark.parametrize("count", [1, 4, 7])
def test_gradients_by_a_text_are_those_of_autograd_in_float64(vocabulary, length, width, units, count):
    model = reader(vocabulary, width, units)
    generator = torch.Generator().manual_seed(count)
    x = torch.randint(vocabulary, (count, length), generator=generator)
    y, weights = torch.arange(count) % vocabulary, torch.rand(count, generator=generator)
    exact = deepcopy(model).double()
    total = (cross_entropy(exact(x), y) * weights.double()).sum()
    parts = torch.autograd.grad(total, list(exact.parameters()))
    expected = torch.cat([part.flatten() for part in parts])
    lowered = lower(model, (length,))
    order = torch.from_numpy(lowered.order)
    parameters = torch.from_numpy(flatten(model))[order]
    gradient = torch.full_like(parameters, torch.nan)
    program = Program(lowered, cross_entropy, count, parameters, gradient)
    program.run(x.flip(1), y, weights)
    # What a pass left behind is not seen by the next.
    program.run(x, y, weights)
    assert (gradient - expected[order]).norm() <= 1e-5 * expected.norm()
    with pytest.raises(IndexError, match="not in the model's vocabulary"):
        program.run(x + vocabulary, y, weights)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_an_lstm_layer_is_that_of_autograd_both_ways(count, scale):
    units, length = 5, 6
    from_inputs, weights = drawn(length, count, 4 * units) * scale, drawn(units, 4 * units, seed=1)
    bias, given = drawn(4 * units, seed=2), drawn(length, count, units, seed=3)
    leaf, state = from_inputs.double().requires_grad_(), torch.zeros(count, units, dtype=torch.float64)
    cell, states = state, []
    for position in leaf:
        gates = position + bias.double() + state @ weights.double()
        into, forget, new, out = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        state = out.sigmoid() * cell.tanh()
        states.append(state)
    expected = torch.stack(states)
    (back,) = torch.autograd.grad(expected, leaf, given.double())
    cells, squashed, ours = torch.full((3, length, count, units), torch.nan)
    kept = flat(cells), flat(squashed)
    sizes = panel_size(4 * units, units), panel_size(units, 4 * units)
    panels, back_panels = (np.full(size, np.nan, np.float32) for size in sizes)
    embedding_lstm.recur(flat(from_inputs), flat(bias), flat(weights), panels, count, *kept, flat(ours))
    torch.testing.assert_close(ours.double(), expected.detach(), rtol=0, atol=2e-6)
    embedding_lstm.recur_back(flat(given), flat(from_inputs), flat(weights), back_panels, *kept, count)
    torch.testing.assert_close(from_inputs.double(), back, rtol=0, atol=1e-5)


def test_what_is_not_a_number_goes_on_through_a_text():
    model = reader(5, 2, (3,))
    lowered = lower(model, (4,))
    parameters = torch.from_numpy(flatten(model))[torch.from_numpy(lowered.order)]
    parameters[0] = torch.nan
    gradient = torch.zeros_like(parameters)
    program = Program(lowered, cross_entropy, 1, parameters, gradient)
    program.run(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), torch.ones(1))
    assert gradient.isnan().any()


def with_other_map(layer):
    layer.hidden_map = nn.Identity()
    return layer


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.Embedding(5, 2), nn.Linear(2, 5)], "a layer Linear"),
        ([nn.Embedding(5, 2), LastPosition(), nn.Linear(2, 5)], "does not follow an LSTM layer"),
        ([nn.Embedding(5, 2), LSTMLayer(3, 4), LastPosition()], "does not follow an embedding"),
        ([LSTMLayer(6, 4), LastPosition(), nn.Linear(4, 5)], "does not follow an embedding"),
        ([nn.Embedding(5, 2), with_other_map(LSTMLayer(2, 4)), LastPosition()], "maps of other kinds"),
        ([nn.Embedding(5, 2, padding_idx=0), LSTMLayer(2, 4), LastPosition()], "with options"),
        ([nn.Linear(6, 6), nn.Embedding(5, 2)], "an embedding of an input that is not text"),
        ([nn.Embedding(5, 2), LSTMLayer(2, 4), LastPosition()], "does not end with a row of numbers"),
    ],
)
def test_other_texts_are_not_lowered(layers, words):
    with pytest.raises(NotLoweredError, match=words):
        lower(nn.Sequential(*layers), (6,))


def test_programs_read_texts_with_any_model_but_not_for_records():
    model = reader(6, 2, (3,))
    assert fitted(model, (7,), CPU).reading is not None
    with pytest.raises(NotLoweredError, match="single records"):
        fitted(model, (7,), CPU, records=True)


@pytest.mark.parametrize("loss", [squared_error, huber])
def test_numbers_are_learnt_as_well_as_classes(loss):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    x, y = drawn(6, 4), drawn(6, seed=1)
    exact = deepcopy(model).double()
    total = loss(exact(x.double()), y.double()).sum()
    expected = torch.cat([each.flatten() for each in torch.autograd.grad(total, list(exact.parameters()))])
    parameters = torch.from_numpy(flatten(model))
    lowered = lower(model, (4,))
    Program(lowered, loss, 6, parameters, gradient := torch.empty_like(parameters)).run(x, y, torch.ones(6))
    assert (gradient - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.Conv2d(2, 2, 3, groups=2), nn.Flatten()], "in groups"),
        ([nn.Conv2d(2, 2, 3, dilation=2), nn.Flatten()], "with dilation"),
        ([nn.Conv2d(2, 2, 3, padding="same"), nn.Flatten()], "another padding"),
        ([nn.Conv2d(2, 2, 3, padding_mode="reflect", padding=1), nn.Flatten()], "another padding"),
        ([nn.Conv2d(2, 2, 3)], "does not end with a row of numbers"),
        ([nn.Conv2d(2, 2, 3), nn.Flatten()], "does not end with a row of numbers"),
        ([nn.Conv2d(2, 2, 3), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten()], "with options"),
        ([nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(18, 5)], "with options"),
        ([nn.MaxPool2d(2), nn.Flatten()], "does not end with a row of numbers"),
        ([nn.Flatten(), nn.Linear(72, 8), nn.MaxPool2d(2)], "pooling of an input that is not a picture"),
        ([nn.Conv2d(2, 2, 3), nn.Flatten(), nn.GroupNorm(2, 32)], "normalisation of flattened pictures"),
        ([nn.ReLU(), nn.Flatten(), nn.Linear(72, 5)], "does not follow another layer"),
        ([nn.Conv2d(2, 2, 3), nn.Dropout(), nn.Flatten()], "a layer Dropout"),
        ([nn.Linear(6, 5), nn.Flatten()], "a linear layer on pictures"),
    ],
)
def test_other_models_are_not_lowered(layers, words):
    with pytest.raises(NotLoweredError, match=words):
        lower(nn.Sequential(*layers), (2, 6, 6))


class Computed(nn.Module):
    """A model with two linear layers, a convolution, and a forward pass that a test passes in."""

    def __init__(self, forward):
        super().__init__()
        self.one, self.two, self.does = nn.Linear(6, 6), nn.Linear(6, 6), forward
        self.pictures = nn.Conv2d(2, 6, 6)

    def forward(self, x):
        return self.does(self, x)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda self, x: self.two(self.one(x) if x.sum() > 0 else x), "cannot be traced"),
        (lambda self, x: self.one(x) + 1, "a layer Sum of other inputs"),
        (lambda self, x: torch.sigmoid(self.two(self.one(x))), "a call of sigmoid"),
        (lambda self, x: functional.linear(x, self.one.weight), "a call of"),
        (lambda self, x: self.two(x) + self.two(x), "more than once"),
        (lambda self, x: (self.one(x), self.two(x))[0], "a result that is not used"),
        (lambda self, x: torch.relu(y := self.one(x)) + self.two(y), "ReLU that does not follow"),
        (lambda self, x: self.pictures(x).flatten(1) + self.one(x.flatten(1)), "flattened in one branch"),
        (lambda self, x: self.pictures(x).flatten(1) + self.pictures(x), "of different shapes"),
        (lambda self, x: self.pictures(x).flatten(), "flattening of some dimensions"),
        (lambda self, x: functional.avg_pool2d(self.pictures(x), x.size(2)), "a call of size"),
        (lambda self, x: self.pictures(x).flatten(dims=1), "with options"),
    ],
)
def test_other_forward_passes_are_not_lowered(forward, words):
    with pytest.raises(NotLoweredError, match=words):
        lower(Computed(forward), (2, 6, 6) if "pictures" in forward.__code__.co_names else (6,))


def test_a_text_has_no_branches_before_its_last_position():
    model = Computed(lambda self, x: self.text[3](self.text[2](y := self.text[1](self.text[0](x))) + y))
    model.text = reader(6, 2, (2, 2))
    with pytest.raises(NotLoweredError, match="branches of a text"):
        lower(model, (7,))


def test_a_layer_that_is_met_twice_is_not_lowered():
    layer = nn.Linear(4, 4)
    with pytest.raises(NotLoweredError, match="more than once"):
        lower(nn.Sequential(layer, nn.ReLU(), layer), (4,))


def test_a_weight_that_is_made_of_others_is_not_lowered():
    layer = nn.Linear(4, 4)
    weight = layer.weight.detach()
    del layer.weight
    layer.weight = (
        weight  # As the older torch.nn.utils.weight_norm leaves it, and computes it before each use.
    )
    with pytest.raises(NotLoweredError, match="computed from others"):
        lower(nn.Sequential(layer), (4,))


def test_programs_are_for_models_that_gain_by_them(monkeypatch):
    small = build_model("mlp", (1, 8, 8), CLASSES, seed=0)
    with pytest.raises(NotLoweredError, match="fewer than 10,000 parameters"):
        fitted(small, (1, 8, 8), CPU)
    large = build_model("mlp", (1, 28, 28), CLASSES, seed=0)
    assert len(fitted(large, (1, 28, 28), CPU).stages) == 2
    with pytest.raises(NotLoweredError, match="for CPUs"):
        fitted(large, (1, 28, 28), torch.device("meta"))
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    with pytest.raises(UncompiledError, match="NUMBA_DISABLE_JIT"):
        fitted(large, (1, 28, 28), CPU)


def test_without_a_place_for_compiled_code_programs_are_not_used(monkeypatch):
    def no_place(*types, **options):
        raise RuntimeError("cannot cache function '_clear': no locator available for file 'kernels.py'")

    monkeypatch.delitem(sys.modules, kernels.__name__)
    monkeypatch.setattr("numba.njit", no_place)
    large = build_model("mlp", (1, 28, 28), CLASSES, seed=0)
    with pytest.raises(UncompiledError, match="numba cannot compile: cannot cache function"):
        fitted(large, (1, 28, 28), CPU)
