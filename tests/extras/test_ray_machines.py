"""Tests of simulations on a Ray cluster: sums equal those of one machine, also if a machine is killed."""

import os
import signal
import socket
import sys
import time
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import count
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import ray
import torch

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import ConfigError, LearningError, RunError
from gdpfed.extras import ray_machines
from gdpfed.rounds import noise_streams, plain, state
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.file_formats import MODEL_FILE
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import parallel_engines, simulate
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine_choice import choose_engine
from gdpfed.simulation.in_process_fleet import InProcessFleet
from testing.ray_cluster import ray_cluster
from tests.simulation.small_cohorts import cohort_of, held_sums, order_of, theta_of, updates_by

# Ray leaves it to Python to close the logs of the processes that it starts, and to forget these.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning"),
]

ORDER = order_of()
TASK = ["dataset.num_clients=400", "dataset.model=mlp"]


@pytest.fixture(scope="module")
def cluster():
    """Start a Ray cluster of two machines with 2 CPUs and 1 CPU; yield the cluster and the second machine."""
    with ray_cluster(2, 1) as (made, (second,)):
        yield made, second


@pytest.fixture(scope="module")
def engine(cluster):
    """Yield a simulation engine that stays connected to the cluster until this module's last test."""
    made, words = engine_on(cluster[0].address)
    assert words == "many clients at once in each of 3 processes on 2 machines of a Ray cluster"
    yield made
    made.close()
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def alone():
    return BatchedEngine(ORDER.task, torch.device("cpu"))


def on_ray(address):
    return ["simulation.backend=ray", f"simulation.ray_address={address}"]


def engine_on(address, *more):
    config = load([*TASK, *on_ray(address), *more])
    return choose_engine(config.simulation, task_of(config), config.run.device)


def assert_same_bits(engine, cohort, alone):
    ours, own = (each.sum_updates(ORDER, theta_of(ORDER), cohort) for each in (engine, alone))
    assert ours.num_updates == own.num_updates == len(cohort.clients)
    np.testing.assert_array_equal(ours.total, own.total)


def assert_same_run(one, other):
    for mine, yours in zip(read_rounds(one), read_rounds(other), strict=True):
        assert replace(mine, seconds={}) == replace(yours, seconds={})
    assert (one / MODEL_FILE).read_bytes() == (other / MODEL_FILE).read_bytes()


def test_where_ray_is_not_installed_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "gdpfed.extras.ray_machines")
    with pytest.raises(ConfigError, match="simulation.backend=ray needs Ray, which is not installed"):
        engine_on("auto")


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


@pytest.mark.slow
def test_a_machine_of_other_code_is_refused(cluster, monkeypatch):
    words, kind = ray_machines.installed()
    monkeypatch.setattr(ray_machines, "installed", lambda: (words.replace("numpy", "other numpy"), kind))
    with pytest.raises(ConfigError, match=r"^machine .+ has numpy [\d.]+, and this process has other numpy "):
        engine_on(cluster[0].address)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_run_goes_on_with_another_backend(cluster, tmp_path):
    common = [*TASK, "method=fedavg", "secagg=off", "run.num_rounds=3"]
    simulate(load([*common, f"run.directory={tmp_path}/alone"]))
    there = on_ray(cluster[0].address)
    simulate(load([*common, *there, "run.stop_after_round=1", f"run.directory={tmp_path}/changed"]))
    resumed = f"run.resume={tmp_path}/changed"
    simulate(load_run([resumed, "simulation.backend=local", "run.stop_after_round=2"]))
    simulate(load_run([resumed, *there]))
    assert_same_run(tmp_path / "alone", tmp_path / "changed")
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_killed_process_of_ray_is_a_lost_machine_and_a_killed_worker_is_one_line(alone, caplog):
    with ray_cluster(1, 2) as (made, _):
        engine, _ = engine_on(made.address)
        try:
            assert isinstance(engine, ray_machines.RayMachines)
            asked = [each.actor.__ray_call__.remote(lambda _: os.getpid()) for each in engine._members]
            process = dict(zip(engine.shares, ray.get(asked), strict=True))
            os.kill(process[1], signal.SIGKILL)
            assert_same_bits(engine, cohort_of(ORDER, 21), alone)
            assert engine.shares == [2]
            assert "is lost: 1 machines go on" in caplog.text
            for worker in psutil.Process(process[2]).children():
                worker.kill()
            with pytest.raises(RunError, match=r"^machine .+: "):
                engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER, 21))
        finally:
            engine.close()


