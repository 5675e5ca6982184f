"""Tests of run directories that are replaced by an old copy: a count outside the directory detects it."""

import json
import shutil

import numpy as np
import pytest

from gdpfed.errors import RunError
from gdpfed.runs.directory import RunDirectory
from gdpfed.runs.resume import load_run
from gdpfed.simulation.in_process_fleet import simulate
from testing.small_runs import files_in, nothing_drawn

TURNS = (
    *("method=dp_fedavg", "privacy.against=everyone", "privacy.accountant=pld", "privacy.budgets=[4]"),
    *("privacy.sampling_rate=0.5", "privacy.delta=1e-3", "privacy.noise_taps=1", "run.num_rounds=4"),
    *("secagg=off", "dataset=npz", "dataset.model=linear", "dataset.partition=iid", "dataset.num_clients=8"),
)


@pytest.fixture
def begun(tmp_path):
    """Run one round of a training that is private against everyone, and return the run's directory."""
    x, y = np.random.default_rng(0).random((40, 4), np.float32), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    run = tmp_path / "runs" / "run"
    go_on(*TURNS, f"dataset.path={tmp_path / 'a.npz'}", f"run.directory={run}", "run.stop_after_round=1")
    return run


def go_on(*words):
    with nothing_drawn():
        simulate(load_run(words))


def charged(run):
    return json.loads((run / "ledger.json").read_text())["charged_rounds"]


@pytest.mark.parametrize("stop", ["run.stop_after_round=2", "run.stop_after_round=null"])
def test_a_run_that_was_put_back_from_a_copy_is_not_resumed(begun, tmp_path, stop):
    """A run whose directory was replaced by an older copy is not resumed, even if the run had finished."""
    shutil.copytree(begun, tmp_path / "copy")
    go_on(f"run.resume={begun}", stop)
    last = charged(begun)
    shutil.rmtree(begun)
    shutil.copytree(tmp_path / "copy", begun)
    before = files_in(tmp_path)
    said = rf"is an older copy: its ledger holds 1 charges, and the run had {last} .* released again"
    with pytest.raises(RunError, match=said):
        go_on(f"run.resume={begun}")
    assert files_in(tmp_path) == before


def test_a_copy_elsewhere_is_not_resumed_and_a_run_that_was_moved_is(begun, tmp_path):
    elsewhere = tmp_path / "elsewhere" / "run"
    shutil.copytree(begun, elsewhere)
    with pytest.raises(RunError, match=r"which records how far it was charged, is missing: if the directory"):
        go_on(f"run.resume={elsewhere}")
    shutil.move(begun.parent / ".charged", elsewhere.parent)
    go_on(f"run.resume={elsewhere}")
    assert charged(elsewhere) == 4


def test_of_two_copies_that_are_resumed_at_once_one_goes_on(begun, monkeypatch):
    """Of two copies of a run that are resumed at the same time, only one goes on."""
    copy = begun.with_name("copy")
    shutil.copytree(begun, copy)
    held = RunDirectory.held

    def late(files):
        monkeypatch.setattr(RunDirectory, "held", held)
        go_on(f"run.resume={begun}", "run.stop_after_round=2")
        return held(files)

    monkeypatch.setattr(RunDirectory, "held", late)
    before = (copy / "ledger.json").read_bytes()
    with pytest.raises(RunError, match="another process has continued this run or a copy of it"):
        go_on(f"run.resume={copy}")
    assert (copy / "ledger.json").read_bytes() == before
    go_on(f"run.resume={begun}")
    assert charged(begun) == 4


def test_the_counts_are_their_owners_alone_and_one_that_is_damaged_is_named(begun):
    (mark,) = (begun.parent / ".charged").iterdir()
    assert (mark.parent.stat().st_mode & 0o777, mark.stat().st_mode & 0o777) == (0o700, 0o600)
    mark.write_text("many\n")
    with pytest.raises(RunError, match=rf"{mark} cannot be read .*: restore it"):
        go_on(f"run.resume={begun}")


def test_a_run_that_promises_nothing_keeps_no_count(tmp_path):
    x, y = np.random.default_rng(0).random((40, 4), np.float32), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    free = ["method=fedavg", "secagg=off", "dataset=npz", f"dataset.path={tmp_path / 'a.npz'}"]
    few = ["dataset.model=linear", "dataset.partition=iid", "dataset.num_clients=3", "run.num_rounds=1"]
    go_on(*free, *few, "privacy.sampling_rate=1", f"run.directory={tmp_path / 'runs' / 'run'}")
    assert not (tmp_path / "runs" / ".charged").exists()
