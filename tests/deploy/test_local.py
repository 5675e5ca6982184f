"""Tests of ``make deploy-local``: six separate nodes train over TLS, and no process or file remains."""

import json
import os
import re
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

from deploy import confine, local
from deploy.federation import Federation
from deploy.loopback import LoopbackFederation, Named, copy_examples
from deploy.operate import training_words
from deploy.options import exit_status
from deploy.services import TASK_POLL_VARIABLE
from gdpfed.errors import InputError, LaunchError
from gdpfed.learning.data.file_form import own_form
from testing.flower_traces import FlowerTraces
from testing.project import PROJECT
from testing.waiting import until

TIMEOUT_SECONDS = 600


@pytest.fixture
def traces(tmp_path):
    return FlowerTraces(tmp_path)


def start(traces, *words):
    """Start the command of ``make deploy-local`` with an empty home directory."""
    return subprocess.Popen(
        [sys.executable, "-m", "deploy.local", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=traces.environment,
        start_new_session=True,
    )


@pytest.mark.slow
def test_six_nodes_train_and_nothing_is_left(tmp_path, traces):
    directory = tmp_path / "run"
    process = start(traces, "run.num_rounds=1", f"run.directory={directory}")
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, out + err
    assert "every node is online, over TLS and under its own key" in out
    assert re.search(r"round 1/1  accuracy \d+\.\d %  epsilon against [a-z ]+ 1.00/1 3.00/3 6.00/6", out)
    assert re.findall(r"node-\d: its own ledger holds epsilon (.*) sent", out) == [
        f"{epsilon:.2f} of {epsilon} (1 of 1 updates" for epsilon in (1, 3, 6, 1, 3, 6)
    ]
    assert "Every budget held, and the files agree." in out
    (record,) = (json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines())
    assert (record["cohort_sizes"], record["survivors"], record["failures"]) == ([2, 2, 2], [6], {})
    assert record["seconds"].keys() >= {"advertise", "share", "mask", "unmask"}
    ledger = json.loads((directory / "ledger.json").read_text())
    assert ledger["participations"] == [{"0": 1, "3": 1}, {"1": 1, "4": 1}, {"2": 1, "5": 1}]
    assert traces.left() == []


def test_an_interrupt_while_it_starts_leaves_nothing(tmp_path, traces):
    process = start(traces, "--nodes", "3", f"run.directory={tmp_path / 'run'}")
    begun = lambda: any("superlink" in each for each in traces.running())  # noqa: E731
    until(lambda: begun() or process.poll() is not None, 120, every=0.2)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().endswith("deploy: interrupted")
    assert traces.left() == []
    assert not (tmp_path / "run").exists()


def test_a_plan_that_cannot_be_is_refused_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setattr(local, "LoopbackFederation", pytest.fail)
    assert local.main(["method=gdpfed", "privacy.budgets=[1,0]"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("deploy: ")
    assert err.count("\n") == 1


def test_the_line_of_a_command_that_it_starts_is_shown_once(capsys):
    def fails():
        raise LaunchError("deploy: run 7 ended as finished:failed [super-link]")

    assert exit_status(fails) == 2
    assert capsys.readouterr().err == "deploy: run 7 ended as finished:failed [super-link] [launch]\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "this kernel has no Landlock"), (("--without-guard",), "without a guard an app holds")],
)
def test_nothing_starts_without_a_wall_that_is_required(monkeypatch, capsys, words, said):
    monkeypatch.setattr(local, "LoopbackFederation", pytest.fail)
    monkeypatch.setattr(confine, "landlock_version", lambda: 0)
    assert local.main(["--require-wall", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"deploy: --require-wall: {said}")
    assert err.count("\n") == 1


def test_what_a_training_names_is_reached_by_the_servers_app(tmp_path, monkeypatch):
    there, mailbox = tmp_path / "there", tmp_path / "mailbox"
    there.mkdir()
    words = [f"dataset.path={there}", f"dataset.test_path={tmp_path / 'none'}", f"run.directory={tmp_path}"]
    assert Named.by(words, mailbox) == Named((there,), (mailbox,))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    tracked = Named.by(["run.mlflow=http://localhost:5000"])
    assert tracked.connects == (5000,)
    assert "MLFLOW_TRACKING_TOKEN" in tracked.variables
    assert Named.by(["privacy.budgets=[1]"]).variables == ()
    for name in tracked.variables:
        monkeypatch.delenv(name)
    assert Named.by(["run.mlflow=https://example.org/x", "privacy.budgets=[1]"]) == Named(connects=(443,))


@pytest.mark.parametrize("method", ["record_statistics", "client_statistics"])
def test_a_method_that_counts_once_gets_no_number_of_rounds(method):
    words = training_words(3, [f"method={method}", "dataset.model=statistics"])
    assert not any(word.startswith("run.num_rounds=") for word in words)
    assert "run.num_rounds=2" in training_words(3, ["method=dp_sum"])


def test_a_table_is_copied_with_the_declaration_beside_it(tmp_path):
    there, own = tmp_path / "there", tmp_path / "own"
    for folder in (there, own):
        folder.mkdir()
    (there / "a.csv").write_text("age,stays\n")
    copy_examples(there / "a.csv", own / "examples.csv")
    assert [path.name for path in own.iterdir()] == ["examples.csv"]
    (there / "columns.yaml").write_text("label: {column: stays, classes: [0, 1]}\n")
    copy_examples(there / "a.csv", own / "examples.csv")
    assert {path.name: path.read_text() for path in own.iterdir()} == {
        "examples.csv": "age,stays\n",
        "columns.yaml": "label: {column: stays, classes: [0, 1]}\n",
    }
    # How the site's file is written, and the database of a query, by the name of the copy.
    (there / "a.sql").write_text("SELECT 1 AS id")
    (there / "a.sqlite").write_bytes(b"SQLite format 3")
    (there / "b.csv").touch()
    (there / "files.yaml").write_text("a: {database: a.sqlite, missing: ['no', '-9']}\nb: {decimal: ','}\n")
    copy_examples(there / "a.sql", own / "examples.sql")
    assert (own / "a.sqlite").read_bytes() == b"SQLite format 3"
    form = own_form(own / "examples.sql")
    assert (form.database, form.missing, form.decimal) == ("a.sqlite", ("no", "-9"), None)


def test_files_of_examples_are_one_a_node_and_of_one_kind(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(local, "LoopbackFederation", pytest.fail)
    for client in range(3):
        (tmp_path / f"site-{client}.csv").touch()
    federation = Federation.of(3, [2.0])
    assert [path.name for path in local.own_files(tmp_path, federation)] == [
        "site-0.csv",
        "site-1.csv",
        "site-2.csv",
    ]
    assert local.own_files(None, federation) == []
    (tmp_path / "site-2.csv").rename(tmp_path / "site-2.csv.gz")
    (tmp_path / "site-3.parquet").touch()
    assert local.main(["--nodes", "3", "--data", str(tmp_path)]) == 2
    assert "has 4 files of 3 kinds for 3 nodes: put one file of examples for each" in capsys.readouterr().err
    (tmp_path / "site-3.parquet").unlink()
    # The copies have the ending of the first.
    for client in range(2):
        (tmp_path / f"site-{client}.csv").rename(tmp_path / f"site-{client}.csv.gz")
    asked = Mock(side_effect=InputError("asked"))
    monkeypatch.setattr(local, "federation_overrides", asked)
    assert local.main(["--nodes", "3", "--data", str(tmp_path)]) == 2
    assert asked.call_args.args[0].examples == "examples.csv.gz"


@pytest.mark.parametrize(("nodes", "seconds"), [(3, 0.2), (6, 0.2), (24, 0.6)])
def test_of_many_nodes_on_one_machine_each_asks_for_work_less_often(nodes, seconds):
    environment = LoopbackFederation(Federation.of(nodes)).environment
    assert float(environment[TASK_POLL_VARIABLE]) == pytest.approx(seconds)
