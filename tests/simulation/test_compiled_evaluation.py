"""Tests of evaluating by compiled loops: the outputs are those of torch, and the same for any threads."""

import numpy as np
import pytest
import torch
from torch import nn

from fastgrad.program import Program
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import MODELS, flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.evaluate import CentralEvaluation, Evaluation, central_evaluation
from gdpfed.simulation.compiled_evaluation import CompiledOutputs, with_compiled_loops
from gdpfed.simulation.in_process_fleet import simulate
from testing.small_runs import small_config

CPU = "cpu"


@pytest.fixture
def pictures(tmp_path):
    """Return the path of 600 drawn test pictures: two batches of 256, and a rest."""
    drawn = np.random.default_rng(0)
    parts: dict[str, np.ndarray] = {}
    for part, count in (("train", 8), ("test", 600)):
        parts[f"x_{part}"] = drawn.uniform(-1, 1, (count, 1, 28, 28)).astype(np.float32)
        parts[f"y_{part}"] = drawn.integers(10, size=count)
    np.savez(tmp_path / "pictures.npz", allow_pickle=False, **parts)
    return tmp_path / "pictures.npz"


def task_of(path, model="cnn2"):
    return Task(DataSource("npz", path), model, "iid", 2, seed=0)


def compiled_of(task):
    """Return the evaluation of a task by compiled loops, which have to fit its model."""
    compiled = with_compiled_loops(central_evaluation(task, CPU), task, CPU)
    assert isinstance(compiled, CentralEvaluation)
    assert isinstance(compiled.outputs_of, CompiledOutputs)
    return compiled


def far_from_the_start(task):
    theta = flatten(task.build_model())
    return theta + np.random.default_rng(1).normal(scale=0.05, size=len(theta)).astype(np.float32)


@pytest.fixture
def threads():
    """Give torch back its number of threads after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", ["cnn2", "mlp"])
def test_the_outputs_are_those_of_torch(pictures, model):
    task = task_of(pictures, model)
    by_torch, compiled, theta = central_evaluation(task, CPU), compiled_of(task), far_from_the_start(task)
    (theirs, their_loss), (ours, our_loss) = by_torch.outputs_of(theta), compiled.outputs_of(theta)
    assert ours.shape == theirs.shape == (600, 10)
    assert np.abs(ours - theirs).max() < 1e-5
    assert our_loss == pytest.approx(their_loss, rel=1e-6)
    assert compiled(theta).accuracy == by_torch(theta).accuracy


def test_the_outputs_do_not_depend_on_the_number_of_threads_or_on_an_earlier_model(pictures, threads):
    task = task_of(pictures)
    compiled, theta = compiled_of(task), far_from_the_start(task)
    found = []
    for count in (1, 2, 3, 16):
        torch.set_num_threads(count)
        outputs, loss = compiled.outputs_of(theta)
        compiled.outputs_of(-theta)
        found.append((outputs.tobytes(), loss))
    assert found == found[:1] * 4


def with_dropout(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 10))


@pytest.mark.parametrize("model", ["linear", "with_dropout"])
def test_a_model_that_loops_do_not_fit_is_left_to_torch(pictures, model, monkeypatch):
    """A linear one is too small; dropout is for training alone, and the loops would drop in a test, too."""
    monkeypatch.setitem(MODELS._items, "with_dropout", with_dropout)
    task = task_of(pictures, model)
    by_torch = central_evaluation(task, CPU)
    assert with_compiled_loops(by_torch, task, CPU) is by_torch


def test_loops_that_compute_something_else_are_not_taken(pictures, monkeypatch):
    task, right = task_of(pictures), Program.outputs
    by_torch = central_evaluation(task, CPU)
    monkeypatch.setattr(Program, "outputs", lambda program, x: right(program, x) * 1.01)
    assert with_compiled_loops(by_torch, task, CPU) is by_torch


def test_an_evaluation_of_ones_own_stays(pictures):
    def own(theta):
        return Evaluation(0.5, 1.0)

    assert with_compiled_loops(own, task_of(pictures), CPU) is own


def test_a_simulated_run_is_evaluated_by_compiled_loops(tmp_path, monkeypatch):
    evaluated, right = [], CompiledOutputs.__call__

    def seen(outputs, theta):
        evaluated.append(len(theta))
        return right(outputs, theta)

    monkeypatch.setattr(CompiledOutputs, "__call__", seen)
    simulate(
        small_config(tmp_path / "run", ["dataset.model=mlp", "dataset.model_options={hidden_units:200}"])
    )
    assert len(evaluated) == 3
