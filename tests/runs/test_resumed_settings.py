"""Tests of resumed runs: they keep their first settings, and settings that contradict them are refused."""

from dataclasses import replace

import pytest
import yaml

from conf.load import load, to_yaml
from gdpfed.errors import ConfigError, RunError
from gdpfed.runs.resume import load_run

BEGUN = (
    "dataset=svhn",
    "method=pfa",
    "method.history=7",
    "secagg=off",
    "dataset.num_rounds=9",
    "privacy.delta=1e-5",
    "privacy.budgets=[1,2]",
    "run.seed=3",
    "run.device=cpu",
    "run.timeout_seconds=5",
    "run.stop_after_round=2",
    "simulation.workers=2",
)


@pytest.fixture
def begun(tmp_path):
    """Write the configuration of a run into a directory, and return both."""
    config = load([*BEGUN, f"run.directory={tmp_path}"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    return tmp_path, config


def resumed(directory, *overrides):
    return load_run([f"run.resume={directory}", *overrides])


def test_every_setting_is_read_from_the_run(begun):
    directory, config = begun
    goes_on = replace(config.run, directory=None, stop_after_round=None, resume=str(directory))
    assert resumed(directory) == replace(config, run=goes_on)
    assert resumed(directory, *BEGUN[:-2]) == replace(config, run=goes_on)


def test_how_it_is_carried_out_may_be_given_anew(begun):
    directory, config = begun
    given = resumed(directory, "run.device=cuda", "simulation.workers=1", "run.stop_after_round=4")
    assert (given.run.device, given.simulation.workers, given.run.stop_after_round) == ("cuda", 1, 4)
    assert given.run.timeout_seconds == config.run.timeout_seconds == 5


def test_a_path_is_the_same_by_whatever_way_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(to_yaml(load(["dataset=npz", f"dataset.path={tmp_path}/mine.npz"])))
    assert resumed(tmp_path, "dataset.path=mine.npz").dataset.name == "npz"
    with pytest.raises(RunError, match="has dataset.path="):
        resumed(tmp_path, "dataset.path=other.npz")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.seed=4", "run.seed=3, not 4: leave run.seed out to go on with it, or start a new run"),
        ("dataset=digits", "dataset.name=svhn, not digits: leave dataset.name out"),
        ("method=gdpfed", "method.name=pfa, not gdpfed: leave"),
        ("secagg=pairwise", "secagg.mode=off, not curious: leave"),
        ("dataset.num_rounds=10", "dataset.num_rounds=9, not 10: leave"),
        ("privacy.budgets=[1,3]", r"privacy.budgets=\[1.0, 2.0\], not \[1.0, 3.0\]: leave"),
        ("simulation.precision=bf16", "simulation.precision=float32, not bf16: leave"),
    ],
)
def test_a_contradiction_is_one_line_with_both_values(begun, override, words):
    with pytest.raises(RunError, match=f"^run.resume={begun[0]} has {words}[^\n]*$"):
        resumed(begun[0], override)


@pytest.mark.parametrize("value", ["'${oc.env:SECRET}'", "['x', {a: '${oc.env:SECRET}'}]"])
@pytest.mark.parametrize("key", ["name", "path"])
def test_no_variable_of_whoever_resumes_a_run_is_read_by_its_files(begun, monkeypatch, key, value):
    monkeypatch.setenv("SECRET", "of the shell")
    directory, _ = begun
    saved = yaml.safe_load((directory / "config.yaml").read_text())
    saved["dataset"][key] = yaml.safe_load(value)
    (directory / "config.yaml").write_text(yaml.safe_dump(saved))
    with pytest.raises(ConfigError, match=rf"the run's dataset.{key} is .*oc.env:SECRET.*restore") as raised:
        resumed(directory)
    assert "of the shell" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_no_whole_run_is_one_line(begun):
    directory, _ = begun
    text = (directory / "config.yaml").read_text()
    for broken, words in (
        (text.replace("  history: 7\n", ""), "has no method.history: restore it from a copy, or resume"),
        (
            text.replace("  history: 7\n", "  history: 7\n  future: 1\n"),
            "setting 'method.future' of the run is not known here",
        ),
        (text.partition("secagg:")[0], "config.yaml is not a complete configuration: restore it from a copy"),
        ("a: [", "is not a run, its config.yaml cannot be read"),
    ):
        (directory / "config.yaml").write_text(broken)
        with pytest.raises((RunError, ConfigError), match=words) as raised:
            resumed(directory)
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="is not a run, it holds no config.yaml: name the directory of one"):
        resumed(directory / "nowhere")
    (directory / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="leave out run.directory"):
        resumed(directory, "run.directory=x")
