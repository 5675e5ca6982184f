"""Machines of a Ray cluster sum as one engine does, also when one is killed; and what they refuse."""

import os
import socket
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import ray
import torch

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import ConfigError, LearningError
from gdpfed.learning.model_folder import WEIGHTS_FILE
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import parallel_engines, ray_machines, simulate
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine_choice import choose_engine
from testing.ray_cluster import ray_cluster
from tests.simulation.small_cohorts import cohort_of, held_sums, order_of, theta_of, updates_by

# Ray leaves it to Python to close the logs of the processes that it starts.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

ORDER = order_of()
SETTINGS = ["dataset.num_clients=400", "dataset.model=mlp", "simulation.backend=ray"]


@pytest.fixture(scope="module")
def machines():
    """A cluster of a machine with two CPUs and one with one."""
    with ray_cluster(2, 1) as made:
        yield made


def engine_on(address, *more):
    config = load([*SETTINGS, f"simulation.ray_address={address}", *more])
    return choose_engine(config.simulation, task_of(config), config.run.device)


def assert_same_bits(engine, cohort, alone):
    ours, own = (each.sum_updates(ORDER, theta_of(ORDER), cohort) for each in (engine, alone))
    assert ours.num_updates == own.num_updates == len(cohort.clients)
    np.testing.assert_array_equal(ours.total, own.total)


def test_a_run_on_two_machines_is_the_run_of_one(machines, tmp_path):
    cluster, _ = machines
    common = ["dataset.num_clients=60", "method=fedavg", "secagg=off", "run.num_rounds=2"]
    alone = simulate(load([*common, "simulation.workers=1", f"run.directory={tmp_path}/alone"]))
    there = ["simulation.backend=ray", f"simulation.ray_address={cluster.address}"]
    shared = simulate(load([*common, *there, f"run.directory={tmp_path}/shared"]))
    for one, other in zip(read_rounds(alone), read_rounds(shared), strict=True):
        assert replace(one, seconds={}) == replace(other, seconds={})
    files = [path / "model" / WEIGHTS_FILE for path in (alone, shared)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not ray.is_initialized()


def test_machines_of_other_code_are_refused(machines, monkeypatch):
    words, kind = ray_machines.installed()
    monkeypatch.setattr(ray_machines, "installed", lambda: (words.replace("numpy", "other numpy"), kind))
    with pytest.raises(ConfigError, match=r"^machine .+ has other versions than this process: numpy "):
        engine_on(machines[0].address)
    assert not ray.is_initialized()


def test_more_workers_than_a_machine_has_are_refused(machines):
    with pytest.raises(ConfigError, match="simulation.workers=2 is above the 1 CPUs that machine"):
        engine_on(machines[0].address, "simulation.workers=2")


def test_a_machine_that_is_killed_in_a_round_costs_no_bit(machines, monkeypatch, tmp_path, caplog):
    cluster, (first, _) = machines
    engine, words = engine_on(cluster.address)
    alone = BatchedEngine(ORDER.task, torch.device("cpu"))
    try:
        assert words == "many clients at once in each of 3 processes on 2 machines of a Ray cluster"
        assert sorted(engine.shares) == [1, 2]
        _check_both(engine, alone)
        with pytest.raises(LearningError, match=r"^machine .+: client 400 is none of the 400 clients"):
            engine.sum_updates(ORDER, theta_of(ORDER), _with(cohort_of(ORDER, 2), [399, 400]))

        wait = ray.wait

        def kill_first(sent):
            monkeypatch.setattr(ray, "wait", wait)
            cluster.remove_node(first, allow_graceful=False)
            (tmp_path / "go").touch()
            return wait(sent)

        monkeypatch.setattr(ray, "wait", kill_first)
        with monkeypatch.context() as held:
            held.setattr(parallel_engines, "_sums_of_part", partial(held_sums, tmp_path))
            assert_same_bits(engine, cohort_of(ORDER, 21), alone)
        assert engine.shares == [1]
        (line,) = [record.message for record in caplog.records]
        assert line.endswith("is lost: 1 machines go on, and train its 14 clients again")
        assert_same_bits(engine, cohort_of(ORDER, 5), alone)
    finally:
        engine.close()


def _with(cohort, clients):
    return type(cohort)(clients, cohort.encoding)


def _check_both(engine, alone):
    """Sums and updates are those of one engine; the model goes out once a machine, one sum comes back."""
    cohort, theta = cohort_of(ORDER, 21), theta_of(ORDER)
    assert_same_bits(engine, cohort, alone)
    more = 2 * 4000  # Orders, client ids, and what pickle adds.
    assert 0 < engine.moved.out - 2 * theta.nbytes < more
    assert 0 < engine.moved.back - 2 * 8 * len(theta) < more
    assert_same_bits(engine, _with(cohort, []), alone)
    found, expected = (updates_by(each, ORDER, cohort) for each in (engine, alone))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_a_cluster_that_is_not_there_is_one_line_in_seconds(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=f"simulation.ray_address={address} cannot be used .+refused"):
        engine_on(address)
    monkeypatch.setitem(os.environ, "RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match="simulation.ray_address=auto cannot be used"):
        engine_on("auto")
    assert time.perf_counter() - began < 60


def test_where_ray_is_not_installed_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "gdpfed.simulation.ray_machines")
    with pytest.raises(ConfigError, match="simulation.backend=ray needs Ray, which is not installed"):
        engine_on("auto")
