"""Tests of ``gdpfed node status``: what a node has spent and refused, with the same values as in an audit."""

import json
import time
from dataclasses import replace

import pytest

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.cli import main
from gdpfed.federation.node.budget import begin
from gdpfed.federation.node.connection_file import SILENT_SECONDS, ConnectionState
from gdpfed.federation.node.journal import BEGUN, JournalEntry, note
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.report import spent_picture
from gdpfed.report.spending import Step
from tests.federation.node.test_record_budget import GROUPED, OF_CLIENTS

PLAN = make_plan(
    groups=groups_from_shares(40, (1.0,)), num_rounds=5, sampling_rate=1.0, clipping_norm=1.0, delta=1e-3
)
TERMS = terms_of(PLAN, 0, "one", dropout_tolerance=0.1, corrupt_tolerance=0.0)


@pytest.fixture
def ledger(tmp_path):
    """Write a node's ledger with two runs of one plan, two updates in the first run, and two refusals."""
    path = tmp_path / "ledger.json"
    settings = NodeSettings({"epsilon": 2.0, "delta": 1e-3, "ledger": str(path)})
    begin(settings.budgets, TERMS)
    note(settings, JournalEntry(0.0, "begin", "one", "7", BEGUN))
    with locked_ledger(path) as file:
        file.ledger.charge("one", 0)
        file.ledger.charge("one", 3)
        file.save()
    begin(settings.budgets, replace(TERMS, run="two"))
    for second in (60.0, 120.0):
        note(settings, JournalEntry(second, "offer", "three", "9", "budget", "it does not fit " + "so " * 60))
    return path


