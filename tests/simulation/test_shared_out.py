"""Tests of cohorts divided among processes or devices: sums as in one process, and no process left over."""

import errno
import gc
import os
import signal
import sys
import time
import weakref
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from gdpfed.child_process import fork_context
from gdpfed.cli import main
from gdpfed.errors import RunError
from gdpfed.simulation import parallel_engines
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import SumJob
from gdpfed.simulation.parallel_engines import SeveralDevices, WorkerProcesses, _work
from testing.waiting import until
from tests.simulation.small_cohorts import cohort_of, order_of, theta_of, updates_by

ORDER = order_of()
make_engine = partial(BatchedEngine, ORDER.task, torch.device("cpu"), chunk_clients=3)


def two_processes():
    return WorkerProcesses(make_engine, 2)


def two_devices():
    return SeveralDevices([make_engine(), make_engine()])


@pytest.mark.parametrize("size", [0, 1, 2, 21])
@pytest.mark.parametrize("make_shared", [two_processes, two_devices])
def test_it_is_the_sum_and_the_updates_of_one_engine(make_shared, size):
    cohort = cohort_of(ORDER, 21)
    cohort = type(cohort)(cohort.clients[:size], cohort.encoding)
    shared, alone = make_shared(), make_engine()
    try:
        ours, own = (each.sum_updates(ORDER, theta_of(ORDER), cohort) for each in (shared, alone))
        assert ours.num_updates == own.num_updates == size
        np.testing.assert_array_equal(ours.total, own.total)
        found, expected = (updates_by(each, ORDER, cohort) for each in (shared, alone))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
    finally:
        shared.close()


def test_garbage_is_freed_before_a_worker_inherits_it():
    class Garbage:
        """An object in a reference cycle, as an error of Ray's leaves one."""

    garbage: Any = Garbage()
    garbage.itself = garbage
    left = weakref.ref(garbage)
    gc.disable()
    try:
        del garbage
        assert left() is not None
        two_processes().close()
        assert left() is None
    finally:
        gc.enable()


def test_no_process_is_left():
    before = set(psutil.Process().children())
    engine = two_processes()
    workers = set(psutil.Process().children()) - before
    assert len(workers) == 2
    engine.close()
    assert not any(worker.is_running() for worker in workers)


def test_a_worker_that_is_killed_ends_the_run_with_one_line():
    before = set(psutil.Process().children())
    engine = two_processes()
    try:
        for worker in set(psutil.Process().children()) - before:
            worker.kill()
        with pytest.raises(RunError, match="a worker process was ended from outside"):
            engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER))
    finally:
        engine.close()


def test_a_worker_holds_few_updates_at_once(monkeypatch):
    """Updates that take much memory are sent in more parts, of which a worker holds one."""
    sizes, whole, job = (
        list[int](),
        WorkerProcesses._each,
        SumJob(ORDER, theta_of(ORDER), cohort_of(ORDER, 21)),
    )

    def each(engine, act, parts):
        for found in whole(engine, act, parts):
            sizes.append(sum(len(clients) for _, clients, _ in found))
            yield found

    monkeypatch.setattr(WorkerProcesses, "_each", each)
    monkeypatch.setattr(parallel_engines, "MOST_SENT_BYTES", 4 * 8 * job.cohort.encoding.dimension)
    engine = two_processes()
    try:
        found = [client for _, clients, _ in engine.updates_of([job]) for client in clients]
    finally:
        engine.close()
    assert sorted(found) == sorted(job.cohort.clients)
    assert (len(sizes), max(sizes)) == (6, 4)