def test_more_workers_than_a_machine_has_are_refused(cluster):
    with pytest.raises(ConfigError, match="simulation.workers=2 is above the 1 CPUs that machine"):
        engine_on(cluster[0].address, "simulation.workers=2")
    assert not ray.is_initialized()


def trained(engine, path, monkeypatch, *overrides):
    """Train with this simulation engine and known keys for cohorts and noise; return the run's directory."""
    numbers = count()
    known = SimpleNamespace(urandom=lambda size: sha256(bytes([next(numbers)])).digest()[:size])
    for module in (noise_streams, plain, state):
        monkeypatch.setattr(module, "os", known)
    prepared = PreparedRun.of(load([*TASK, *overrides, "run.num_rounds=2", f"run.directory={path}"]))
    fleet = InProcessFleet(prepared.config.secagg, "test", engine)
    with prepared.open(fleet, lambda run, announce: [], lambda line: None) as run:
        for _ in run.rounds():
            pass
        run.conclude()
    return path


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=dp_fedavg", "secagg=off", "privacy.sampling_rate=0.2"),
        ("method=fedavg", "privacy.sampling_rate=0.02"),
    ],
)
def test_a_run_is_that_of_one_machine_with_noise_and_with_masks(
    engine, alone, overrides, tmp_path, monkeypatch
):
    runs = [
        trained(each, tmp_path / name, monkeypatch, *overrides)
        for name, each in (("alone", alone), ("shared", engine))
    ]
    assert_same_run(*runs)


def test_sums_and_updates_are_those_of_one_engine(engine, alone):
    cohort, theta = cohort_of(ORDER, 21), theta_of(ORDER)
    out, back = engine.moved.out, engine.moved.back
    assert_same_bits(engine, cohort, alone)
    # The model goes out once a machine, and one sum comes back; the rest is orders, ids and what pickle adds.
    assert 0 < engine.moved.out - out - 2 * theta.nbytes < 8000
    assert 0 < engine.moved.back - back - 2 * 8 * len(theta) < 8000
    assert_same_bits(engine, replace(cohort, clients=[]), alone)
    found, expected = (updates_by(each, ORDER, cohort) for each in (engine, alone))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_a_client_that_fails_is_one_line_with_its_machine(engine, alone):
    wrong = replace(cohort_of(ORDER, 2), clients=[399, 400])
    with pytest.raises(LearningError, match=r"^machine .+: client 400 is not in the split"):
        engine.sum_updates(ORDER, theta_of(ORDER), wrong)
    assert_same_bits(engine, cohort_of(ORDER, 5), alone)


def test_a_process_that_is_connected_already_is_refused(engine):
    with pytest.raises(ConfigError, match=r"this process is connected already: call ray.shutdown\(\)"):
        engine_on("local")
    assert ray.is_initialized()


def test_a_machine_that_is_killed_in_a_round_costs_no_bit(
    cluster, engine, alone, monkeypatch, tmp_path, caplog
):
    wait, (made, second) = ray.wait, cluster

    def kill_first(sent):
        monkeypatch.setattr(ray, "wait", wait)
        made.remove_node(second, allow_graceful=False)
        (tmp_path / "go").touch()
        return wait(sent)

    assert sorted(engine.shares) == [1, 2]
    monkeypatch.setattr(ray, "wait", kill_first)
    with monkeypatch.context() as held:
        held.setattr(parallel_engines, "_sums_of_part", partial(held_sums, tmp_path))
        assert_same_bits(engine, cohort_of(ORDER, 21), alone)
    assert engine.shares == [2]
    (line,) = [record.message for record in caplog.records]
    assert line.endswith("is lost: 1 machines go on, and train its 7 clients again")
    assert_same_bits(engine, cohort_of(ORDER, 5), alone)
