"""Tests of encoding many updates at once: each row is clipped and rounded as a single update is."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gdpfed.clients.rounding import clipped_steps
from gdpfed.learning.training.local_update import clip
from secagg import Contributors, Encoding

DIMENSION = 300


def encoding(clipping_norm, noise_multiplier=0.0):
    return Encoding.for_sum(
        Contributors(5),
        dimension=DIMENSION,
        clipping_norm=clipping_norm,
        noise_multiplier=noise_multiplier,
    )


def rows(*scales):
    directions = np.random.default_rng(0).normal(size=(len(scales), DIMENSION))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return torch.from_numpy(directions * np.asarray(scales)[:, None])


@pytest.mark.parametrize("noise_multiplier", [0.0, 1.0])
def test_each_row_is_what_its_client_would_send(noise_multiplier):
    grid = encoding(2.0, noise_multiplier)
    updates = rows(0.0, 1e-9, 1.0, 2.0, 2.0000001, 1e6)
    steps = clipped_steps(updates.clone(), [grid] * len(updates))
    for row, update in zip(steps.numpy(), updates, strict=True):
        alone = grid.encode(clip(update, grid.clip_bound).numpy())
        # Two roundings of the factor may differ in its last bit, which moves a value on an edge by a step.
        assert np.abs(row - alone).max() <= 1
        assert grid.grid * np.linalg.norm(row.astype(float)) <= 2.0 * (1 + 1e-12)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_becomes_zero(wrong):
    updates = rows(1.0, 1.0)
    updates[0, 3] = wrong
    for clipping_norm in (2.0, np.inf):
        steps = clipped_steps(updates.clone(), [encoding(clipping_norm)] * 2)
        assert not steps[0].any()
        assert steps[1].any()


def test_without_clipping_a_coordinate_that_would_wrap_is_put_on_the_edge():
    grid = encoding(np.inf)
    updates = rows(1.0, 1.0)
    updates[1, 0] = -grid.grid * (grid.coordinate_limit + 1)
    steps = clipped_steps(updates.clone(), [grid] * len(updates))
    assert steps[1, 0] == -grid.coordinate_limit
    assert steps[1, 1:].any()
    assert steps[0].abs().max() < grid.coordinate_limit


def test_a_norm_above_the_sensitivity_becomes_zero():
    grid = encoding(2.0)
    honest = grid.clip_bound
    object.__setattr__(grid, "clipping_norm", 1.9)
    assert grid.clip_bound < honest
    grid.__dict__["norm_limit_squared"] = int((1.8 / grid.grid) ** 2)
    steps = clipped_steps(rows(1.0, 5.0), [grid] * 2)
    assert steps[0].any()
    assert not steps[1].any()


def test_every_row_has_its_own_bound():
    grid = encoding(2.0, 1.0)
    own = [grid.clipped_to(norm) for norm in (0.5, 1.0, 2.0)]
    steps = clipped_steps(rows(5.0, 5.0, 5.0), own)
    norms = grid.grid * torch.linalg.vector_norm(steps.double(), dim=1)
    assert norms.tolist() == pytest.approx([each.clip_bound for each in own], rel=1e-4)
    assert (norms <= torch.tensor([0.5, 1.0, 2.0]) * (1 + 1e-12)).all()


def test_a_row_with_a_coordinate_beyond_the_range_becomes_zero_and_a_long_one_within_it_stays():
    narrow: Any = SimpleNamespace(
        grid=1.0, coordinate_limit=10, clipping_norm=100.0, clip_bound=100.0, norm_limit_squared=100**2
    )
    updates = torch.zeros(3, 50, dtype=torch.float64)
    updates[0, 7], updates[1], updates[2, 7] = -11.0, 9.0, 10.0
    steps = clipped_steps(updates.clone(), [narrow] * 3)
    assert not steps[0].any()
    assert torch.equal(steps[1:], updates[1:].long())
