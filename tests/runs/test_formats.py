"""Tests of the formats of runs: a directory of another format is refused, and remains unchanged."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load, save

from conf.load import load as load_config
from gdpfed.audit import run_files
from gdpfed.audit.run_audit import audit_run
from gdpfed.cli import main
from gdpfed.errors import AuditError, RunError
from gdpfed.json_files import read_json
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.file_formats import FORMAT_VERSION
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from testing.small_runs import files_in, run

VERSIONED = ("plan.json", "assignment.json", "rounds.jsonl", "checkpoint.safetensors")
OTHERS = (None, 0, FORMAT_VERSION + 1)
"""None of them is read: no version, an earlier one and a later one."""


@pytest.fixture(scope="module")
def paused(tmp_path_factory):
    """Simulate a run of three rounds that pauses after the second, and return its directory."""
    directory = tmp_path_factory.mktemp("formats") / "run"
    simulate(config(f"run.directory={directory}", "run.stop_after_round=2"))
    return directory


def config(*overrides):
    return load_config(
        ["dataset.num_clients=12", "method=fedavg", "secagg=off", "run.num_rounds=3", *overrides]
    )


def test_the_audit_reads_the_format_that_runs_have():
    assert run_files.FORMAT_VERSION == FORMAT_VERSION


@pytest.mark.parametrize("command", ["simulate", "run", "audit", "report"])
def test_a_run_of_another_format_is_refused_and_stays_as_it_is(tmp_path, paused, capsys, command):
    directory = of_another_format(tmp_path, paused)
    before = files_in(directory)
    assert (
        main([command, f"run.resume={directory}" if command in ("simulate", "run") else str(directory)]) == 1
    )
    error = capsys.readouterr().err
    assert f"{directory / 'plan.json'} has format version {FORMAT_VERSION + 1}, and this " in error
    assert f"reads version {FORMAT_VERSION}: use the gdpfed that wrote the run" in error
    assert error.count("\n") == 1
    assert files_in(directory) == before


def test_flower_is_asked_nothing_for_a_run_of_another_format(tmp_path, paused):
    directory = of_another_format(tmp_path, paused)
    before = files_in(tmp_path)
    with pytest.raises(RunError, match=r"plan.json has format version"):
        run(directory, (), resume=True)
    assert files_in(tmp_path) == before


def of_another_format(parent, paused):
    directory = parent / "run"
    shutil.copytree(paused, directory)
    relabel(directory / "plan.json", FORMAT_VERSION + 1)
    return directory


def test_a_run_is_its_owners_alone_to_read(paused):
    """Only the owner of a run may read its directory and its files."""
    assert paused.stat().st_mode & 0o777 == 0o700
    written = {path.name: path.stat().st_mode & 0o777 for path in paused.iterdir() if path.is_file()}
    assert {"rounds.jsonl", "ledger.json", "config.yaml"} <= written.keys()
    assert written == dict.fromkeys(written, 0o600)


def test_every_file_names_the_format(paused):
    for name in ("plan.json", "assignment.json"):
        assert json.loads((paused / name).read_text())["version"] == FORMAT_VERSION
    for line in (paused / "rounds.jsonl").read_text().splitlines():
        assert json.loads(line)["version"] == FORMAT_VERSION
    data = (paused / "checkpoint.safetensors").read_bytes()
    assert header(data)["version"] == str(FORMAT_VERSION)


def header(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length])["__metadata__"]


def relabel(path, version):
    """Change the format version that one file of a run names, or remove it."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        path.write_bytes(
            save(load(data), relabelled(header(data), None if version is None else str(version)))
        )
    else:
        text = data.decode()
        documents = text.splitlines() if path.suffix == ".jsonl" else [text]
        changed = [json.dumps(relabelled(json.loads(each), version)) for each in documents]
        path.write_text("".join(f"{each}\n" for each in changed))


def relabelled(values, version):
    kept = {key: value for key, value in values.items() if key != "version"}
    return kept if version is None else {"version": version, **kept}


@pytest.mark.parametrize("name", VERSIONED)
@pytest.mark.parametrize("version", OTHERS)
def test_one_file_of_another_format_is_refused(tmp_path, paused, name, version):
    directory = tmp_path / "run"
    shutil.copytree(paused, directory)
    relabel(directory / name, version)
    before = files_in(directory)
    named = "no format version" if version is None else f"format version {version}"
    words = rf"{name} has {named}, and this \w+ reads version {FORMAT_VERSION}: "
    with pytest.raises(RunError, match=words) as raised:
        simulate(config(f"run.resume={directory}"))
    assert "\n" not in str(raised.value)
    if name != "checkpoint.safetensors":
        with pytest.raises(AuditError, match=words):
            audit_run(directory)
    assert files_in(directory) == before


def test_a_checkpoint_with_one_other_bit_is_refused(paused, tmp_path):
    data = bytearray((paused / "checkpoint.safetensors").read_bytes())
    data[-3] ^= 1
    (tmp_path / "checkpoint.safetensors").write_bytes(data)
    with pytest.raises(RunError, match="is damaged .it is not what was written: its digest differs"):
        Checkpoint.load(tmp_path)


def test_a_checkpoint_reads_back(paused):
    checkpoint = Checkpoint.load(paused)
    assert checkpoint.completed_rounds == len(read_rounds(paused)) == 2
    assert checkpoint.theta.dtype == np.float32


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 1, "version": 2}', "the key 'version' is there twice"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "the key 'b' is there twice"),
        ('{"epsilon": NaN}', "NaN is not a number of JSON"),
        ("[-Infinity]", "-Infinity is not a number of JSON"),
        ('{"epsilon": 1e999}', "1e999 is too large for a number"),
        ("[\N{ARABIC-INDIC DIGIT ONE}]", "Expecting value"),
        ("[" * 100_000, "nested too deep"),
        ("", "Expecting value"),
    ],
)
def test_json_that_can_be_read_in_two_ways_is_refused(text, said):
    with pytest.raises(ValueError, match=said) as error:
        read_json(text)
    assert "\n" not in str(error.value)
