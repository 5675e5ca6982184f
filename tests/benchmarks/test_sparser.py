"""Tests of the low-rank and the masked variants of models that benchmarks.sparser compares."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.sparser import RANKS, SETTING, LowRank, lower, lowered, mask_of, masked
from conf.load import load
from gdpfed.learning.models import MODELS, build_model, flatten
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.in_process_fleet import simulate_prepared

OPTIONS = (("hidden_units", 12), ("num_layers", 1))


@pytest.fixture(autouse=True)
def own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget, at the end of each test, the models that the test has registered."""
    monkeypatch.setattr(MODELS, "_items", dict(MODELS._items))


@pytest.mark.parametrize(
    ("variant", "noised"),
    [
        # Embedding 5 * 8, gates 4 * 12 with their bias, and 5 outputs with theirs, of rank 8 or 4.
        ("rank 8", 5 * 8 + 48 * 8 + 48 + 48 * 8 + 5 * 8 + 5),
        ("rank 4", 5 * 8 + 48 * 4 + 48 + 48 * 4 + 5 * 4 + 5),
        ("rank 4, both", 5 * 8 + (48 + 8) * 4 + 48 + (48 + 12) * 4 + (5 + 12) * 4 + 5),
    ],
)
def test_low_rank_starts_as_the_same_model_with_fewer_parameters(variant: str, noised: int) -> None:
    """A new low-rank model computes the same as the full model, and has the expected number of parameters."""
    full, low = (
        build_model(name, (6,), 5, seed=3, input_dtype=np.int64, options=OPTIONS)
        for name in ("lstm", lowered("lstm", variant))
    )
    letters = torch.randint(5, (4, 6), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(low(letters), full(letters))
    assert len(flatten(low)) == noised


def test_convolutions_of_low_rank_start_as_the_same_network_with_fewer_parameters() -> None:
    """A new network of low-rank convolutions computes the same as the full network, also with a stride."""
    torch.manual_seed(0)
    full = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.Flatten(), nn.Linear(16, 3))
    pictures = torch.randn(5, 2, 4, 4)
    expected = full(pictures)
    low = lower(full, 2, both=True)
    torch.testing.assert_close(low(pictures), expected)
    assert len(flatten(low)) == (4 + 2 * 9) * 2 + (3 + 16) * 2 + 3


def test_a_step_in_one_factor_is_the_full_step_projected() -> None:
    """A gradient step in B changes the map B A by the full map's gradient, projected on A's row space."""
    torch.manual_seed(0)
    full = nn.Linear(6, 3)
    low = LowRank(full, 2, both=False)
    inputs = torch.randn(5, 6)
    (of_full,) = torch.autograd.grad(full(inputs).square().sum(), full.weight)
    (of_factor,) = torch.autograd.grad(low(inputs).square().sum(), low.up)
    torch.testing.assert_close(of_factor @ low.down, of_full @ low.down.T @ low.down)
    torch.testing.assert_close(low.down @ low.down.T, torch.eye(2))


class Models(Observer):
    """An observer that keeps the model of each round of a run."""

    def __init__(self) -> None:
        self.models: list[np.ndarray] = []

    def round_ended(self, ended: RoundEnded) -> None:
        """Keep a copy of the round's model."""
        self.models.append(ended.theta.copy())


def test_a_masked_round_moves_the_coordinates_of_its_mask_alone(tmp_path: Path) -> None:
    """A round changes exactly the coordinates in its mask, and two rounds have different masks."""
    wanted = ["dataset=digits", "run.num_rounds=2", "secagg=off", f"run.directory={tmp_path / 'run'}"]
    kept = Models()
    with masked(0.5, seed=7):
        run = PreparedRun.of(load([*SETTING, *wanted]))
        start = flatten(run.task.build_model())
        simulate_prepared(run, make_observers=lambda prepared, announce: [kept])
    first, second = (mask_of(7, index, 0.5, len(start)) for index in range(2))
    assert np.array_equal(kept.models[0] != start, first)
    assert np.array_equal(kept.models[1] != kept.models[0], second)
    assert not np.array_equal(first, second)


def test_every_rank_has_a_name_of_its_own() -> None:
    """Each low-rank variant has a model name of its own, since models are looked up by their names."""
    assert len({lowered("lstm", variant) for variant in RANKS}) == len(RANKS)
