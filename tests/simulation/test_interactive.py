"""Tests of runs from notebooks, prompts, ``python -c`` and standard input: what they print of progress."""

import subprocess
import sys
import time
from dataclasses import replace

import numpy as np

import gdpfed
from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.cli.command import busy
from gdpfed.methods import make_method
from gdpfed.report import progress
from gdpfed.report.metric_display import duration
from gdpfed.report.plan_table import plan_lines
from gdpfed.report.progress import RoundLines, said_if_slow
from gdpfed.runs.round_log import read_rounds
from testing.written_runs import write_run

TRAIN = """
import gdpfed
run = gdpfed.simulate(
    "method=fedavg", "dataset.num_clients=24", "secagg=off", "run.num_rounds=2", "run.directory=run",
    "simulation.workers=2", "dataset=npz", "dataset.path=mine.npz",
)

print(len(run.records), "rounds")
"""


def answered(tmp_path, *words, said=""):
    """Run Python with these arguments in a folder with a small data set, and return the ended process."""
    x, y = np.arange(480, dtype=np.float32).reshape(240, 2) / 480, np.arange(240) % 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    done = subprocess.run([sys.executable, *words], input=said, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_a_program_from_standard_input_trains_in_several_processes_and_prints_nothing_of_ours(tmp_path):
    done = answered(tmp_path, "-", said=TRAIN)
    assert (done.stdout, done.stderr) == ("2 rounds\n", "")


def test_a_program_prints_nothing_of_ours_and_at_a_prompt_the_end_of_a_run_is_told_and_where_it_is(tmp_path):
    """A run in the program of ``python -i -c`` prints no progress; a run at the prompt prints it."""
    program = TRAIN.replace("directory=run", "directory=program")
    first, *lines = answered(tmp_path, "-i", "-q", "-c", program, said=TRAIN).stdout.splitlines()
    assert first == "2 rounds"
    assert [line for line in lines if "round 1/2" not in line] == [
        f"training 2 rounds; the run's files are in {tmp_path / 'run'}",
        lines[-2],
        "2 rounds",
    ]
    assert lines[-2].startswith("round 2/2: accuracy ")
    assert lines[-2].endswith(", 0 s left")


def test_lines_are_seconds_apart_at_first_and_then_seldom(tmp_path, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    (record,) = read_rounds(write_run(tmp_path / "run", ["method=fedavg"], accuracies=[0.5]))
    tell = RoundLines(1000, tmp_path)
    clock[0] += 2.0
    for number in range(1, 1001):
        clock[0] += 1.0
        tell(replace(record, round=number))
    first, *said = capsys.readouterr().out.splitlines()
    assert first == f"training 1000 rounds; the run's files are in {tmp_path}"
    rounds = [int(line.removeprefix("round ").partition("/")[0]) for line in said]
    assert rounds[:3] == [1, 4, 7]
    assert rounds[-1] == 1000
    assert len(rounds) < 80
    assert said[0].endswith(f", {duration(999 * record.seconds['total'])} left")
    assert said[1].endswith(", 16 min 36 s left")


def test_what_takes_long_is_said_to_a_person_only(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.0)
    for interactive in (False, True):
        if interactive:
            monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        with said_if_slow("planning ..."):
            gdpfed.plan("method=fedavg")
        assert ("planning ..." in capsys.readouterr().out) == interactive


def test_a_command_in_a_pipe_says_once_on_standard_error_what_takes_long(monkeypatch, capsys):
    with busy("reading ..."):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.0)
    with busy("reading ..."):
        time.sleep(0.2)
    assert tuple(capsys.readouterr()) == ("", "reading ...\n")


def test_in_a_notebook_a_plan_for_the_log_is_not_displayed(monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert any("group" in line for line in plan_lines(make_method(load(["dataset=digits"])), SecAggConfig()))
    assert capsys.readouterr().out == ""
