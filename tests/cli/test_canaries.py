"""Tests of ``gdpfed audit --canaries``: its table, its files and its exit status."""

import json
import re
from dataclasses import replace

import pytest

from conf.load import load
from gdpfed.cli import main
from gdpfed.simulation.in_process_fleet import simulate
from testing.broken_programs import broken
from testing.planted_faults import PLANTED_FAULTS, planted
from testing.small_runs import nothing_drawn

SMALL = ["dataset.num_clients=60", "dataset.num_rounds=2", "privacy.sampling_rate=0.5", "privacy.delta=1e-3"]
ONE_GROUP = [*SMALL, "method=dp_fedavg", "privacy.accountant=rdp", "secagg=off"]


def test_what_is_stated_and_what_is_measured_stand_side_by_side(tmp_path, capsys):
    surely = ("--confidence", "0.999999")  # A sound program is blamed in few of these tests.
    words = ["audit", "--canaries", *ONE_GROUP, *surely, "--runs", "2"]
    words += ["--output", str(tmp_path / "new" / "here")]
    assert main(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    for expected in ("dp_fedavg: 2 simulated runs of 2 rounds", "all sums", "server, K=1", "per client"):
        assert expected in out
    assert "Nothing above what is stated was measured, and nothing unlike the plan was seen." in out
    # A line for each kind of fault, with what would have been found of it.
    for looked_at in ("noise", "noise over rounds", "noise twice", "contributions", "samples"):
        assert re.search(rf"│ ?{looked_at} ?│", out)
    assert "would find: the smallest fault of this kind" in out
    written = json.loads((tmp_path / "new" / "here" / "canaries.json").read_text())
    assert (tmp_path / "new" / "here" / "canaries.json").stat().st_mode & 0o777 == 0o600
    assert written["passed"]
    assert written["complete"]
    # After each round there is a figure against each view.
    assert {(each["rounds"], each["view"]) for each in written["figures"]} == {
        (rounds, view) for rounds in (1, 2) for view in ("sums", "server", "model")
    }
    assert (tmp_path / "new" / "here" / "canaries.png").read_bytes().startswith(b"\x89PNG")


def test_a_program_that_does_otherwise_than_its_plan_is_red_where_no_canary_tells(capsys):
    """The audit finds that a tenth of the noise is missing, though no measured epsilon is above its bound."""
    (noise,) = [each for each in PLANTED_FAULTS if each.name == "noise x 0.9"]
    words = ["audit", "--canaries", *ONE_GROUP, "dataset.model=mlp", "--runs", "2", "--confidence", "0.99999"]
    with planted(noise, masked=False):
        assert main([*words, "--json"]) == 1
        printed = json.loads(capsys.readouterr().out)
        assert all(each["held"] for each in printed["figures"])
        assert "noise" in {each["looked_at"] for each in printed["checks"] if each["wrong"]}
        assert main(words) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "wrong, noise of group 0: less than is planned" in out
    assert "The program does NOT do what its plan says." in out


def test_what_was_not_computed_is_a_line_and_an_exit_status_of_its_own(capsys):
    words = ["audit", "--canaries", *ONE_GROUP, "--runs", "1", "--kind", "random", "--confidence", "0.99999"]
    assert main(words) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "not computed, noise of group 0: other clients train, so a sum is more than noise." in out
    assert "It takes --kind dirac, in which nobody trains." in out
    assert "NOT everything was looked at" in out


def test_a_broken_program_is_red(capsys):
    with broken("no noise"):
        assert main(["audit", "--canaries", *ONE_GROUP, "--runs", "4", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert not printed["passed"]
    assert not all(each["held"] for each in printed["figures"])


def test_the_canaries_of_a_run_that_is_there(tmp_path, capsys):
    config = load([*ONE_GROUP, "dataset.num_rounds=1"])
    with nothing_drawn():
        run = simulate(replace(config, run=replace(config.run, directory=str(tmp_path / "run"))))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["audit", "--canaries", str(run), "--runs", "2"]) == 0
    assert "2 simulated runs of 1 round," in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name one run directory"),
        (["a", "b"], "name one run directory"),
        (["--canaries", "method=fedavg"], "promises no privacy"),
        (["--canaries", "--runs", "0"], "measure nothing"),
        (["--canaries", "--confidence", "2"], "between 0.5 and 1"),
        (["--canaries", "--output", "/proc"], "--output /proc cannot be written"),
    ],
)
def test_what_cannot_be_audited_is_refused(words, reason, capsys):
    assert main(["audit", *words]) == 2
    assert reason in capsys.readouterr().err
