"""Tests of `gdpfed status`: it shows a run's progress from files, and nothing that tells who was sampled."""

import json
import os
import time
from dataclasses import replace

import pytest

from conf.load import load
from gdpfed.cli import main
from gdpfed.report.finished_run import cohorts_shown, read_plan, read_whole_settings
from gdpfed.report.run_status import COMPLETE, GOES_ON, IDLE, PAUSED, RunStatus
from gdpfed.runs.directory import RunDirectory
from gdpfed.runs.round_log import RoundLogEntry, read_rounds
from testing.written_runs import append_record, begin_run, finish_run

SECRET = ("privacy.accountant=rdp", "privacy.against=outsiders", "privacy.sampling_rate=0.6")
EVERYBODY = ("privacy.accountant=rdp", "privacy.against=outsiders", "privacy.sampling_rate=1")


def config_of(directory, overrides=SECRET):
    return load([*overrides, "privacy.budgets=[1,3]", "run.num_rounds=4", f"run.directory={directory}"])


def begun(directory, overrides=SECRET, *, rounds=2):
    """Write a run of some rounds that is a minute old, and whose last round lacks one of its sums."""
    config = config_of(directory, overrides)
    begin_run(config)
    for number in range(rounds):
        append_record(config, 0.25 * (number + 1))
    path = directory / "rounds.jsonl"
    if rounds:
        *before, last = read_rounds(directory)
        last = replace(last, failures={"group 1": "a cohort of 2"}, survivors=[5, 0], reachable=[9, 8])
        rewrite(path, [*before, last])
    then = int(time.time()) - 60
    for file in directory.iterdir():
        os.utime(file, (then, then))
    return config


def rewrite(path, records: list[RoundLogEntry]):
    path.write_text("".join(f"{record.to_json()}\n" for record in records))


def test_a_run_that_goes_on_is_read_from_its_files(tmp_path):
    begun(tmp_path / "run", EVERYBODY)
    status = RunStatus.read(tmp_path / "run")
    assert (status.state, status.rounds, status.num_rounds, status.figure) == (
        GOES_ON,
        2,
        4,
        ("accuracy", 0.5),
    )
    assert [(each.budget, each.spent, each.left) for each in status.groups] == [
        (1.0, 0.5, 0.5),
        (3.0, 1.0, 2.0),
    ]
    assert (status.failed, status.without_a_sum, status.against) == (1, 0, "outsiders")
    shown = status.cohorts
    assert shown is not None
    assert (shown.asked, shown.survivors, shown.present, shown.seconds) == ((5, 5), (5, 0), (9, 8), 2.0)
    assert (shown.seconds_left, shown.reasons) == (4.0, ((2, "group 1", "a cohort of 2"),))
    assert 60 <= status.to_dict()["seconds_since_last_round"] < 120


