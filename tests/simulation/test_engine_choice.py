"""Tests of how a configuration chooses a simulation engine: messages about it, and refused models."""

from multiprocessing import current_process

import pytest
from torch import nn

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import ConfigError, LearningError
from gdpfed.learning.task import Task
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import SequentialEngine
from gdpfed.simulation.engine_choice import choose_engine
from gdpfed.simulation.parallel_engines import WorkerProcesses


def chosen(*overrides):
    config = load(overrides)
    engine, words = choose_engine(config.simulation, task_of(config), "cpu")
    engine.close()
    return type(engine), words


def test_the_engine_is_the_one_that_was_asked_for():
    assert chosen("simulation.workers=1") == (BatchedEngine, "many clients at once on the CPU")
    assert chosen("simulation.workers=1", "simulation.engine=sequential") == (
        SequentialEngine,
        "one client after the other on the CPU",
    )
    assert chosen("simulation.workers=3") == (
        WorkerProcesses,
        "many clients at once in each of 3 processes",
    )


def test_a_daemon_which_may_have_no_children_trains_by_itself(monkeypatch):
    monkeypatch.setattr(current_process(), "daemon", True)
    assert chosen() == (BatchedEngine, "many clients at once on the CPU")
    refusal = "simulation.workers=3 is not available on linux in a daemonic process: leave it out"
    with pytest.raises(ConfigError, match=refusal):
        chosen("simulation.workers=3")


def test_a_large_model_trains_one_client_after_the_other(monkeypatch):
    monkeypatch.setattr("gdpfed.simulation.engine_choice.MOST_BATCHED_PARAMETERS_ON_CPU", 600)
    assert chosen("simulation.workers=1")[0] is SequentialEngine
    assert chosen("simulation.workers=1", "simulation.engine=batched")[0] is BatchedEngine


class Looking(nn.Module):
    """A model that branches on its data, which one pass for many clients does not support."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        logits = self.layer(x.flatten(1))
        return logits if logits.sum() > 0 else -logits


def test_a_model_that_cannot_be_batched_is_trained_alone_or_refused(monkeypatch):
    monkeypatch.setattr(Task, "build_model", lambda task: Looking())
    assert chosen("simulation.workers=1")[0] is SequentialEngine
    with pytest.raises(ConfigError, match="dataset.model=linear cannot train many clients at once"):
        chosen("simulation.engine=batched")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["simulation.engine=fast"], "simulation.engine=fast is not known: use auto, batched or sequential"),
        (["simulation.workers=0"], "simulation.workers=0 must be at least 1"),
        (["simulation.clients_at_once=-3"], "simulation.clients_at_once=-3 must be at least 1"),
        (["simulation.precision=half"], "simulation.precision=half is not known: use"),
        (["simulation.precision=tf32"], "tf32 is a precision of GPUs"),
        (["simulation.precision=bf16", "simulation.engine=sequential"], "needs simulation.engine=batched"),
        (["simulation.backend=spark"], "simulation.backend=spark is not known: use local or ray"),
        (
            ["simulation.backend=ray", "training.client_state=scaffold"],
            "training.client_state=scaffold is kept in files of one machine, and simulation.backend=ray",
        ),
        (
            ["simulation.ray_address='ray://host:10001'"],
            "simulation.ray_address=ray://host:10001 is not known: use auto, local, or HOST:PORT",
        ),
    ],
)
def test_bad_settings_are_one_line(overrides, words):
    with pytest.raises(ConfigError, match=words):
        chosen(*overrides)


def test_machines_of_a_cluster_train_on_no_gpu():
    config = load(["simulation.backend=ray"])
    with pytest.raises(ConfigError, match="run.device=cuda is for one machine"):
        choose_engine(config.simulation, task_of(config), "cuda")


class Scaled(nn.Linear):
    """A model that uses a parameter outside its layer, which one pass for many clients does not support."""

    def forward(self, x):
        return super().forward(x.flatten(1)) * self.bias.sum().cos()


class Centred(nn.Linear):
    """A model whose outputs depend on the whole batch."""

    def forward(self, x):
        outputs = super().forward(x.flatten(1))
        return outputs - outputs.mean(dim=0)


def chosen_for_records(*overrides):
    config = load(["simulation.workers=1", *overrides])
    engine, words = choose_engine(config.simulation, task_of(config), "cpu", records=True)
    engine.close()
    return type(engine), words


def test_where_records_are_the_unit_the_words_say_how_their_gradients_are_computed(monkeypatch):
    assert chosen_for_records("dataset.model=linear") == (
        BatchedEngine,
        "many clients at once, many records at once in closed form on the CPU",
    )
    monkeypatch.setattr(Task, "build_model", lambda task: Scaled(64, 10))
    assert chosen_for_records() == (
        SequentialEngine,
        "one client after the other, many records at once by vmap on the CPU",
    )
    with pytest.raises(ConfigError, match="cannot train many clients at once .its gradients go many records"):
        chosen_for_records("simulation.engine=batched")


def test_a_model_that_couples_records_is_refused_where_they_are_the_unit(monkeypatch):
    monkeypatch.setattr(Task, "build_model", lambda task: Centred(64, 10))
    with pytest.raises(LearningError, match="couples records"):
        chosen_for_records()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="simulation.precision=bf16 is for runs that protect clients"):
        chosen_for_records("simulation.precision=bf16")
