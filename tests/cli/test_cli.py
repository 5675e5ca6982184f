"""Tests of the command ``gdpfed``: tables, JSON, comparisons and bad input."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import gdpfed
from conf.load import load
from conf.sweeps import jobs_of, parted
from gdpfed.cli import main
from gdpfed.cli.app import COMMANDS, _parse, load_command
from gdpfed.methods import METHODS
from gdpfed.report.console import WIDTH

GROUP_KEYS = {
    "epsilon",
    "epsilon_against_server",
    "epsilon_against_members",
    "clients",
    "sampling_rate",
    "expected_cohort_size",
    "noise_multiplier",
    "noise_variance_multiplier",
    "charges",
}
# At a rate of one no method has to search for its rates.
COMPARE = ["plan", "--compare", "privacy.sampling_rate=1"]


def test_plan_as_json(capsys):
    assert main(["plan", "dataset=fmnist", "method=gdpfed", "privacy.accountant=rdp", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {"groups", "weighting", "delta", "accountant", "sampling"} <= plan.keys()
    assert len(plan["weighting"]["group_weights"]) == len(plan["weighting"]["keep_fractions"]) == 3
    assert all(group.keys() >= GROUP_KEYS for group in plan["groups"])
    tpr = [each["tpr_at_1_percent_fpr"] for each in plan["inference_bounds"]]
    assert 0.01 < tpr[0] < tpr[1] < tpr[2] < 1
    assert (plan["accountant"], plan["sampling"]) == ("rdp", "poisson")
    assert [group["clients"] for group in plan["groups"]] == [2000, 2000, 2000]


@pytest.mark.parametrize("columns", ["300", "80", None])
def test_plan_as_table_is_whole_at_any_width(capsys, monkeypatch, columns):
    """A plan's table fits the width in $COLUMNS, or a default width, and no text is cut off."""
    monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["plan", "privacy.accountant=rdp", "--details"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns or WIDTH)
    assert len(re.findall(r"0\.\d{5}(?!\d)", out)) == 3
    words = " ".join(out.split())
    assert re.search(r"who 360 clients, epsilon by budget: 120 with 1, 120 with 3, 120 with 6 promise", words)
    assert re.search(
        r"against outsiders; against the server epsilon \d+\.\d\d, \d+\.\d\d, \d+\.\d\d cost", words
    )
    assert re.search(r"members of the same sums: a client that takes part K = \d+, \d+, \d+ times", words)
    for each in ("gdpfed_plus", "delta 1e-05", "true positives at 1 % false positives"):
        assert each in words


def test_details_of_a_plan_are_shown_when_they_are_asked_for(capsys):
    told = {}
    for words in ([], ["--details"]):
        assert main(["plan", "method=dp_fedavg", *words]) == 0
        told[bool(words)] = capsys.readouterr().out
    detail = ("at even odds", "corrections", "adjacency", "replace-one epsilon")
    assert [each for each in detail if each in told[False]] == []
    assert [each for each in detail if each not in told[True]] == []
    names = ("against", "delta", "between two data sets", "membership inference")
    assert all(re.search(rf"^{name}  ", told[False], re.MULTILINE) for name in names)
    assert all(line == line.lstrip() or line.startswith("  ") for line in told[False].splitlines())


