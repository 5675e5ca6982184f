"""Tests of ``gdpfed run`` with Flower and Ray workers: it leaves no process and no file behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.cli.utils import filter_paths_for_publish
from safetensors.numpy import load_file

from conf.load import load, split, to_yaml
from gdpfed.cli import main
from gdpfed.errors import LaunchError
from gdpfed.launch.flower_run import Launch
from gdpfed.launch.home import FlowerHome
from gdpfed.methods import resolve
from gdpfed.runs.file_formats import MODEL_FILE
from testing.flower_traces import FlowerTraces
from testing.project import PROJECT
from testing.waiting import until

GDPFED = str(Path(sys.executable).with_name("gdpfed"))
SMALL = [
    "dataset.num_clients=9",
    "run.num_rounds=2",
    "privacy.sampling_rate=1",
    "privacy.delta=1e-3",
    "privacy.accountant=rdp",
    "simulation.workers=1",
]


def start(directory, *overrides, traces):
    """Start ``gdpfed run`` in a new process with an empty home directory."""
    said = {override.partition("=")[0] for override in overrides}
    small = [override for override in SMALL if override.partition("=")[0] not in said]
    return subprocess.Popen(
        [GDPFED, "run", *small, f"run.directory='{directory}'", *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=traces.home,
        env=traces.environment,
        start_new_session=True,
    )


@pytest.fixture
def traces(tmp_path):
    return FlowerTraces(tmp_path)


@pytest.fixture
def here(traces, monkeypatch):
    """Return the main function of ``gdpfed``, for runs in this process, which has all modules loaded."""
    monkeypatch.setenv("HOME", str(traces.home))
    monkeypatch.setattr("gdpfed.launch.home.HOMES", traces.homes)
    return main


def rounds_of(directory):
    return [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]


def test_a_run_end_to_end_interrupted_and_resumed(tmp_path, traces, here, capsys):
    """A run that is interrupted leaves no process behind, and a resumed copy of it reaches the last round."""
    directory = tmp_path / "a run"
    process = start(directory, "run.num_rounds=3", traces=traces)
    record = directory / "rounds.jsonl"
    begun = lambda: record.exists() and "\n" in record.read_text()  # noqa: E731
    until(lambda: begun() or process.poll() is not None, 200)
    assert process.poll() is None, process.communicate()
    assert traces.running()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().endswith("gdpfed: interrupted")
    assert "promise  client-level DP" in out
    assert traces.left() == []

    copy = tmp_path / "a copy"
    shutil.copytree(directory, copy)
    done = len(rounds_of(copy))
    resumed = here(["run", f"run.resume='{copy}'"])
    out, err = capsys.readouterr()
    assert resumed == 0, out + err
    assert f"The run's files are in {copy}" in out
    told = ("promise  client-level DP", f"round {done + 1}/3  accuracy", "round 3/3  accuracy")
    assert sorted(map(out.index, told)) == [out.index(words) for words in told]
    assert re.search(r"round 3/3  accuracy \d+\.\d %  epsilon [\d.]+/1 [\d.]+/3 [\d.]+/6", out)
    rounds = rounds_of(copy)
    assert [line["round"] for line in rounds] == [1, 2, 3]
    # The round that was interrupted may have been charged already: it is not repeated then.
    assert all(sum(line["survivors"]) > 0 for line in rounds if line["round"] != done + 1)
    assert {"advertise", "share", "mask", "unmask"} <= rounds[0]["seconds"].keys()
    assert load_file(copy / MODEL_FILE)["linear.weight"].shape == (10, 64)
    assert "refused" not in (copy / "flower.log").read_text()
    assert traces.left() == []


def test_a_run_that_is_killed_leaves_no_process(tmp_path, traces):
    process = start(tmp_path / "run", "run.num_rounds=60", traces=traces)
    record = tmp_path / "run" / "rounds.jsonl"
    until(lambda: (record.exists() and record.read_text()) or process.poll() is not None, 200)
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    until(lambda: not traces.running(), 100)


def test_a_run_that_fails_in_flower_says_why_in_one_line(tmp_path, traces, here, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(to_yaml(resolve(load(SMALL))))
    assert here(["run", f"run.resume='{tmp_path / 'run'}'"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"gdpfed: run.resume={tmp_path / 'run'} has no checkpoint.safetensors"), out
    assert err.count("\n") == 1
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.yaml", "flower.log"}
    log = (tmp_path / "run" / "flower.log").read_text()
    assert log.count("has no checkpoint.safetensors") == 1
    assert "Traceback" not in log
    assert traces.left() == []


def test_an_occupied_directory_is_refused_before_flower_starts(tmp_path, monkeypatch, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    monkeypatch.setattr(Launch, "__enter__", lambda launch: pytest.fail("Flower was started"))
    assert main(["run", *SMALL, f"run.directory='{tmp_path / 'run'}'"]) == 1
    assert capsys.readouterr().err == (
        f"gdpfed: run.directory={tmp_path / 'run'} is not empty: "
        "name another one, or continue with run.resume [run]\n"
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


def test_files_that_settings_name_are_found_from_where_the_run_was_started(tmp_path, monkeypatch):
    """Paths in the settings are resolved from the directory in which the user starts the run."""
    monkeypatch.chdir(tmp_path)
    words = ["dataset.test_path=t.npz", "dataset.columns='c d.yaml'", "run.mlflow=http://mlflow"]
    launch = Launch.training(
        words, num_clients=1, directory=tmp_path / "run", resuming=False, files={"dataset.path": "x.npz"}
    )
    config = load(split(str(launch.run_config["overrides"])))
    assert (config.dataset.path, config.dataset.test_path, config.dataset.columns) == (
        f"{tmp_path}/x.npz",
        f"{tmp_path}/t.npz",
        f"{tmp_path}/c d.yaml",
    )
    assert config.run.mlflow == "http://mlflow"


def test_an_environment_below_the_checkout_is_no_part_of_the_app():
    """Flower does not add a Python environment inside the checkout to the app."""
    environment = "benchmarks/simulation/pfl_environment/.venv/lib/python3.11/site-packages/a/b/c/deep.py"
    files = {name: PROJECT / name for name in (".gitignore", "pyproject.toml", "client_app/app.py")}
    assert set(filter_paths_for_publish(files | {environment: b""})) == set(files)


def test_where_flower_is_not_installed_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with (
        FlowerHome() as home,
        pytest.raises(LaunchError, match="flower-superlink is not there: install Flower"),
    ):
        home.spawn(["flower-superlink"], log="superlink.log")
