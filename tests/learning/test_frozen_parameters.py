"""Tests of frozen parameters (requires_grad=False): they are not trained, sent, clipped or noised."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.learning.models import MODELS, assign, build_model, flatten, trainable
from gdpfed.methods import make_method
from gdpfed.runs.file_formats import MODEL_FILE
from gdpfed.simulation import simulate
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import SequentialEngine
from testing.small_runs import run, small_config
from tests.simulation.small_cohorts import cohort_of, order_of, updates_by
from tests.simulation.test_batched_records import bits_of, cohort_for

RANK, HIDDEN, INPUTS, CLASSES = 4, 128, 64, 10
LOW_RANK = RANK * (INPUTS + HIDDEN) + RANK * (HIDDEN + CLASSES)
TRUNK = HIDDEN * CLASSES + CLASSES


class LowRank(nn.Module):
    """A linear layer W x + B A x, of which only A and B are trained (LoRA, arXiv:2106.09685)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.base(x) + self.up(self.down(x))
        return output


def low_rank(shape, classes):
    size = math.prod(shape)
    layers = [LowRank(nn.Linear(size, HIDDEN)), nn.ReLU(), LowRank(nn.Linear(HIDDEN, classes))]
    return nn.Sequential(nn.Flatten(), *layers)


def frozen_trunk(shape, classes):
    trunk = nn.Linear(math.prod(shape), HIDDEN).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), trunk, nn.ReLU(), nn.Linear(HIDDEN, classes))


def frozen_head(shape, classes):
    head = nn.Linear(HIDDEN, classes)
    head.bias.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), HIDDEN), nn.ReLU(), head)


def all_frozen(shape, classes):
    return frozen_trunk(shape, classes).requires_grad_(False)


SIZES = {
    "low_rank": LOW_RANK,
    "frozen_trunk": TRUNK,
    "frozen_head": INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for builder in (low_rank, frozen_trunk, frozen_head, all_frozen):
        monkeypatch.setitem(MODELS._items, builder.__name__, builder)


@pytest.mark.parametrize("name", SIZES)
def test_theta_is_what_is_trainable(name):
    model = build_model(name, (1, 8, 8), CLASSES, seed=1)
    theta = flatten(model)
    assert theta.shape == (SIZES[name],)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assign(model, torch.zeros(SIZES[name]))
    for key, value in model.state_dict().items():
        assert (not value.any()) if key in trainable(model) else torch.equal(value, before[key])


def test_a_model_that_trains_nothing_is_refused():
    with pytest.raises(LearningError, match="dataset.model=all_frozen has no trainable parameter"):
        build_model("all_frozen", (1, 8, 8), CLASSES, seed=0)


@pytest.mark.parametrize("name", SIZES)
def test_plans_count_what_is_trainable(name):
    config = load(["dataset=digits", f"dataset.model={name}"])
    assert task_of(config).dimension == SIZES[name]
    assert make_method(config).plan.private


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("work", ["update", "dp_sgd", "gradient_sum"])
def test_every_engine_trains_the_same_parameters(name, work):
    order = replace(order_of(name, num_clients=60), work=work)
    cohort = cohort_of(order, 6, noise_multiplier=0.0) if work == "update" else cohort_for(order, 6)
    make = (
        (lambda kind, *more: kind(*more))
        if work == "update"
        else lambda kind, *more: kind(*more, bits=bits_of)
    )
    alone = updates_by(make(SequentialEngine), order, cohort)
    together = updates_by(make(BatchedEngine, order.task, torch.device("cpu")), order, cohort)
    assert any(steps.any() for steps in alone.values())
    for client, steps in alone.items():
        assert steps.shape == (SIZES[name],)
        assert np.abs(together[client] - steps).max() * cohort.encoding.grid <= 2e-5


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("name", ["low_rank", "frozen_trunk"])
def test_what_is_frozen_comes_out_as_it_was(tmp_path, name, engine):
    words = [f"dataset.model={name}", "method=dp_fedavg", "run.num_rounds=2", f"simulation.engine={engine}"]
    simulate(small_config(tmp_path / "run", words))
    assert audit_run(tmp_path / "run").passed
    as_it_was(tmp_path / "run", words)


def test_nodes_train_what_is_trainable(tmp_path):
    words = ["dataset.model=low_rank", "method=dp_fedavg", "run.num_rounds=1", "privacy.sampling_rate=1"]
    (record,) = run(tmp_path / "run", words)
    assert record.survivors == [12]
    as_it_was(tmp_path / "run", words)


def as_it_was(directory, words):
    tensors, model = (
        load_file(directory / MODEL_FILE),
        task_of(small_config(directory, words)).build_model(),
    )
    assert tensors.keys() == model.state_dict().keys()
    learnt = trainable(model)
    for key, value in model.state_dict().items():
        assert torch.equal(tensors[key], value) == (key not in learnt)
