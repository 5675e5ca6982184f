"""Tests of ``gdpfed simulate``: its output, its files, and runs that are interrupted or fail."""

import errno
import os
import re
import signal
import subprocess
import sys
from math import nan

import pytest

import gdpfed.methods.rates
from gdpfed import files
from gdpfed.cli import main
from gdpfed.learning.training.evaluate import Evaluation
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.loop import RoundLoop
from gdpfed.runs.file_formats import ACCURACY_PICTURE, CHECKPOINT_FILE, MODEL_CARD_FILE, MODEL_FILE
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation.in_process_fleet import InProcessFleet
from testing.settings import last_of_each
from testing.small_runs import files_in

SMALL = (
    "dataset.num_clients=24",
    "dataset.num_rounds=3",
    "privacy.sampling_rate=0.6",
    "privacy.delta=1e-3",
    "privacy.accountant=rdp",
    "secagg=off",
    "method=dp_fedavg",
)


def test_simulate_shows_plan_and_rounds_and_where_the_files_are(tmp_path, capsys):
    assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 0
    out = capsys.readouterr().out
    assert re.match(r"who +24 clients, .*\npromise  client-level DP \(delta 0\.001\) against ", out)
    for line in (
        r"cost +noise of .*",
        r"result +accuracy \d+\.\d % after 3 of 3 rounds",
        r"without a model +answering '\d' always would be right for \d+\.\d % of it",
        r"without privacy +not known: method=fedavg with the same rounds and step says it",
        r"spent, group 0 +[█░]{20} \d\.\d\d of 1, 24 clients",
    ):
        assert re.search(f"^{line}$", out, re.MULTILINE), line
    # A line on a result at chance may follow.
    files = out.partition("The run's files are in")[2].splitlines()[1:4]
    assert [line.split()[0] for line in files] == [MODEL_CARD_FILE, ACCURACY_PICTURE, "model/"]
    assert [line.split()[1] for line in out.splitlines() if line.startswith("round")] == ["1/3", "2/3", "3/3"]
    assert f"The run's files are in {tmp_path}/run" in out
    assert (tmp_path / "run" / MODEL_FILE).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_one_line_and_a_run_that_goes_on(tmp_path, capsys, monkeypatch, number):
    one_round = RoundLoop._round

    def interrupted(self, index, *arguments):
        if index == 1:
            os.kill(os.getpid(), number)
        return one_round(self, index, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RoundLoop, "_round", interrupted)
        assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 130
    err = capsys.readouterr().err
    assert err.removeprefix("planning ...\n") == (
        f"gdpfed: interrupted; continue with run.resume={tmp_path}/run\n"
    )
    assert main(["simulate", *SMALL, f"run.resume={tmp_path}/run"]) == 0
    assert [record.round for record in read_rounds(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("number", "needed"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EROFS, "let this user write it"),
        (errno.EFBIG, r"let this user write larger files \(ulimit -f\)"),
    ],
)
def test_a_full_disk_leaves_one_line_and_a_run_that_goes_on(number, needed, tmp_path, capsys, monkeypatch):
    checkpoints, write = [], files.write_whole

    def full(path, data, **how):
        checkpoints.extend([path] if path.name == CHECKPOINT_FILE else [])
        if len(checkpoints) > 1:
            raise OSError(number, "No")
        write(path, data, **how)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_whole", full)
        assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert re.search(rf"/run/\S+ cannot be written: No; {needed}, then continue ", line)
    assert line.endswith(f"run.resume={tmp_path}/run [run]")
    assert main(["simulate", *SMALL, f"run.resume={tmp_path}/run"]) == 0


def test_a_disk_that_is_full_before_the_first_checkpoint_asks_for_room(tmp_path, capsys, monkeypatch):
    write = files.write_whole

    def full(path, data, **how):
        if path.name == CHECKPOINT_FILE:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data, **how)

    monkeypatch.setattr(files, "write_whole", full)
    assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    asked = f"make room, then remove {tmp_path}/run, and start the run again [run]"
    assert line.endswith(f": No space left on device; {asked}")


def test_a_suite_in_the_background_interrupts_what_it_starts():
    """``take_interrupts`` lets an interrupt end a program that was started with interrupts ignored."""
    program = "from testing.interrupts import take_interrupts; take_interrupts(); import os, signal; "
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}os.kill(os.getpid(), signal.SIGINT)"],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


def test_an_interrupt_before_the_first_file_has_nothing_to_continue(tmp_path, capsys, monkeypatch):
    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("gdpfed.rounds.run.PreparedRun.open", interrupted)
    assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 130
    assert capsys.readouterr().err == "gdpfed: interrupted\n"
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_sum_says_so_and_leaves_its_files(tmp_path, capsys, monkeypatch):
    def lost(self, sums, upcoming):
        return {each.name: ClientSum(each.name, None, 0, "all of them are lost") for each in sums}

    monkeypatch.setattr(InProcessFleet, "sum_wave", lost)
    assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gdpfed: none of the run's 3 rounds has a sum, most often: all of them are lost. ")
    assert err.endswith(f"the run's files are in {tmp_path}/run [run]\n")
    assert err.count("\n") == 1
    left = {"model", "model_card.md", "ledger.json", "accuracy.png", "rounds.jsonl"}
    assert left <= {path.name for path in (tmp_path / "run").iterdir()}


def test_a_model_that_diverges_ends_the_run_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gdpfed.rounds.run.central_evaluation", lambda *_: lambda _: Evaluation(0.1, nan))
    assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gdpfed: round 1: the model's loss is nan, so training has diverged; ")
    assert "training.learning_rate (in an app of your own: its learning rate) or method.server" in err
    assert err.count("\n") == 1


def test_the_model_card_names_a_delta_that_is_weak(tmp_path):
    weak = [*SMALL, "privacy.delta=0.0303", "run.num_rounds=1", f"run.directory={tmp_path}/run"]
    assert main(["simulate", *last_of_each(weak)]) == 0
    card = (tmp_path / "run" / "model_card.md").read_text()
    assert "**Weak: delta 0.0303 is large for 24 clients" in card


def test_a_run_does_not_go_on_with_another_delta_than_it_was_planned_with(tmp_path, capsys, monkeypatch):
    overrides = [each for each in SMALL if "delta" not in each]
    with monkeypatch.context() as before:
        before.setattr(gdpfed.methods.rates, "default_delta", lambda num_clients: num_clients**-1.1)
        begun = [*overrides, f"run.directory={tmp_path}/run", "run.stop_after_round=1"]
        assert main(["simulate", *begun]) == 0
    saved = files_in(tmp_path)
    capsys.readouterr()
    assert main(["simulate", *overrides, f"run.resume={tmp_path}/run"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gdpfed: the ledger belongs to another plan")
    assert error.count("\n") == 1
    assert files_in(tmp_path) == saved


@pytest.mark.parametrize(
    ("override", "status", "words"),
    [
        ("dataset.partition=natural", 2, "dataset.partition=natural"),
        ("run.directory={occupied}", 1, "is not empty"),
        ("run.directory={occupied}/file/below", 1, "file is not a directory"),
        ("dataset.path=~no-such-user/run", 2, "there is no user of that name here, write the whole path"),
        ("secagg.minimum_cohort=200", 2, "rounds would be charged without any sum"),
        ("simulation.workers=500", 2, "simulation.workers=500 is far above the"),
    ],
)
def test_what_cannot_run_is_one_line(tmp_path, capsys, override, status, words):
    (tmp_path / "file").touch()
    settings = last_of_each([*SMALL, override.format(occupied=tmp_path)])
    assert main(["simulate", *settings]) == status
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