@pytest.mark.parametrize("rounds", [0, 2])
def test_it_is_one_screen_of_80_columns(tmp_path, capsys, monkeypatch, rounds):
    monkeypatch.setenv("COLUMNS", "80")
    begun(tmp_path / "run", EVERYBODY, rounds=rounds)
    assert main(["status", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 24
    first = "round 2 of 4, accuracy 50.0 %; it ended 1 min" if rounds else "no round of 4 yet; it began 1 min"
    assert first in out
    assert IDLE in out
    with RunDirectory(tmp_path / "run").held():
        assert main(["status", str(tmp_path / "run")]) == 0
    assert IDLE not in capsys.readouterr().out
    assert ("in reach 9+8, asked 5+5, in the sums 5+0; about 4 s left" in out) == bool(rounds)


def test_nothing_that_is_shown_depends_on_a_secret_draw(tmp_path, capsys):
    """`gdpfed status` shows the same for two runs that differ only in who was drawn."""
    shown = []
    for size, folder in ((5, tmp_path / "few" / "run"), (50, tmp_path / "many" / "run")):
        begun(folder)
        records = [
            replace(
                record,
                cohort_sizes=[size, size],
                survivors=[size, 0 if record.failures else size],
                reachable=[size + 1, size],
                failures=dict.fromkeys(record.failures, f"a cohort of {size}"),
                epsilon_against_server=[size / 100, None],
                seconds={"total": size / 10},
            )
            for record in read_rounds(folder)
        ]
        then = (folder / "rounds.jsonl").stat().st_mtime
        rewrite(folder / "rounds.jsonl", records)
        os.utime(folder / "rounds.jsonl", (then, then))
        status = RunStatus.read(folder)
        as_json = status.to_dict() | {"run": "", "seconds_since_last_round": 0}
        assert main(["status", str(folder)]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "it ended" not in line]
        shown.append((as_json, lines))
    assert shown[0] == shown[1]
    assert shown[0][0]["cohorts"] is None


def test_what_rounding_leaves_of_a_budget_is_shown_as_none(tmp_path, capsys):
    begun(tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    *before, last = read_rounds(tmp_path / "run")
    rewrite(path, [*before, replace(last, spent_epsilon=[1.0 - 1e-9, 3.0])])
    assert main(["status", str(tmp_path / "run")]) == 0
    assert "e-" not in capsys.readouterr().out.split("budgets")[1].split("epsilon")[0]


def test_cohorts_are_shown_where_the_run_has_shown_them(tmp_path):
    for name, words, shows in (
        ("secret", SECRET, False),
        ("everybody", EVERYBODY, True),
        ("shown", (*SECRET, "run.show_cohorts=true"), True),
        ("plain", ("method=fedavg",), True),
    ):
        begun(tmp_path / name, words)
        folder = tmp_path / name
        assert cohorts_shown(read_plan(folder), read_whole_settings(folder)) is shows
        assert (RunStatus.read(folder).cohorts is not None) is shows


def test_watching_ends_with_the_run(tmp_path, capsys, monkeypatch):
    config, waited = begun(tmp_path / "run"), []

    def sleep(seconds):
        waited.append(seconds)
        append_record(config, 0.75)
        if len(waited) == 2:
            finish_run(config)

    monkeypatch.setattr("gdpfed.cli.status_command.time.sleep", sleep)
    assert main(["status", str(tmp_path / "run"), "--watch", "7"]) == 0
    assert waited == [7.0, 7.0]
    assert "round 4 of 4, accuracy 75.0 %" in capsys.readouterr().out


def test_states_and_the_newest_run_of_a_folder(tmp_path, capsys):
    for name, age in (("old", 100), ("new", 10)):
        begun(tmp_path / name)
        os.utime(tmp_path / name / "config.yaml", (time.time() - age,) * 2)
    assert RunStatus.read(tmp_path).path == tmp_path / "new"
    for file in ("seal.json", "ledger.json"):
        (tmp_path / "new" / file).write_text("{}")
    assert RunStatus.read(tmp_path).state == PAUSED
    finish_run(config_of(tmp_path / "new"))
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == COMPLETE


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "config.yaml").unlink(), "is not a run and holds none"),
        (lambda run: (run / "plan.json").write_text("{}"), "no format version"),
        (lambda run: (run / "rounds.jsonl").write_text("x\n"), "is a damaged run"),
        (lambda run: (run / "rounds.jsonl").unlink(), "is a damaged run"),
        (lambda run: (run / "ledger.json").write_text("[]"), "is a damaged run"),
        (
            lambda run: (run / "ledger.json").write_text('{"charged_rounds": 4}'),
            "ledger.json has 4 rounds charged and rounds.jsonl has 2; restore it from a copy",
        ),
    ],
)
def test_what_is_no_run_is_one_line(tmp_path, capsys, spoil, said):
    begun(tmp_path / "run")
    spoil(tmp_path / "run")
    assert main(["status", str(tmp_path / "run")]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
