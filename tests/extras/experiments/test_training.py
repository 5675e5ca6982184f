"""Tests of parallel runs of an experiment: what they compute, and what remains if one ends early."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from conf.schema import Config
from gdpfed.child_process import fork_context
from gdpfed.cli import main
from gdpfed.errors import ExperimentError, LearningError, RunError
from gdpfed.extras.experiments.definitions import Choice
from gdpfed.extras.experiments.run_training import Trainer
from gdpfed.extras.experiments.runs import lock_output
from testing.waiting import until
from tests.extras.experiments.small_experiment import EXPERIMENT, Observe, StubTrainer, figures, run_it

PAIR = replace(
    EXPERIMENT,
    rows={
        "dp": Choice(label="DP", overrides=["method=dp_fedavg"]),
        "same": Choice(label="the same", overrides=["method=dp_fedavg"]),
        "plus": Choice(label="Plus", overrides=["method=gdpfed_plus"]),
    },
)
run_pair = partial(run_it, experiment=PAIR, jobs=2)


def trainer_of(train: Callable[..., object]) -> Trainer:
    return Trainer(lambda config: None, train)


def train_in_a_child(config: Config, *, observe: Observe = None, parent: int) -> None:
    assert os.getppid() == parent
    StubTrainer().train(config, observe=observe)


def test_runs_in_processes_come_to_the_same_table_as_in_one(tmp_path):
    before = psutil.Process().children()
    trainer = trainer_of(partial(train_in_a_child, parent=os.getpid()))
    complete, shown = run_pair(tmp_path / "processes", trainer)
    assert complete
    # Two rows are one configuration, hence one run a seed.
    assert len(list((tmp_path / "processes" / "runs").iterdir())) == shown.count("took") == 4
    run_pair(tmp_path / "here", alone := StubTrainer(), jobs=1)
    assert len(alone.trained) == 4
    assert len(alone.loaded) == 1
    assert figures(tmp_path / "processes") == figures(tmp_path / "here")
    assert psutil.Process().children() == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_refused_input_is_the_cells_reason_and_the_others_go_on(tmp_path, jobs):
    complete, shown = run_pair(tmp_path, trainer_of(refuse_dp_fedavg), jobs=jobs)
    assert not complete
    assert shown.count("no dp_fedavg") == 1
    assert [row["missing"] for row in figures(tmp_path).values()] == ["no dp_fedavg", "no dp_fedavg", ""]


def refuse_dp_fedavg(config: Config, *, observe: Observe = None) -> None:
    if config.method.name == "dp_fedavg":
        raise LearningError("no dp_fedavg")
    StubTrainer().train(config, observe=observe)


def fail_with_run_error(config: Config) -> None:
    raise RunError("the disk is full")


def fail_with_a_bug(config: Config) -> None:
    raise ZeroDivisionError("a bug")


def be_killed(config: Config) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_or_fail(
    config: Config, *, observe: Observe = None, fail: Callable[[Config], None], method: str = ""
) -> None:
    if config.method.name == (method or config.method.name) and config.run.seed == 0:
        fail(config)
    StubTrainer().train(config, observe=observe)


@pytest.mark.parametrize(
    ("fail", "jobs", "reason"),
    [
        (fail_with_run_error, 1, "the disk is full"),
        (fail_with_run_error, 2, "the disk is full"),
        (fail_with_a_bug, 2, "ZeroDivisionError: a bug"),
        (be_killed, 2, "its process was killed, perhaps for want of memory"),
    ],
)
def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path, capfd, fail, jobs, reason):
    train = partial(train_or_fail, fail=fail, method="gdpfed_plus")
    complete, shown = run_pair(tmp_path, trainer_of(train), jobs=jobs)
    assert not complete
    assert len(list(tmp_path.glob("runs/*/model/weights.safetensors"))) == 3
    (failed,) = [line for line in shown.splitlines() if "the training of" in line]
    assert failed.startswith(f"the training of {tmp_path}/runs/digits-gdpfed_plus-")
    assert failed.endswith(f"-seed0 failed: {reason}")
    assert figures(tmp_path)["digits", "plus", ""]["seeds"] == "1"
    assert ("Traceback" in capfd.readouterr().err) == (fail is fail_with_a_bug)
    assert ("going on with --jobs 1" in shown) == (fail is be_killed)
    assert run_pair(tmp_path, again := StubTrainer(), jobs=1)[0]
    assert len(again.trained) == 1


def test_nothing_but_a_failed_run_is_one_line(tmp_path):
    train = partial(train_or_fail, fail=fail_with_run_error)
    with pytest.raises(RunError, match="the training of .*-seed0 failed: the disk is full"):
        run_pair(tmp_path, trainer_of(train), seeds=1)
    assert not (tmp_path / "small").exists()


def train_a_round_and_wait(config: Config, *, observe: Observe = None) -> None:
    with suppress(KeyboardInterrupt):
        StubTrainer(interrupt_after=1).train(config, observe=observe)
    time.sleep(600)


def reproduce_until_interrupted(output: Path) -> None:
    try:
        run_pair(output, trainer_of(train_a_round_and_wait))
    except KeyboardInterrupt as interrupt:
        (output / "said").write_text(str(interrupt))


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_an_experiment_and_its_runs_continue(tmp_path, end):
    experiment = fork_context().Process(target=reproduce_until_interrupted, args=(tmp_path,))
    experiment.start()
    assert experiment.pid is not None
    rounds = lambda: [path for path in tmp_path.glob("runs/*/rounds.jsonl") if path.stat().st_size]  # noqa: E731
    until(lambda: len(rounds()) == 2 or not experiment.is_alive())
    assert experiment.is_alive()
    children = psutil.Process(experiment.pid).children(recursive=True)
    assert len(children) == 2
    os.kill(experiment.pid, end)
    experiment.join(60)
    assert not experiment.is_alive()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    if end == signal.SIGINT:
        said = "interrupted after 0 of 4 runs; the same command continues: gdpfed reproduce small"
        assert (tmp_path / "said").read_text() == said
    begun = {run.name for run in (tmp_path / "runs").iterdir()}
    assert len(begun) == 2
    assert run_pair(tmp_path, trainer := StubTrainer(), jobs=1)[0]
    assert {Path(config.run.resume).name for config in trainer.trained if config.run.resume} == begun


def test_one_reproduce_at_a_time_has_an_output(tmp_path):
    message = f"--output {tmp_path} is in use by another command: wait for it, or choose another"
    with lock_output(tmp_path), pytest.raises(ExperimentError, match=message):
        run_pair(tmp_path, StubTrainer())
    with lock_output(tmp_path):
        pass


@pytest.mark.parametrize("jobs", ["0", "-1"])
def test_no_jobs_are_refused(tmp_path, capsys, jobs):
    assert main(["reproduce", "table2", f"--jobs={jobs}", f"--output={tmp_path}/out"]) == 2
    assert capsys.readouterr().err == f"gdpfed: --jobs {jobs} must be at least 1 [experiment]\n"
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ExperimentError, match="file cannot be a directory: File exists"):
        run_pair(tmp_path / "file", StubTrainer())
