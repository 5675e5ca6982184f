"""Tests of sums of clipped gradients: equal to autograd by record; models that couple records are refused."""

from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fastgrad import record_gradients as module
from fastgrad import tape
from fastgrad.forms import record_gradients
from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import RecordGradients, TapedGradients
from fastgrad.record_parts import Outer, OuterSum, Rows, norms_of
from gdpfed.errors import LearningError
from gdpfed.learning.models import build_model
from gdpfed.learning.training.coupled_records import refuse_coupled_records, refuse_random_layers

CPU = torch.device("cpu")
BUILT_IN: dict[str, tuple[tuple[int, ...], str]] = {
    "linear": ((1, 8, 8), "many records at once in closed form"),
    "mlp": ((1, 8, 8), "many records at once by one pass"),
    "cnn2": ((1, 28, 28), "many records at once by compiled loops"),
    "cnn3": ((3, 16, 16), "many records at once by compiled loops"),
    "lstm": ((12,), "many records at once by one pass"),
    "ngram": ((12,), "many records at once by one pass"),
    "resnet18": ((3, 16, 16), "many records at once by compiled loops"),
}
CLASSES = 10


def built(name: str) -> tuple[nn.Module, Any]:
    shape = BUILT_IN[name][0]
    dtype = np.int64 if name in ("lstm", "ngram") else np.float32
    options: dict[str, Any] = {"options": (("hidden_units", 24),)} if name == "lstm" else {}
    return build_model(name, shape, CLASSES, seed=0, input_dtype=dtype, **options), (shape, dtype)