def test_plan_without_secure_aggregation_says_what_is_lost(capsys):
    assert main(["plan", "privacy.accountant=rdp", "secagg=off"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Secure aggregation is off: nothing is promised against the server." in out


@pytest.mark.parametrize("mode", ["active", "curious", "off"])
def test_the_plan_says_what_holds_against_members_without_amplification(capsys, mode):
    overrides = ["dataset=fmnist", "method=gdpfed", "privacy.accountant=rdp", f"secagg.mode={mode}"]
    overrides += ["secagg.identities=first_seen"] if mode == "active" else []
    assert main(["plan", *overrides, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [group["epsilon_against_members"] for group in groups] == pytest.approx(
        [5.42, 9.69, 13.6], rel=5e-3
    )
    for group in groups:
        server = None if mode == "off" else group["epsilon_against_members"]
        assert group["epsilon_against_server"] == server


def test_compare_shows_every_method_and_why_one_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(COMPARE) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert len(out.splitlines()) <= 40
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert {"fedavg", "dp_fedavg", "gdpfed_op", "gdpfed_plus", "everybody in every"} <= rows.keys()
    assert len(re.findall(r"0\.\d{5}", rows["gdpfed_plus"])) == 2
    words = " ".join(out.split())
    for each in (
        "accountant pld",
        "do not hold against the server",
        "Everyone: the budgets hold against them as they are",
        "360 messages a round",
        "the least noise here",
    ):
        assert each in words
    assert main([*COMPARE, "privacy.accountant=theorem1"]) == 0
    out = capsys.readouterr().out
    assert out.count("refused (1)") == 8
    assert len(re.findall(r"^\* \(1\) refused: theorem1", out, re.MULTILINE)) == 1


def test_compare_as_json(capsys):
    assert main([*COMPARE, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 1 + 8 * 3 + 8 + 1
    assert [row["against"] for row in rows[24:26]] == ["outsiders", "everyone"]
    assert (rows[-1]["method"], rows[-1]["messages_a_round"]) == ("everybody in every round", 360)
    refused = {(row["method"], row["accountant"]) for row in rows if "refused" in row}
    methods = METHODS.items().values()
    compared = [each.name for each in methods if each.unit == "client" and each.compared]
    assert refused == {(name, "theorem1") for name in compared}


@pytest.mark.parametrize("command", ["plan", "run", "simulate"])
def test_bad_input_is_one_line_and_status_2(capsys, command):
    assert main([command, "privacy.clipping_norm=-1"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "gdpfed: privacy.clipping_norm=-1.0 must be from 1e-09 to 1e+09 [config]\n"
    assert captured.out == ""


ACTIONS = (
    *(("identity", action) for action in ("new", "show", "roster", "verify")),
    ("node", "status"),
    ("node", "metrics"),
)


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS), *ACTIONS])
def test_help_teaches_by_examples_that_work_and_is_80_columns_wide(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        main([*words, "--help"])
    assert exit_.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    examples = [re.split(r"\s{2,}", line.strip())[0] for line in lines if line.startswith("  gdpfed ")]
    assert len(examples) >= 2
    assert all(example.split()[1 : 1 + len(words)] == list(words) for example in examples)
    for example in examples if words else ():
        parsed = _parse(shlex.split(example.partition(" > ")[0])[1:])
        words_of_runs = ("run.resume=", "runs/")
        chosen = [each for each in getattr(parsed, "overrides", ()) if not each.startswith(words_of_runs)]
        swept = [job.overrides for job in jobs_of(parted(chosen)[1])] if "--multirun" in example else [chosen]
        for overrides in swept:
            load(overrides)


def test_help_and_plans_import_only_what_they_need():
    """The commands for help, settings and plans import neither torch nor Flower, which load slowly."""
    code = """
import contextlib, io, sys
from gdpfed.cli import main
from gdpfed.cli.app import COMMANDS
with contextlib.redirect_stdout(io.StringIO()):
    for words in (["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)):
        with contextlib.suppress(SystemExit):
            main(words)
heavy = {"torch", "flwr", "hydra", "omegaconf", "numpy", "scipy", "matplotlib", "rich", "yaml"}
print(sorted(heavy & sys.modules.keys()))
main(["identity", "show", "nowhere"])
print(sorted({"torch", "flwr", "omegaconf", "scipy"} & sys.modules.keys()))
with contextlib.redirect_stdout(io.StringIO()):
    main(["settings"])
    main(["settings", "privacy"])
others = {"gdpfed.extras.h2fdp.h2fdp", "gdpfed.extras.fedpcs.fedpcs", "gdpfed.methods.dp_sgd"}
heavy = {"torch", "flwr", "scipy", "matplotlib", "pandas", "rich"}
print(sorted((heavy | others) & sys.modules.keys()))
import gdpfed.report.report_tables
print(sorted({"torch", "flwr", "scipy", "matplotlib", "pandas"} & sys.modules.keys()))
with contextlib.redirect_stdout(io.StringIO()):
    main(["plan", "method=dp_fedavg"])
print(sorted(({"torch", "flwr"} | others) & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n" * 5


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"gdpfed {gdpfed.__version__}\n"


def test_partition_is_counted_and_drawn(capsys, tmp_path):
    picture = tmp_path / "labels.png"
    overrides = ["dataset.partition=dirichlet", "dataset.dirichlet_alpha=0.3"]
    assert main(["partition", *overrides, "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    for words in ("Digits, dirichlet(0.3), 360 clients", "examples", "classes", "1,437", str(picture.name)):
        assert words in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_partition_refuses_in_one_line(capsys, tmp_path):
    assert main(["partition", "dataset.partition=natural"]) == 2
    assert capsys.readouterr().err.startswith("gdpfed: dataset.partition=natural needs data")
    assert main(["partition", "--output", str(tmp_path / "labels.jpg")]) == 2
    assert "must be a .png file" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_has_closed_the_pipe_ends_the_command_quietly(options):
    """``gdpfed plan`` ends with status 141 and without an error if the reader of its output has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "gdpfed.cli", "plan", "method=fedavg", *options]
    ended = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_output_that_cannot_be_written_is_one_line(monkeypatch, capsys):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["settings", "--all"]) == 1
    said = "gdpfed: the output cannot be written: No space left on device; make room there\n"
    assert capsys.readouterr().err == said


def test_letters_that_the_terminal_has_not_are_escaped():
    program = "import sys; from gdpfed.cli import main; s = main(); print('\\u2588'); sys.exit(s)"
    ended = subprocess.run(
        [sys.executable, "-c", program, "settings", "run"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1], ended.stderr) == (0, "\\u2588", "")


def test_without_a_folder_for_temporary_files_there_is_one_line(monkeypatch, capsys):
    def refused(path):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(Path, "exists", refused)
    assert main(["check", "t.csv"]) == 1
    said = "gdpfed: No usable temporary directory found in ['/tmp']: free space, or set TMPDIR to a folder"
    assert capsys.readouterr().err.startswith(said)


def test_a_folder_that_is_not_the_users_is_one_line(monkeypatch, capsys):
    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refused)
    assert main(["check", "theirs/t.csv"]) == 2
    said = "gdpfed: theirs/t.csv cannot be used: Permission denied; let this user read or write it\n"
    assert capsys.readouterr().err == said


def test_an_interrupt_in_an_import_is_one_line():
    """An interrupt while a command's module is imported is reported in one line, with status 130."""
    program = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'gdpfed.cli.plan_command':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting)\n"
        "from gdpfed.cli import main\n"
        "sys.exit(main(['plan']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "gdpfed: interrupted\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["plan", "dataset.model=no-such"],
            "model 'no-such' is not known: use cnn2, cnn3, fcn",
        ),
        (
            ["plan", "run.num_rounds=3", "dataset=digits", "run.num_rounds=5"],
            "run.num_rounds=3 and run.num_rounds=5 are both given: choose one",
        ),
        (
            ["plan", "dataset.model_options={depth:3}"],
            "model_options.depth=3 is not an option of model 'linear'",
        ),
        (
            ["plan", "--compare", "--choose"],
            "--compare and --choose are given: each is a question of its own",
        ),
        (
            ["simulate", "run.directory=/proc/x"],
            "run.directory=/proc/x cannot be made: /proc is not yours to",
        ),
        (["report", "nowhere"], "nowhere is not a run: there is no such directory [report]"),
        (["audit", "nowhere"], "nowhere is not a run: there is no such directory [report]"),
        (["plan", "run.resume=nowhere"], "is not a run, it holds no config.yaml: name the directory of"),
        (["audit", "docs"], "docs holds no run: there is no plan.json in it [report]"),
        (["partition", "--output", "/no/such/folder/labels.png"], "must be a .png file in a directory that"),
    ],
)
def test_what_a_command_cannot_use_is_one_line(capsys, words, message):
    assert main(words) == (1 if words[0] == "simulate" else 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_picture_that_cannot_be_written_is_one_line(capsys):
    assert main(["partition", "--output", "/proc/labels.png"]) in (1, 2)
    error = capsys.readouterr().err
    assert "/proc" in error
    assert error.count("\n") == 1


def test_a_plan_for_groups_of_another_number_needs_no_further_setting(capsys):
    assert main(["plan", "privacy.budgets=[1,4]", "privacy.accountant=rdp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weighting"]["keep_fractions"] == [0.7, 0.9]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_says_that_a_plan_is_being_made_and_a_pipe_gets_the_plan_alone(
    capsys, monkeypatch, terminal
):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["plan", "dataset=fmnist", "method=gdpfed", "privacy.accountant=rdp", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["accountant"] == "rdp"
    assert ("planning ..." in err) == terminal


def test_a_librarys_warning_is_shown_to_who_asks_for_it(monkeypatch, capsys):
    def warn(options):
        warnings.warn("a loop would be slower", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(
        "gdpfed.cli.settings_command.COMMAND", replace(load_command("settings"), execute=warn)
    )
    monkeypatch.setattr("sys.argv", ["gdpfed", "settings"])
    assert main() == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.warnoptions", ["always"])
    with warnings.catch_warnings(), pytest.warns(UserWarning, match="a loop would be slower"):
        main()
