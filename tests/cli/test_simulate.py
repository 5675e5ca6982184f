"""``gdpfed simulate``: what it prints, what it leaves, and how it stops."""

import pytest

from gdpfed.cli import main
from gdpfed.rounds.loop import RoundLoop
from gdpfed.runs.records import read_rounds

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
    assert "dp_fedavg: client-level DP, 3 rounds" in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("round")] == ["1/3", "2/3", "3/3"]
    assert f"The run's files are in {tmp_path}/run" in out
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_an_interrupt_leaves_one_line_and_a_run_that_goes_on(tmp_path, capsys, monkeypatch):
    one_round = RoundLoop._round

    def interrupted(self, index, *arguments):
        if index == 1:
            raise KeyboardInterrupt
        return one_round(self, index, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RoundLoop, "_round", interrupted)
        assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 130
    err = capsys.readouterr().err
    assert err == f"gdpfed: interrupted; continue with run.resume={tmp_path}/run\n"
    assert main(["simulate", *SMALL, f"run.resume={tmp_path}/run"]) == 0
    assert [record.round for record in read_rounds(tmp_path / "run")] == [1, 2, 3]


def test_an_interrupt_before_the_first_file_has_nothing_to_continue(tmp_path, capsys, monkeypatch):
    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("gdpfed.rounds.run.PreparedRun.open", interrupted)
    assert main(["simulate", *SMALL, f"run.directory={tmp_path}/run"]) == 130
    assert capsys.readouterr().err == "gdpfed: interrupted\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "status", "words"),
    [
        ("dataset.partition=natural", 2, "dataset.partition=natural"),
        ("run.directory={occupied}", 1, "is not empty"),
    ],
)
def test_what_cannot_run_is_one_line(tmp_path, capsys, override, status, words):
    (tmp_path / "file").touch()
    assert main(["simulate", *SMALL, override.format(occupied=tmp_path)]) == status
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