class OddError(Exception):
    """An error that cannot be sent: it is made of two values."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Failing(BatchedEngine):
    """An engine whose work fails for cohorts of some sizes, each in its own way."""

    def sums_of(self, jobs):
        size = sum(len(job.cohort.clients) for job in jobs)
        if size == 6:
            raise FileNotFoundError("six")
        if size == 5:
            raise OddError(1, 2)
        if size == 4:
            sys.exit(3)
        if size == 3:
            torch.empty(2**60)
        if size == 1:
            raise MemoryError("of numpy")
        return super().sums_of(jobs)


def test_after_an_error_in_a_worker_or_a_stop_in_the_middle_the_next_answer_is_right():
    engine = WorkerProcesses(partial(Failing, ORDER.task, torch.device("cpu"), chunk_clients=3), 2)
    expected = make_engine().sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER, 8))
    try:
        for size, kind, said in (
            (24, FileNotFoundError, "six"),
            (20, RunError, "OddError: 1 and 2"),
            (16, RunError, "SystemExit: 3"),
            (12, RunError, "no memory left .*can't allocate .*: continue with .* fewer simulation.workers"),
            (4, RunError, r"no memory left \(of numpy\): continue with .* fewer simulation.workers"),
        ):
            with pytest.raises(kind, match=said) as failed:
                engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER, size))
            assert "in sums_of" in failed.value.__notes__[0]
        started = engine.updates(ORDER, theta_of(ORDER), cohort_of(ORDER, 21))
        next(started)
        with pytest.raises(RuntimeError, match="take all answers first"):
            engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER, 8))
        del started
        gc.collect()
        found = engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER, 8))
        np.testing.assert_array_equal(found.total, expected.total)
    finally:
        engine.close()


@pytest.mark.parametrize("name", ["send", "recv"])
def test_an_interrupt_in_the_middle_of_a_question_or_an_answer_ends_the_workers(monkeypatch, name):
    engine, whole = two_processes(), getattr(Connection, name)
    _, (second, _) = engine._workers

    def interrupted(pipe, *given):
        if pipe is second:
            raise KeyboardInterrupt
        return whole(pipe, *given)

    monkeypatch.setattr(Connection, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER, 21))
    assert not any(process.is_alive() for _, process in engine._workers)
    with pytest.raises(RunError, match="a worker process was ended"):
        engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER, 21))


def test_workers_that_cannot_make_their_engine_say_why():
    def make():
        raise FileNotFoundError("/nowhere")

    engine = WorkerProcesses(make, 2)
    try:
        with pytest.raises(FileNotFoundError, match="/nowhere"):
            engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER, 8))
    finally:
        engine.close()


def test_where_not_all_workers_can_be_started_none_is_left_and_the_error_says_so(monkeypatch):
    before, start = set(psutil.Process().children()), BaseProcess.start

    def limited(process):
        if set(psutil.Process().children()) - before:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        start(process)

    monkeypatch.setattr(BaseProcess, "start", limited)
    fault = "1 of 2 worker processes could be started .*temporarily.*: set fewer simulation.workers"
    with pytest.raises(RunError, match=fault):
        two_processes()
    assert set(psutil.Process().children()) == before


def test_workers_end_with_an_engine_that_nobody_closes():
    engine = two_processes()
    workers = [psutil.Process(process.pid) for _, process in engine._workers]
    del engine
    gc.collect()
    assert not any(worker.is_running() for worker in workers)


def said_into(file, words):
    """Run the command ``gdpfed`` in this process, with errors in a file; exit with the command's status."""
    with file.open("w") as stream:
        os.dup2(stream.fileno(), 2)
        sys.stderr = stream
        status = main(words)
    os._exit(status)


def test_an_interrupted_run_leaves_one_line_and_no_process(tmp_path):
    overrides = ["dataset.num_clients=24", "method=fedavg", "secagg=off", "run.num_rounds=100000"]
    words = ["simulate", *overrides, "simulation.workers=2", f"run.directory={tmp_path}/run"]
    run = fork_context().Process(target=said_into, args=(tmp_path / "stderr", words))
    run.start()
    rounds = tmp_path / "run" / "rounds.jsonl"
    until(lambda: (rounds.exists() and rounds.stat().st_size) or not run.is_alive())
    assert run.is_alive()
    workers = psutil.Process(run.pid).children()
    assert len(workers) == 2
    psutil.Process(run.pid).send_signal(signal.SIGINT)
    run.join(30)
    assert run.exitcode == 130
    message = (tmp_path / "stderr").read_text()
    assert message == f"gdpfed: interrupted; continue with run.resume={tmp_path}/run\n"
    assert not any(worker.is_running() for worker in workers)


def hold_workers():
    engine = two_processes()
    engine.sum_updates(ORDER, theta_of(ORDER), cohort_of(ORDER))
    time.sleep(600)


def test_workers_end_with_a_parent_that_is_killed():
    parent = fork_context().Process(target=hold_workers)
    parent.start()
    process = psutil.Process(parent.pid)
    until(lambda: len(process.children()) == 2 or not parent.is_alive())
    workers = process.children()
    parent.kill()
    parent.join()
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert len(gone) == 2
    assert not alive


def test_a_worker_whose_parent_ended_before_it_started_ends_at_once():
    not_its_parent = os.getppid()
    given = (lambda: time.sleep(600)), not_its_parent, None, None
    worker = fork_context().Process(target=_work, args=given)
    worker.start()
    worker.join(10)
    assert worker.exitcode == 1
