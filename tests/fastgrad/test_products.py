"""Tests of matrix products on a CPU: which library computes them, and that both give the same numbers."""

import pytest
import torch
from torch import nn

from fastgrad import products
from fastgrad.lowering import lower
from fastgrad.modules import cross_entropy
from fastgrad.products import by_onednn, is_wider_in_onednn, product
from fastgrad.program import Program
from gdpfed.learning.models import flatten

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def library_of(call):
    return call.func


def calls_of(*, by_record):
    """The calls of a compiled program with one large product in each direction."""
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 40))
    parameters = torch.from_numpy(flatten(model))
    gradient = None if by_record else torch.empty_like(parameters)
    return Program(lower(model, (300,)), cross_entropy, 64, parameters, gradient).calls


@needs_onednn
@pytest.mark.parametrize("flip_left", [False, True])
@pytest.mark.parametrize("flip_right", [False, True])
def test_onednn_gives_the_product_of_plain_and_transposed_matrices(flip_left, flip_right):
    left = drawn(70, 130).t() if flip_left else drawn(130, 70)
    right = drawn(90, 70, seed=1).t() if flip_right else drawn(70, 90, seed=1)
    out = torch.full((130, 90), torch.nan)
    by_onednn(left, right, out)
    expected = left.double() @ right.double()
    assert (out - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize(
    ("shape", "is_wider", "expected"),
    [
        ((200, 100, 100), True, by_onednn),
        ((200, 100, 100), False, torch.mm),
        ((199, 100, 100), True, torch.mm),
        ((5000, 25, 16), True, by_onednn),
        ((16, 5000, 25), True, torch.mm),
    ],
)
def test_only_large_products_with_many_results_are_computed_by_a_wider_onednn(
    monkeypatch, shape, is_wider, expected
):
    monkeypatch.setattr(products, "is_wider_in_onednn", lambda: is_wider)
    rows, inner, columns = shape
    call = product(drawn(rows, inner), drawn(inner, columns), torch.empty(rows, columns))
    assert library_of(call) is expected


def test_sums_over_records_use_onednn_and_gradients_of_single_records_do_not(monkeypatch):
    monkeypatch.setattr(products, "is_wider_in_onednn", lambda: True)
    assert sum(library_of(call) is by_onednn for call in calls_of(by_record=False)) == 2
    assert not any(library_of(call) is by_onednn for call in calls_of(by_record=True))


@pytest.mark.parametrize(
    ("capability", "maker", "expected"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
        ("AVX512", None, False),
    ],
)
def test_onednn_is_wider_on_processors_of_amd_with_avx512_alone(
    monkeypatch, tmp_path, capability, maker, expected
):
    file = tmp_path / "cpuinfo"
    if maker is not None:
        file.write_text(f"vendor_id\t: {maker}\n", encoding="ascii")
    monkeypatch.setattr(products, "CPU_FILE", file)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for backend in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(backend, "is_available", lambda: True)
    is_wider_in_onednn.cache_clear()
    try:
        assert is_wider_in_onednn() is expected
    finally:
        is_wider_in_onednn.cache_clear()
