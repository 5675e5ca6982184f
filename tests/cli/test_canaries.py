"""``gdpfed audit --canaries``: its table, its files, its exit status."""

import json
from dataclasses import replace

import pytest

from conf.load import load
from gdpfed.cli import main
from gdpfed.simulation.in_process_fleet import simulate
from testing.broken_programs import broken
from testing.small_runs import nothing_drawn

SMALL = ["dataset.num_clients=60", "dataset.num_rounds=2", "privacy.sampling_rate=0.5", "privacy.delta=1e-3"]
ONE_GROUP = [*SMALL, "method=dp_fedavg", "privacy.accountant=rdp", "secagg=off"]


def test_what_is_stated_and_what_is_measured_stand_side_by_side(tmp_path, capsys):
    words = ["audit", "--canaries", *ONE_GROUP, "--runs", "1", "--output", str(tmp_path / "new" / "here")]
    assert main(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    for expected in ("dp_fedavg: 1 simulated runs of 2 rounds", "all sums", "server, K=1", "per client"):
        assert expected in out
    assert "Nothing above what is stated was measured." in out
    assert "it would not have found missing noise either: give more --runs" in out
    written = json.loads((tmp_path / "new" / "here" / "canaries.json").read_text())
    assert written["passed"]
    # After each round there is a figure against each view.
    assert {(each["rounds"], each["view"]) for each in written["figures"]} == {
        (rounds, view) for rounds in (1, 2) for view in ("sums", "server", "model")
    }
    assert (tmp_path / "new" / "here" / "canaries.png").read_bytes().startswith(b"\x89PNG")


def test_a_test_that_passes_says_what_it_would_have_found(capsys):
    """Noise of a part of the plan's is found where it is below what the line names, and less is not."""
    strong = [*ONE_GROUP, "dataset.num_clients=600", "privacy.budgets=[8]"]
    assert main(["audit", "--canaries", *strong, "--runs", "4", "--json"]) == 0
    below = json.loads(capsys.readouterr().out)["found_below"]
    assert 0.4 < below < 1
    with broken("half the noise"):
        words = ["audit", "--canaries", *strong, "--runs", "4"]
        assert main(words) == (1 if below > 0.5 else 0)


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
    assert main(["audit", "--canaries", str(run), "--runs", "1"]) == 0
    assert "1 simulated runs of 1 rounds" in capsys.readouterr().out
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
