"""Tests of the log of rounds (half-written lines are left out, damaged ones named) and of progress lines."""

from dataclasses import replace

import pytest
from rich.console import Console

from gdpfed.report.plots import accuracy_curve, budget_curve
from gdpfed.report.progress import RunProgress
from gdpfed.runs.file_formats import FORMAT_VERSION
from gdpfed.runs.round_log import WHOLE_ROUND, RoundLogEntry, finite, read_rounds

RECORD = RoundLogEntry(
    round=1,
    accuracy=0.5,
    loss=1.25,
    cohort_sizes=[3, 4],
    survivors=[3, 0],
    failures={"group 1": "too few"},
    spent_epsilon=[0.25, None],
    epsilon_against_server=[1.5, None],
    seconds={"total": 2.0},
)


def test_lines_read_back_and_a_half_written_one_is_left_out(tmp_path):
    assert read_rounds(tmp_path) == []
    line = RECORD.to_json() + "\n"
    (tmp_path / "rounds.jsonl").write_text(line + line[:20])
    assert read_rounds(tmp_path) == [RECORD]


@pytest.mark.parametrize("damage", [f'{{"version": {FORMAT_VERSION}}}\n', "nonsense\n", "[1]\n"])
def test_a_damaged_line_is_named(tmp_path, damage):
    (tmp_path / "rounds.jsonl").write_text(RECORD.to_json() + "\n" + damage)
    with pytest.raises(ValueError, match="rounds.jsonl line 2 is not a record of a round"):
        read_rounds(tmp_path)


def test_infinity_becomes_null():
    assert finite([1.0, float("inf"), None]) == [1.0, None, None]


@pytest.mark.parametrize("budgets", [[1.0, None], [None, None]])
def test_pictures_are_written(tmp_path, budgets):
    accuracy_curve([RECORD], "gdpfed_plus", "title", tmp_path / "a.png", 0.3)
    budget_curve([RECORD], budgets, "title", tmp_path / "b.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png"))


def test_progress_off_a_terminal_is_one_line_a_round_and_no_long_silence(capsys, monkeypatch):
    now = 100.0
    monkeypatch.setattr("gdpfed.report.progress.monotonic", lambda: now)
    with RunProgress(
        Console(width=100), 2, [1.0, None], waiting="training ...", against="everyone"
    ) as progress:
        progress.update([])
        now = 131.0
        progress.update([])
        now = 132.0
        progress.update([])
        progress.update([RECORD])
        progress.update([RECORD])
    assert capsys.readouterr().out == (
        "training ...\nround 1/2 is under way for 31 s\n"
        "round 1/2  accuracy 50.0 %  epsilon against everyone 0.25/1\n"
        "round 1, group 1: no sum, rounds.jsonl says why\n"
    )


def test_off_a_terminal_every_tenth_round_of_a_long_run_is_told(capsys):
    with RunProgress(Console(width=100), 25, [1.0, None], waiting="training ...", against="") as progress:
        progress.update([replace(RECORD, round=number, failures={}) for number in range(1, 26)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["1/25", "10/25", "20/25", "25/25"]


def test_a_run_that_goes_on_tells_of_no_round_again(capsys):
    rounds = [replace(RECORD, round=number, failures={}) for number in (1, 2, 3)]
    rounds[-1] = replace(rounds[-1], failures={WHOLE_ROUND: "nobody came"})
    with RunProgress(Console(width=100), 3, [1.0, None], waiting="training ...", against="") as progress:
        progress.go_on_after([])
        progress.go_on_after(rounds[:2])
        progress.update(rounds)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "round 2/3 was the last one recorded: the run goes on after it",
        "round 3/3  accuracy 50.0 %  epsilon 0.25/1",
        "round 3: no sum, rounds.jsonl says why",
    ]
