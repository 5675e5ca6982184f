"""Tests of lower precision: it applies to matrix products in training, not to clipping, noise and sums."""

import numpy as np
import pytest
import torch

from conf.schema import SecAggConfig
from fastgrad.precision import float32_products
from gdpfed.methods.sum_parameters import sum_parameters
from gdpfed.rounds import plain
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.simulation import batched, in_process_fleet
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.batched_training import Batches
from gdpfed.simulation.in_process_fleet import InProcessFleet
from tests.simulation.small_cohorts import order_of, theta_of

CLIENTS = list(range(7, 27))


def precision_now():
    """Return the settings of PyTorch that would make matrix products inexact now."""
    return torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision()


def watched(monkeypatch, module, name, seen):
    act = getattr(module, name)

    def watching(*arguments, **options):
        seen.append((name, precision_now(), [a.dtype for a in arguments if torch.is_tensor(a)]))
        return act(*arguments, **options)

    monkeypatch.setattr(module, name, watching)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_clipping_noise_and_sums_are_in_float64_and_integers(monkeypatch, precision):
    order = order_of()
    seen: list[tuple[str, tuple[bool, str], list[torch.dtype]]] = []
    theta = theta_of(order)
    watched(monkeypatch, batched, "clipped_steps", seen)
    watched(monkeypatch, plain, "gaussian_noise", seen)
    watched(monkeypatch, in_process_fleet, "plain_sum", seen)
    watched(monkeypatch, torch.nn.functional, "linear", seen)
    settings = SecAggConfig(mode="off")
    engine = BatchedEngine(order.task, torch.device("cpu"), precision=precision)
    parameters = sum_parameters(
        settings,
        label="sum",
        num_clients=len(CLIENTS),
        dimension=len(theta),
        clipping_norm=1.0,
        noise_multiplier=1.0,
    )
    prepared = PreparedSum("sum", parameters, CLIENTS, order, theta, {})
    InProcessFleet(settings, "run", engine).sum_wave([prepared], [])
    exact = (False, "highest")
    trained = {"float32": exact, "tf32": (False, "high"), "bf16": (True, "highest")}[precision]
    by_name = {name: (now, dtypes) for name, now, dtypes in seen}
    assert by_name["clipped_steps"] == (exact, [torch.float64])
    assert by_name["gaussian_noise"][0] == by_name["plain_sum"][0] == exact
    assert by_name["linear"][0] == trained


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_parameters_stay_in_float32_between_steps(precision):
    """Steps that are too small for bf16 still change the parameters, which stay in float32."""
    order = order_of(learning_rate=1e-4)
    engine = BatchedEngine(order.task, torch.device("cpu"), precision=precision)
    batches = Batches.draw(order, CLIENTS)
    theta = theta_of(order)
    updates = engine._training.updates(theta, order.training, engine._examples, batches).numpy()
    moved = np.abs(updates).max(axis=1)
    assert (moved > 0).all()
    # bf16 has 8 bits: it would round such a step to nothing for all but the smallest parameters.
    assert (moved < 2.0**-9 * np.abs(theta).max()).all()
    assert (np.count_nonzero(updates, axis=1) > 0.2 * len(theta)).all()


def products_now():
    cudnn = torch.backends.cudnn
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic


def test_a_thread_that_ends_its_step_changes_no_precision_of_another_one():
    before = products_now()
    first, nested, second = float32_products(), float32_products(tf32=True), float32_products()
    with first:
        with nested:
            assert products_now() == ("high", True, True)
        second.__enter__()
    assert products_now() == ("highest", False, True)
    second.__exit__(None, None, None)
    assert products_now() == before
