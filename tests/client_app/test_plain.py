"""Tests of unmasked updates: a node sends them only if its operator has allowed that in its settings."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from client_app.carried import in_flowers_simulation, settings_of
from gdpfed.clients.messages import DATA, ORDER_RECORD, PLAIN, REFUSAL, ROUND, RUN, THETA_RECORD
from gdpfed.clients.order import TrainingOrder
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from secagg import SumParameters
from testing.local_grid import ask, make_context
from testing.project import PROJECT

TASK = Task(DataSource("digits"), "linear", "iid", 40, seed=0)
ORDER = TrainingOrder(TASK, LocalTraining(5, 4, 0.5, 0.0), round_index=0, device="cpu")
THETA = flatten(TASK.build_model())
EVERY_LIMIT = {
    "minimum-cohort": 3,
    "minimum-noise-multiplier": 0.5,
    "maximum-dropout-fraction": 0.2,
    "corrupt-fraction": 0.1,
}
REFUSED = (
    "stage plain, from the server: an update in clear is asked, and this node was not started with "
    "secagg-mode=off"
)


def parameters(num_clients: int = 10, **changes: Any) -> SumParameters:
    values: dict[str, Any] = {
        "label": "test",
        "num_clients": num_clients,
        "threshold": num_clients * 2 // 3,
        "dropout_tolerance": 0,
        "dimension": len(THETA),
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
    }
    return SumParameters(**values | changes)


def context(**settings: Any) -> Context:
    return make_context(3, {key.replace("_", "-"): value for key, value in settings.items()})


def asked(numbers: SumParameters, **more: Any) -> RecordDict:
    """Return a server's message that asks for an unmasked update; `more` are further entries in it."""
    record = ConfigRecord({DATA: numbers.to_bytes(), RUN: "run", ROUND: 0, **more})
    order = ConfigRecord(dict(ORDER.to_scalars()))
    return RecordDict(
        {PLAIN: record, ORDER_RECORD: order, THETA_RECORD: ArrayRecord({THETA_RECORD: Array(THETA)})}
    )


def answer(content: RecordDict, node: Context) -> Mapping[str, Any]:
    """Send a message to a node and return the record of its answer."""
    reply = ask(f"train.{PLAIN}", content, node)[PLAIN]
    assert isinstance(reply, ConfigRecord)
    return reply


@pytest.mark.parametrize("settings", [{}, {"secagg_mode": "curious"}, {"secagg_mode": "active"}])
@pytest.mark.parametrize("num_clients", [10, 8000])
def test_no_word_of_a_server_makes_a_node_send_its_update_in_clear(settings, num_clients):
    """A node whose operator has not allowed unmasked updates refuses every request for an unmasked update."""
    node = context(**settings, **{k.replace("-", "_"): v for k, v in EVERY_LIMIT.items()})
    for lie in ({}, {"mode": "off"}, {"mode": settings.get("secagg_mode", "curious")}):
        assert dict(answer(asked(parameters(num_clients), **lie), node)) == {REFUSAL: REFUSED}


def test_it_is_refused_before_anything_is_parsed():
    """A node refuses a request for an unmasked update in the same words, whatever the request contains."""
    rubbish = (ConfigRecord(), ConfigRecord({DATA: b"?"}), ArrayRecord(), ConfigRecord({DATA: [1.0]}))
    for record in rubbish:
        assert answer(RecordDict({PLAIN: record}), context())[REFUSAL] == REFUSED


@pytest.mark.parametrize("num_clients", [10, 4000])
def test_a_node_started_for_it_sends_its_clipped_update_and_no_noise(num_clients):
    """A node whose operator has allowed unmasked updates sends its clipped update without noise."""
    numbers = parameters(num_clients)
    (data,) = answer(asked(numbers), context(secagg_mode="off")).values()
    encoding = numbers.encoding(num_clients)
    sent = encoding.decode(np.frombuffer(data, "<u4"))
    again = encoding.decode(np.frombuffer(answer(asked(numbers), context(secagg_mode="off"))[DATA], "<u4"))
    np.testing.assert_array_equal(sent, again)
    finer = replace(numbers, noise_multiplier=0.0)
    (exact,) = answer(asked(finer), context(secagg_mode="off")).values()
    without = finer.encoding(num_clients).decode(np.frombuffer(exact, "<u4"))
    np.testing.assert_allclose(sent, without, atol=encoding.grid * 20)
    assert np.linalg.norm(sent) <= 1.0


@pytest.mark.parametrize("named", ["path", "test_path", "columns"])
def test_a_file_that_the_server_names_is_opened_by_nobody(tmp_path, named, monkeypatch):
    there = tmp_path / "server.npz"
    monkeypatch.setattr("gdpfed.learning.task.Task.load", lambda task: pytest.fail("it is read"))
    source = replace(DataSource("npz"), **{named: str(there)})  # type: ignore[arg-type]
    order = replace(ORDER, task=replace(TASK, source=source, form=None))
    content = asked(parameters())
    content[ORDER_RECORD] = ConfigRecord(dict(order.to_scalars()))
    refusal = answer(content, context(secagg_mode="off"))[REFUSAL]
    assert "this node was started without data: it reads no file that another names" in refusal


def test_limits_hold_in_clear_too():
    node = context(secagg_mode="off", minimum_cohort=20)
    assert "num_clients 10 is below 20, this client's own limit" in answer(asked(parameters()), node)[REFUSAL]


def a_ray(actor_id, initialized=True):
    """Return a stand-in for Ray that only knows whether it runs in an actor or in a driver."""
    runtime = SimpleNamespace(get_actor_id=lambda: actor_id)
    return SimpleNamespace(is_initialized=lambda: initialized, get_runtime_context=lambda: runtime)


@pytest.mark.parametrize(
    ("ray", "simulated"),
    [(None, False), (a_ray(None), False), (a_ray("id", initialized=False), False), (a_ray("id"), True)],
)
def test_only_a_ray_actor_is_a_simulated_node(monkeypatch, ray, simulated):
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert in_flowers_simulation() == simulated
    assert settings_of(context()).mode == ("off" if simulated else "curious")
    assert (answer(asked(parameters()), context()).get(REFUSAL) is None) == simulated


@pytest.mark.parametrize("mode", ["curious", "active"])
def test_what_an_operator_says_counts_in_a_simulation_too(monkeypatch, mode):
    monkeypatch.setitem(sys.modules, "ray", a_ray("id"))
    assert answer(asked(parameters()), context(secagg_mode=mode))[REFUSAL] == REFUSED


IN_RAY = """
import ray
from client_app.carried import in_flowers_simulation

class Probe:
    def simulated(self):
        return in_flowers_simulation()

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
actor = ray.get(ray.remote(Probe).remote().simulated.remote())
task = ray.get(ray.remote(lambda: in_flowers_simulation()).remote())
print(actor, task, in_flowers_simulation())
"""


@pytest.mark.slow
def test_a_real_actor_is_one_and_a_task_or_a_driver_is_none():
    done = subprocess.run(
        [sys.executable, "-c", IN_RAY],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert done.stdout.split() == ["True", "False", "False"]