def status(capsys, *words):
    code = main(["node", "status", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_figures_are_those_of_the_audit(ledger, capsys):
    (code, (node,)), audit = status(capsys, ledger), audit_node_ledger(ledger)
    one, two = audit.runs
    (own,) = node["budgets"]
    assert (code, node["passed"], node["findings"]) == (0, True, [])
    assert (own["spent"], own["budget"], own["left"]) == (two.epsilon, 2.0, 2.0 - two.epsilon)
    assert [run["spent_up_to_here"] for run in node["runs"]] == [one.epsilon, two.epsilon]
    assert [(run["updates"], run["most_updates"]) for run in node["runs"]] == [(2, 5), (0, 5)]
    assert [run["begun"] for run in node["runs"]] == ["1970-01-01T00:00:00+00:00", None]
    assert [(each["flower_run"], each["cause"]) for each in node["refusals"]] == [("9", "budget")] * 2


def test_what_was_spent_is_drawn_run_after_run(ledger, tmp_path, capsys, monkeypatch):
    drawn = {}
    monkeypatch.setattr(spent_picture, "draw_spent", lambda spent, path: drawn.update({path: spent}))
    picture = tmp_path / "spent.png"
    status(capsys, ledger, "--output", picture)
    (spent,) = drawn[picture]
    one, two = (run.epsilon for run in audit_node_ledger(ledger).runs)
    assert spent.party == f"{ledger.parent.name}, client"
    assert spent.steps == [Step(0.0, one, 2.0), Step(one, two, 2.0)]
    new = tmp_path / "new.json"
    with locked_ledger(new) as file:
        file.save()
    assert main(["node", "status", str(new), "--output", str(picture)]) == 2
    assert "no run has begun, so there is nothing to draw" in capsys.readouterr().err


def test_todays_settings_count_and_not_those_of_the_last_run(ledger, capsys):
    words = "epsilon=1.2 delta=1e-4 max-participations=3 max-epsilon-against-server=5.0"
    code, (node,) = status(capsys, ledger, "--node-config", words)
    (own,) = node["budgets"]
    assert (code, own["budget"], own["delta"], own["left"]) == (1, 1.2, 1e-4, 0.0)
    assert own["spent"] > audit_node_ledger(ledger).runs[-1].epsilon  # At a smaller delta.
    assert (own["max_against_server"], node["runs"][0]["most_updates"]) == (5.0, 3)
    # The ledger that the settings name, where none is given.
    code, (again,) = status(capsys, "--node-config", f"ledger='{ledger}' epsilon=2.0 delta=1e-3")
    assert (code, again["ledger"], again["budgets"][0]["budget"]) == (0, str(ledger), 2.0)


def test_records_and_the_client_stand_apart_in_one_ledger(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "ledger.json"
    words = {"epsilon": 3.0, "epsilon-record": "0.5,1,2.5", "ledger": str(path)}
    budgets = NodeSettings(words).budgets
    for terms in (OF_CLIENTS, GROUPED):
        begin(budgets, terms)
    client, *groups = audit_node_ledger(path).runs
    said = "epsilon=4.0 epsilon-record='0.5,1,5'"
    code, (node,) = status(capsys, path, "--node-config", said)
    own = node["budgets"]
    assert code == 0
    assert [(each["protects"], each["record_group"]) for each in own] == [
        ("client", None),
        *(("records", group) for group in range(3)),
    ]
    assert [each["budget"] for each in own] == [4.0, 0.5, 1.0, 5.0]
    assert [each["spent"] for each in own] == pytest.approx(
        [each.epsilon for each in (client, *groups)], rel=1e-3
    )
    assert main(["node", "status", str(path), "--node-config", said]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "records 2" in out


def test_it_is_one_screen_of_80_columns(ledger, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = "epsilon=2.0 delta=1e-3 min-separation=3"
    assert main(["node", "status", str(ledger), "--node-config", words]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 24
    for words in (
        "all runs together",
        "refused, 2 in all since 01-01 00:01",
        "01-01 00:02",
        "2/5",
        "3 rounds apart",
        "last query to every node never",
    ):
        assert words in out


def test_a_changed_ledger_is_named_and_changes_the_exit_status(ledger, capsys):
    ledger.write_text(ledger.read_text().replace('"accountant": "pld"', '"accountant": "rdp"'))
    assert main(["node", "status", str(ledger)]) == 1
    assert "its checksum is another one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a node's ledger"),
        (["--node-config", "epsilon=three"], "--node-config epsilon=three cannot be read"),
        (
            ["x.json", "--node-config", "epsilom=3.0"],
            "epsilom is not a setting of a node; the nearest one is epsilon",
        ),
        (["none.json"], "none.json is not there: name the file of a node's ledger"),
    ],
)
def test_bad_input_is_one_line(words, said, capsys):
    assert main(["node", "status", *words]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_operator_is_told_of_the_connection(ledger, tmp_path, capsys):
    file, now = tmp_path / "connection.json", time.time()

    def connection():
        code, (node,) = status(capsys, ledger, "--connection", file)
        return code, node["connection"]["state"], node["connection"]["reason"]

    ConnectionState("", now, now).write(file)
    assert connection() == (0, "healthy", "")
    ConnectionState("the proxy [red] is away", now, now).write(file)
    assert connection() == (1, "unhealthy", "the proxy [red] is away")
    assert main(["node", "status", str(ledger), "--connection", str(file)]) == 1
    assert ": the proxy [red] is away" in capsys.readouterr().out
    ConnectionState("", now, now - SILENT_SECONDS - 5).write(file)
    assert connection()[:2] == (1, "unhealthy")
    assert "the SuperNode has written nothing for " in ConnectionState.read(file).line


def test_what_is_not_the_file_of_a_supernode_is_refused(ledger, tmp_path, capsys):
    file = tmp_path / "connection.json"
    for text, said in ((None, "cannot be read: No such file"), ("{}", "is not the file of a SuperNode")):
        if text is not None:
            file.write_text(text)
        assert main(["node", "status", str(ledger), "--connection", str(file)]) == 1
        assert said in capsys.readouterr().err
    assert main(["node", "status", str(ledger), str(ledger), "--connection", str(file)]) == 2
    assert "is of one node, and 2 ledgers are named" in capsys.readouterr().err