def records(form, count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    shape, dtype = form
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=generator)
    if dtype is np.int64:
        x = torch.randint(CLASSES, (count, *shape), generator=generator)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def theta_of(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def one_at_a_time(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Any = cross_entropy
) -> torch.Tensor:
    """Return each record's gradient by its own call of backward(), in float64, with shape (n, d)."""
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        loss(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    return torch.stack(rows).double()


def clipped_sum(rows, clipping_norm):
    norms = rows.norm(dim=1, keepdim=True)
    return (rows * (clipping_norm / norms).clamp(max=1.0)).sum(dim=0)


def ours(gradients: RecordGradients, theta, x, y, norm: float):
    present = torch.ones(1, len(x), dtype=torch.bool)
    return gradients.clipped_sums(theta[None], x[None], y[None], present, torch.tensor([norm]))[0].double()


def chosen(model: nn.Module, x, y, loss: Any = cross_entropy) -> RecordGradients:
    return record_gradients(model, loss, x[:3], y[:3], device=CPU)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_model_is_clipped_as_one_record_at_a_time_would_be(name):
    model, form = built(name)
    x, y = records(form, 3 if name == "resnet18" else 7)
    gradients = chosen(model, *records(form, 3, seed=2))
    assert gradients.form == BUILT_IN[name][1]
    # In single precision torch may round one of millions of activations to the other side of a kink.
    exact = x.double() if x.is_floating_point() else x
    expected = one_at_a_time(deepcopy(model).double(), exact, y)
    # Some are clipped and some are not.
    norm = float(expected.norm(dim=1).median())
    total = clipped_sum(expected, norm)
    off = (ours(gradients, theta_of(model), x, y, norm) - total).norm() / total.norm()
    assert off <= 1e-5
    rows = gradients.rows(theta_of(model)[None], x[None], y[None])[0]
    assert (rows - expected).norm() <= 1e-5 * expected.norm()


class Scaled(nn.Module):
    """A model with one parameter of its own, outside of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((16,), 1.5))
        self.layer = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(self.scale * x)


class Recurrent(nn.Module):
    """A model with torch's own LSTM, which vmap does not support."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, 5, batch_first=True)
        self.layer = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(self.inner(x.view(-1, 4, 4))[0][:, -1])


class Tied(nn.Module):
    """A module that uses one linear layer three times, and overwrites outputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.GroupNorm(2, 4)
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        states = self.inner(functional.relu_(self.inner(x.view(-1, 4, 4)) * 1))
        states = self.norm(states.transpose(1, 2))
        states += 1.0
        return self.layer(self.inner(states.mean(dim=2)))


class WrongWay(nn.Module):
    """A module that moves records to the second dimension, which may be as long as the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x.view(-1, 4, 4).transpose(0, 1)).mean(dim=0)


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (Scaled, "many records at once by vmap"),
        (Recurrent, "one record after the other"),
        (Tied, "many records at once by one pass"),
        (WrongWay, "many records at once by vmap"),
    ],
)
def test_any_other_model_takes_the_first_form_that_is_right(make, form):
    torch.manual_seed(0)
    model = make()
    x, y = records(((16,), np.float32), 6)
    gradients = chosen(model, x, y)
    assert gradients.form == form
    expected = clipped_sum(one_at_a_time(model, x, y), 1.0)
    assert (ours(gradients, theta_of(model), x, y, 1.0) - expected).norm() <= 1e-5 * expected.norm()
    thetas = torch.stack([theta_of(model), 2 * theta_of(model)])
    both = gradients.clipped_sums(
        thetas, x.view(2, 3, 16), y.view(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.tensor([1.0, 0.2])
    )
    for k, norm in enumerate([1.0, 0.2]):
        alone = ours(gradients, thetas[k], x[3 * k : 3 * k + 3], y[3 * k : 3 * k + 3], norm)
        torch.testing.assert_close(both[k].double(), alone, rtol=1e-4, atol=1e-6)


class Normed(nn.Module):
    """A model with group normalisation of inputs of any shape, and a function between it and its layers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.inner = nn.Linear(16, 16)
        self.norm = nn.GroupNorm(2, shape[0])
        self.layer = nn.Linear(16, CLASSES)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.bias, -0.5, 0.5)

    def forward(self, x: torch.Tensor) -> Any:
        states = self.norm(self.inner(x).view(-1, *self.shape)).sin()
        return self.layer(states.flatten(1))


@pytest.mark.parametrize("shape", [(16,), (4, 4), (4, 2, 2), (4, 1, 2, 2)])
def test_group_normalisation_has_the_gradients_of_single_records_at_any_rank(shape):
    torch.manual_seed(0)
    model = Normed(shape)
    x, y = records(((16,), np.float32), 6)
    expected = one_at_a_time(model, x, y)
    gradients = chosen(model, x, y)
    assert gradients.form == "many records at once by one pass"
    thetas = torch.stack([theta_of(model), 2 * theta_of(model)])
    rows = gradients.rows(thetas[:1], x[None], y[None])[0]
    torch.testing.assert_close(rows.double(), expected, rtol=1e-4, atol=1e-6)
    both = gradients.rows(thetas, x.view(2, 3, 16), y.view(2, 3))
    torch.testing.assert_close(both[0], rows[:3], rtol=1e-4, atol=1e-6)
    nn.utils.vector_to_parameters(thetas[1], model.parameters())
    torch.testing.assert_close(both[1].double(), one_at_a_time(model, x, y)[3:], rtol=1e-4, atol=1e-6)


def test_flat_group_normalisation_in_a_sequence_has_the_gradients_of_single_records():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    x, y = records(((16,), np.float32), 6)
    expected = clipped_sum(one_at_a_time(model, x, y), 1.0)
    found = ours(chosen(model, x, y), theta_of(model), x, y, 1.0)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_a_form_that_fails_with_an_index_error_gives_way_to_the_next(monkeypatch):
    def failing(*given: Any) -> torch.Tensor:
        raise IndexError("Dimension out of range")

    monkeypatch.setattr(TapedGradients, "rows", failing)
    x, y = records(((16,), np.float32), 6)
    assert chosen(Normed((16,)), x, y).form == "many records at once by vmap"


def test_a_loss_of_ones_own_is_clipped_with_its_weights():
    weights = torch.linspace(0.1, 3.0, CLASSES)

    def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return weights[targets] * functional.cross_entropy(outputs, targets, reduction="none")

    model, form = built("linear")
    x, y = records(form, 9)
    gradients = chosen(model, x, y, weighted)
    assert gradients.form == "many records at once by one pass"
    expected = clipped_sum(one_at_a_time(model, x, y, weighted), 0.7)
    assert (ours(gradients, theta_of(model), x, y, 0.7) - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn2", "lstm"])
def test_clients_side_by_side_have_what_each_has_alone(name):
    model, form = built(name)
    gradients = chosen(model, *records(form, 3))
    x, y = (each.unflatten(0, (3, 4)) for each in records(form, 12, seed=5))
    thetas = torch.stack([theta_of(model) * scale for scale in (1.0, 0.5, -1.0)])
    present = torch.tensor([[True] * 4, [True, True, False, False], [False] * 4])
    norms = torch.tensor([0.5, 2.0, 1.0])
    together = gradients.clipped_sums(thetas, x, y, present, norms)
    for k, size in enumerate([4, 2]):
        alone = ours(gradients, thetas[k], x[k, :size], y[k, :size], float(norms[k]))
        torch.testing.assert_close(together[k].double(), alone, rtol=1e-4, atol=1e-6)
    assert not together[2].any()


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn2"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_gradient_that_is_not_finite_counts_as_zero(name, value):
    model, form = built(name)
    x, y = records(form, 5)
    gradients = chosen(model, x, y)
    theta = theta_of(model)
    rest = ours(gradients, theta, x[1:], y[1:], 1.0)
    x[0] = value
    total = ours(gradients, theta, x, y, 1.0)
    assert total.isfinite().all()
    added = (total - rest).norm()
    assert added <= 1e-6 or value == 1e30
    assert added <= 1.0 + 1e-6


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn2"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_no_record_adds_more_than_the_clipping_norm(name, scale):
    model, form = built(name)
    x, y = records(form, 20)
    gradients = chosen(model, x, y)
    for i in range(len(x)):
        alone = ours(gradients, theta_of(model), scale * x[i : i + 1], y[i : i + 1], 0.3)
        assert alone.norm() <= 0.3


@pytest.mark.parametrize("norm", [1e-6, 1e-5, 1e-2])
def test_no_norm_vanishes_where_the_squares_of_its_parts_do(norm):
    """A clipped gradient is neither zero nor too long where squares of its factors are 0 in float32."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    first, _, last, _ = parameters = [torch.zeros_like(each) for each in model.parameters()]
    first[0, 0], last[0, 0] = 1e19, 53e-19
    gradients = record_gradients(model, cross_entropy, torch.rand(3, 4), torch.tensor([0, 1, 0]), device=CPU)
    theta = torch.cat([each.reshape(-1) for each in parameters])
    total = ours(gradients, theta, torch.eye(4)[:1], torch.zeros(1, dtype=torch.int64), norm).norm()
    assert 0 < total <= norm


def extreme(model: nn.Module, name: str, size: float, margin: float) -> torch.Tensor:
    """Return parameters with layer inputs of this size and errors of about exp(-margin) for class 0."""
    named = {each: parameter.detach().clone() for each, parameter in model.named_parameters()}
    first, (weight, bias) = next(iter(named.values())), [*named.values()][-2:]
    weight.mul_(0.0 if name != "lstm" else 1.0)
    bias.fill_(-margin)[0] = 0.0
    if name != "linear":
        first.clamp_(-1, 1).mul_(size)
    if name == "lstm":
        named["lstm1.input_map.weight"].div_(size)
    return torch.cat([each.reshape(-1) for each in named.values()])


@pytest.mark.parametrize(
    ("name", "vmapped"), [("linear", False), ("mlp", False), ("mlp", True), ("cnn2", False), ("lstm", False)]
)
def test_no_record_adds_more_where_the_numbers_of_float32_end(name, vmapped):
    """No record adds more than the clipping norm where values overflow or underflow in float32."""
    model, form = built(name)
    gradients = chosen(model, *records(form, 3))
    if vmapped:
        gradients = RecordGradients(model, cross_entropy, CPU, vmapped=True)
    x, _ = records(form, 1)
    norms, powers, labels = (1e-100, 1e-38, 1e-25, 1e-12, 1e-6, 1.0, 1e30), (70, 137, 146, 148.3), (0, 1)
    trials = [*product(norms, powers, (0.0, 80.0), labels)][:: 5 if name == "lstm" else 1]
    clipped = 0
    for norm, power, margin, label in trials:
        size = min(max(norm * 2.0**power, 1e-38), 1e38)
        given = size * x if name == "linear" else x
        theta = extreme(model, name, size, margin)
        alone = ours(gradients, theta, given, torch.tensor([label]), norm).norm()
        assert alone <= norm * (1 + 1e-5)
        clipped += int(alone > 0.99 * norm)
    assert clipped > len(trials) / 10


@pytest.mark.parametrize("errors", [1e-30, 1.0])
def test_no_form_of_a_part_adds_more_where_the_numbers_of_float32_end(errors):
    model, generator = built("linear")[0], torch.Generator().manual_seed(0)
    gradients = RecordGradients(model, cross_entropy, CPU)
    outputs, inputs = (torch.rand(1, 3, size, generator=generator) + 0.5 for size in (20, 30))
    outputs *= errors
    for power in range(20, 127):
        large = inputs * 2.0**power
        rows = Rows((outputs.mT @ large).flatten(1))
        for part in (Outer(outputs[:, 0], large[:, 0]), OuterSum(outputs, large), rows):
            total = gradients._clipped_sums([part], torch.ones(1, 1, dtype=torch.bool), torch.tensor([1e-12]))
            assert total.double().norm() <= 1e-12


@pytest.mark.parametrize("sums", ["clipped_sums", "truncated_sums"])
@pytest.mark.parametrize("name", ["mlp", "cnn2"])
def test_a_form_whose_sum_is_not_clipped_right_is_not_taken(name, sums, monkeypatch):
    model, form = built(name)
    x, y = records(form, 3)
    right = chosen(model, x, y)
    clip = getattr(type(right), sums)
    monkeypatch.setattr(type(right), sums, lambda self, *a: 1.1 * clip(self, *a), raising=True)
    assert chosen(model, x, y).form != right.form


@pytest.mark.parametrize("name", ["mlp", "cnn2"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_in_integers_no_record_adds_more_than_its_bound(name, scale):
    model, form = built(name)
    x, y = records(form, 8)
    theta, bounds, unit = theta_of(model)[None], torch.tensor([0.3], dtype=torch.float64), 2.0**-14
    gradients, plain = chosen(model, x, y), RecordGradients(model, cross_entropy, CPU)
    longest = 0
    for i in range(len(x)):
        one = theta, scale * x[None, i : i + 1], y[None, i : i + 1], torch.ones(1, 1, dtype=torch.bool)
        alone = gradients.truncated_sums(*one, bounds, unit)[0]
        longest = max(longest, int(alone @ alone))
        # One unit where rounding takes a value across the edge of two.
        assert (alone - plain.truncated_sums(*one, bounds, unit)[0]).abs().max() <= 1 + 1e-4 * 0.3 / unit
    assert 0 < longest <= (0.3 / unit) ** 2
    x[0] = float("nan")
    absent = torch.tensor([[True] * 6 + [False] * 2])
    together = gradients.truncated_sums(theta, x[None], y[None], absent, bounds, unit)
    rest = gradients.truncated_sums(theta, x[None, 1:6], y[None, 1:6], absent[:, 1:6], bounds, unit)
    assert (together - rest).abs().max() <= 5


def test_long_vectors_have_exact_norms():
    values = torch.rand(2, 3_000_000, generator=torch.Generator().manual_seed(0))
    exact = values.double().norm(dim=1)
    assert ((norms_of(values).double() - exact).abs() <= 2.0**-20 * exact).all()


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_inner_products_of_places_have_the_norms_and_sums_of_rows(scale, clients):
    generator = torch.Generator().manual_seed(0)
    outputs = scale * torch.randn(6, 5, 30, generator=generator)
    inputs = torch.randn(6, 5, 40, generator=generator)
    assert OuterSum.costs_less(5, 30, 40)
    assert not OuterSum.costs_less(9, 30, 40)
    both = OuterSum(outputs, inputs), Rows((outputs.mT @ inputs).flatten(1))
    exact = (outputs.double().mT @ inputs.double()).flatten(1)
    norms = both[0].squares()[0].sqrt()
    assert (norms >= exact.norm(dim=1) * (1 - 2.0**-23)).all()
    assert (norms <= exact.norm(dim=1) * (1 + 2.0**-19)).all()
    factors = torch.rand(clients, 6 // clients, generator=generator)
    torch.testing.assert_close(*(each.sums(factors) for each in both), rtol=1e-4, atol=1e-5 * scale)
    torch.testing.assert_close(*(each.written_out() for each in both))
    inputs[2] = float("nan")
    zeroed = both[0].without(torch.arange(6) == 2)
    assert not zeroed.written_out()[2].any()
    assert zeroed.sums(factors).isfinite().all()


def test_no_norm_is_less_than_what_is_summed_where_places_cancel_each_other():
    """The computed norm of a sum over positions is at least its true norm, even if positions cancel."""
    generator = torch.Generator().manual_seed(0)
    outputs, inputs = (torch.randn(50, 6, size, generator=generator) for size in (20, 30))
    outputs[:, 3:], inputs[:, 3:] = -outputs[:, :3] * (1 + 2.0**-22), inputs[:, :3]
    part = OuterSum(outputs, inputs)
    one = torch.ones(1, 1)
    summed = torch.stack([OuterSum(outputs[k : k + 1], inputs[k : k + 1]).sums(one)[0] for k in range(50)])
    assert (summed.double().norm(dim=1) <= part.squares()[0].sqrt()).all()


def test_the_tape_takes_the_cheapest_form_of_each_layer():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=4), nn.Flatten())
    model.append(nn.Linear(32 * 9, 4))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.1, 0.1, generator=generator)
    x, y = torch.randn(5, 3, 14, 14, generator=generator), torch.arange(5) % 4
    gradients, theta = TapedGradients(model, cross_entropy, CPU), theta_of(model)
    # 144 places of 16 and 27 numbers; 9 of 32 and 144; one of 4 and 288.
    weights = gradients.parts(theta[None], x, y)[::2]
    assert [type(part) for part in weights] == [Rows, OuterSum, Outer]
    rows = one_at_a_time(model, x, y)
    torch.testing.assert_close(
        gradients.rows(theta[None], x[None], y[None])[0].double(), rows, rtol=1e-4, atol=1e-5
    )
    norm = float(rows.norm(dim=1).median())
    torch.testing.assert_close(
        ours(gradients, theta, x, y, norm), clipped_sum(rows, norm), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["cnn2", "cnn3"])
def test_convolutions_of_the_library_have_the_gradients_of_patches(name, monkeypatch):
    """Gradients by torch's convolution equal those by patch matrices (im2col), as do clipped sums."""
    model, form = built(name)
    x, y = records(form, 5)
    gradients, theta = TapedGradients(model, cross_entropy, CPU), theta_of(model)
    by_patches = gradients.rows(theta[None], x[None], y[None])
    monkeypatch.setattr(tape, "goes_by_library", lambda input, weight: True)
    monkeypatch.setattr(tape, "patches_of", None)
    by_library = gradients.rows(theta[None], x[None], y[None])
    torch.testing.assert_close(by_library, by_patches, rtol=1e-4, atol=1e-6)
    assert by_library.abs().max() > 1e-2
    norm = float(by_patches[0].norm(dim=1).median())
    expected = clipped_sum(by_patches[0].double(), norm)
    torch.testing.assert_close(ours(gradients, theta, x, y, norm), expected, rtol=1e-4, atol=1e-6)


def test_less_memory_means_fewer_records_at_once(monkeypatch):
    model, form = built("mlp")
    gradients = chosen(model, *records(form, 3))
    gradients.rows(theta_of(model)[None], *(each[None] for each in records(form, 3)))
    # Its gradients are outer products, so that of the layers' inputs and outputs alone there are as many.
    assert 2 * 4 * (64 + 2 * (64 + 10)) <= gradients.record_bytes < 8 * len(theta_of(model))
    monkeypatch.setattr(module, "CPU_BYTES", 2.5 * gradients.record_bytes)
    assert gradients.records_at_once() == 2
    monkeypatch.setattr(module, "CPU_BYTES", 0)
    assert gradients.records_at_once() == 1


class CentredBatch(nn.Module):
    """A module that couples records by subtracting their mean, which no type of layer reveals."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        outputs = self.layer(x)
        return outputs - outputs.mean(dim=0)


def test_layers_that_couple_records_are_refused():
    x, y = records(((16,), np.float32), 4)
    batch_norm = nn.Sequential(
        nn.Linear(16, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 10)
    )
    with pytest.raises(LearningError, match=r"layer 1 \(BatchNorm1d\).*use a layer .* such as GroupNorm"):
        refuse_coupled_records(batch_norm, cross_entropy, x, y)
    with pytest.raises(LearningError, match="couples records: replacing others"):
        refuse_coupled_records(CentredBatch(), cross_entropy, x, y)


def test_losses_that_couple_records_are_refused():
    def shared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = cross_entropy(outputs, targets)
        return losses / (1 + targets.sum())

    def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets).sum()

    model, form = built("linear")
    x, _ = records(form, 4)
    y = torch.tensor([1, 1, 2, 3])
    with pytest.raises(LearningError, match="couples records"):
        refuse_coupled_records(model, shared, x, y)
    with pytest.raises(LearningError, match=r"shape \(\) for 4 records"):
        refuse_coupled_records(model, summed, x, y)


def test_models_that_draw_in_training_are_refused_and_nothing_is_drawn():
    """A model with dropout is refused for records, since it draws from a generator with a seed of 32 bits."""
    dropout = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(16, 8), dropout, nn.Linear(8, CLASSES))
    x, y = records(((16,), np.float32), 5)
    state = torch.get_rng_state()
    refuse_coupled_records(model, cross_entropy, x, y)
    with pytest.raises(LearningError, match="draws random numbers in training") as error:
        refuse_random_layers(model, x)
    assert "\n" not in str(error.value)
    dropout.p = 0.0
    refuse_random_layers(model, x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_built_in_model_couples_records_or_draws(name):
    model, form = built(name)
    x, y = records(form, 4)
    refuse_coupled_records(model, cross_entropy, x, y)
    refuse_random_layers(model, x)


def mean_binary_cross_entropy(outputs, targets):
    return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=1)


@pytest.mark.parametrize("labels", [3, 7])
@pytest.mark.parametrize("convolves", [False, True])
def test_the_loss_of_a_record_does_not_depend_on_its_place(labels, convolves):
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2)] if convolves else []
    hidden = 8 * 25 if convolves else 144
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(hidden, 100), nn.ReLU(), nn.Linear(100, labels))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 1, 12, 12, generator=generator)
    y = torch.randint(2, (100, labels), generator=generator).float()
    gradients = record_gradients(model, mean_binary_cross_entropy, x, y, device=CPU)
    theta, width = theta_of(model)[None], gradients.steady_width(70.0)
    assert width > 1
    for own_x, own_y in zip(x, y, strict=True):
        copies = own_x.expand(1, width, -1, -1, -1), own_y.expand(1, width, -1)
        rows = gradients.rows(theta, *copies)
        assert torch.equal(rows, rows[:, :1].expand_as(rows))
