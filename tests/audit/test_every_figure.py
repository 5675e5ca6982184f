"""Tests of the audit, which must find changed values in plan, ledger and round log, and changed files."""

import copy
import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from gdpfed.audit.run_audit import audit_run
from gdpfed.audit.run_files import RunFiles
from gdpfed.cli import main
from gdpfed.errors import AuditError
from gdpfed.runs.file_formats import CHECKPOINT_FILE, MODEL_FILE
from gdpfed.yaml_files import read_yaml
from testing.small_runs import run

CLIENTS = [
    *("method=dp_fedavg", "privacy.accountant=pld", "privacy.budgets=[2]", "run.num_rounds=2"),
    "privacy.sampling_rate=1",
]
TURNS = [
    *("method=dp_fedavg", "privacy.accountant=pld", "privacy.budgets=[2]", "run.num_rounds=3"),
    *("privacy.sampling_rate=0.67", "privacy.against=everyone", "privacy.noise_taps=0"),
]
RECORDS = ["method=dp_sum", "privacy=record_level", "privacy.accountant=pld", "privacy.batch_rate=1"]
ADAPTIVE = [*CLIENTS, "privacy.clipping=adaptive", "privacy.clipping_noise=0.3"]
KINDS = {
    "clients": CLIENTS,
    "records": [*RECORDS, "privacy.budgets=[8]", "run.num_rounds=2"],
    "adaptive": ADAPTIVE,
    "turns": TURNS,
}
# What costs no privacy, or is the same whatever it says, in a plan of one group.
FREE = ("weighting", "one_sum")
# Words that may stand in each other's place, so that a file with another of them can still be read.
WORDS = (
    ("zero_out", "replace_one"),
    ("poisson", "fixed_size", "allocation", "scheduled"),
    ("gaussian", "discrete_gaussian"),
    ("pld", "rdp"),
    ("fine", "whole", "auto"),
    ("client", "record", "person"),
    ("sampled_gaussian", "gaussian", "dp_sgd_steps", "gaussian_mixture", "correlated_gaussian"),
    ("sampled_sums", "record_sums", "scheduled_sums", "allocated_sums"),
    ("everyone", "outsiders"),
    ("fixed", "adaptive"),
    ("curious", "active", "off"),
    ("sgd", "adam"),
    ("dp_fedavg", "gdpfed_star", "idp_fedavg_scale", "fedavg"),
    ("update", "gradient_sum", "average_gradient"),
)
ALSO_FREE = {
    "records": ("groups/0/records/steps_allowed",),
    "clients": (),
    "adaptive": (),
    "turns": (),
}


@pytest.fixture(autouse=True, scope="module")
def settings_read_once():
    """Cache settings files, since reading them again takes half of the time of a thousand audits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gdpfed.audit.run_files.read_yaml", cache(read_yaml))
        yield


@pytest.fixture(scope="module", params=sorted(KINDS))
def honest(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("figures") / request.param
    run(directory, KINDS[request.param])
    assert audit_run(directory).passed
    return directory


def leaves(node, path=()):
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, (*path, key))
    else:
        yield path, node


def others(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 0]
    if isinstance(value, float):
        return [value * 0.5, value * 1.5]
    if value is None:
        return [1.0]
    return [f"{value}x", *(word for words in WORDS if value in words for word in words)]


def edits(data):
    """Yield several changes of each value in `data`, one at a time: path, new value, and changed copy."""
    for path, value in leaves(data):
        for other in (each for each in others(value) if each != value):
            edited = copy.deepcopy(data)
            node = edited
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = other
            yield "/".join(map(str, path)), other, edited


def as_unfinished(honest, directory):
    """Copy a run as if it were unfinished: no file hashes, model or model card, but an empty checkpoint."""
    shutil.copytree(honest, directory)
    for name in ("seal.json", MODEL_FILE, "model_card.md"):
        (directory / name).unlink()
    (directory / CHECKPOINT_FILE).write_bytes(b"")
    return directory


def holds(directory):
    try:
        return audit_run(directory).passed
    except AuditError:
        return False


def test_every_figure_of_plan_and_ledger_is_computed_again(tmp_path, honest):
    """An audit finds each changed value in plan or ledger, except those in FREE, even if hashes match it."""
    directory = as_unfinished(honest, tmp_path / "run")
    assert audit_run(directory).passed
    believed, free = [], (*FREE, *ALSO_FREE[honest.name])
    for name in ("plan.json", "ledger.json"):
        texts = {each: (directory / each).read_text() for each in ("plan.json", "ledger.json")}
        for where, other, edited in edits(json.loads(texts[name])):
            (directory / name).write_text(json.dumps(edited))
            if name == "plan.json":
                ledger = json.loads(texts["ledger.json"])
                try:
                    ledger["plan"] = RunFiles.read(directory).fingerprint()
                except AuditError:
                    continue
                (directory / "ledger.json").write_text(json.dumps(ledger))
            if holds(directory) and not where.startswith(free):
                believed.append((name, where, other))
        for each, text in texts.items():
            (directory / each).write_text(text)
    assert not believed, believed
    assert audit_run(directory).passed


@pytest.mark.parametrize("change", ["half", "more", "nothing"])
def test_what_a_round_cost_is_computed_again(tmp_path, honest, change):
    directory = as_unfinished(honest, tmp_path / "run")
    path = directory / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    factor = {"half": 0.5, "more": 1.5, "nothing": 0.0}[change]
    for key in ("spent_epsilon", "noise_stddevs", "epsilon_against_server"):
        edited = copy.deepcopy(lines)
        edited[-1][key] = [factor * each for each in lines[-1][key]]
        path.write_text("".join(json.dumps(line) + "\n" for line in edited))
        assert not holds(directory), key


def test_every_file_is_the_one_that_the_run_left(tmp_path, honest, capsys):
    directory = Path(shutil.copytree(honest, tmp_path / "run"))
    assert main(["audit", str(directory)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"seal.json {audit_run(directory).seal}" in said
    sealed = json.loads((directory / "seal.json").read_text())["sha256"]
    assert {MODEL_FILE, "model_card.md", "config.yaml", "rounds.jsonl", "plan.json"} <= sealed.keys()
    for name in sealed:
        path = directory / name
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b" \n")
        assert any(
            f"{name} is not the file that the run wrote" in each for each in audit_run(directory).findings
        )
        path.write_bytes(data)
    (directory / "seal.json").unlink()
    missing = ("seal.json is missing, with the hashes that a run leaves when it ends",)
    assert audit_run(directory).findings == missing
    (directory / MODEL_FILE).unlink()
    assert audit_run(directory).findings == missing


def test_a_run_that_pauses_and_goes_on_is_sealed_anew(tmp_path):
    run(tmp_path / "run", [*CLIENTS, "run.stop_after_round=1"])
    first = audit_run(tmp_path / "run")
    assert first.passed
    run(tmp_path / "run", [], resume=True)
    second = audit_run(tmp_path / "run")
    assert second.passed
    assert None not in (first.seal, second.seal)
    assert first.seal != second.seal
