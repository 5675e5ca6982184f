"""Tests of an LSTM layer's recurrence in few kernels: states and gradients equal those of autograd."""

import pytest
import torch

from fastgrad.lstm_scan import FUSED, WRITTEN, CellKernels, checked_scan, plain_scan, scan_by
from fastgrad.modules import LSTMLayer, fuse_recurrences

MOST_OFF = 1e-6


def drawn(*clients, seed=0):
    """Draw gate inputs and recurrent weights in float64: three records, five positions, four units."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (*clients, 3, 5, 16), (*clients, 16, 4)
    return [torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]


def with_gradients(scan, leaves):
    states = scan(*leaves)
    turned = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view(states.shape)
    return [states, *torch.autograd.grad((states * turned).sum(), leaves)]


@pytest.mark.parametrize("clients", [(), (2,)])
def test_states_and_gradients_are_those_of_autograd(clients):
    scans = [scan_by(WRITTEN), plain_scan]
    if clients:
        scans = [torch.func.vmap(each) for each in scans]
    ours, theirs = (with_gradients(each, drawn(*clients)) for each in scans)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 1e-12
        assert other.abs().max() > 1e-2


def test_one_weight_for_all_clients_gets_the_sum_of_their_gradients():
    given, weight = drawn(2)[0], drawn()[1]
    scans = [torch.func.vmap(each, in_dims=(0, None)) for each in (scan_by(WRITTEN), plain_scan)]
    ours, theirs = (with_gradients(each, [given, weight]) for each in scans)
    assert all((one - other).abs().max() <= 1e-12 for one, other in zip(ours, theirs, strict=True))


def test_gradients_of_second_order_are_refused_in_place_of_wrong():
    given, weight = drawn()
    states = scan_by(WRITTEN)(given, weight)
    (first,) = torch.autograd.grad(states.square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="not have been used|once_differentiable"):
        torch.autograd.grad(first.sum(), weight)


def test_a_device_without_the_kernels_takes_the_lines():
    assert checked_scan(torch.device("cpu")) is None


def test_kernels_that_compute_something_else_are_not_taken(monkeypatch):
    def wrong(*given):
        state, cell, gates = WRITTEN.forward(*given)
        return state * 1.01, cell, gates

    for kernels, taken in ((WRITTEN, True), (CellKernels(wrong, WRITTEN.backward), False)):
        monkeypatch.setattr("fastgrad.lstm_scan.FUSED", kernels)
        assert (checked_scan(torch.device("cpu")) is not None) is taken


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_has_the_kernels():
    device = torch.device("cuda")
    assert checked_scan(device) is not None
    leaves = [each.detach().float().requires_grad_() for each in drawn(2)]
    there = [each.detach().to(device).requires_grad_() for each in leaves]
    ours = torch.func.vmap(scan_by(FUSED))(*there)
    theirs = torch.func.vmap(plain_scan)(*leaves)
    assert (ours.cpu() - theirs).abs().max() <= MOST_OFF


def test_a_layer_takes_the_scan_that_it_is_given():
    layer, given = LSTMLayer(3, 4), torch.linspace(-1, 1, 30).view(2, 5, 3)
    states = layer(given)
    layer.scan = scan_by(WRITTEN)
    assert (layer(given) - states).abs().max() <= MOST_OFF
    assert states.shape == (2, 5, 4)


def test_a_layer_with_another_map_keeps_its_lines(monkeypatch):
    monkeypatch.setattr("fastgrad.lstm_scan.FUSED", WRITTEN)
    plain, low_rank = LSTMLayer(3, 4), LSTMLayer(3, 4)
    product = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(2, 16))
    low_rank.register_module("hidden_map", product)
    fuse_recurrences(torch.nn.ModuleList([plain, low_rank]), torch.device("cpu"))
    assert plain.scan is not None
    assert low_rank.scan is None
    assert low_rank(torch.ones(2, 5, 3)).shape == (2, 5, 4)
