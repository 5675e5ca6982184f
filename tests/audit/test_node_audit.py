"""Tests of the audit of a node's own ledger: honest ledgers pass, and each change is named."""

import hashlib
import json
from dataclasses import replace

import pytest

from gdpfed.audit.node_audit import audit_node_ledger, node_standing
from gdpfed.cli import main
from gdpfed.clients.messages import RoundOfRun
from gdpfed.errors import AuditError
from gdpfed.federation.node.budget import begin
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budget, Budgets
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.allocated.planner import make_allocated_plan
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares

PLAN = make_plan(
    groups=groups_from_shares(40, (1.0,)), num_rounds=5, sampling_rate=0.3, clipping_norm=1.0, delta=1e-3
)
TERMS = terms_of(PLAN, 0, "one", dropout_tolerance=0.1, corrupt_tolerance=0.0)


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "ledger.json"
    budget: Budgets = {"client": Budget(epsilons=(2.0,), delta=1e-3, ledger=path)}
    begin(budget, TERMS)
    with locked_ledger(path) as file:
        for sent in (RoundOfRun("one", 0), RoundOfRun("one", 3)):
            file.ledger.charge(sent.run, sent.index)
        file.save()
    begin(budget, replace(TERMS, run="two"))
    return path


def test_an_honest_ledger_passes(ledger, capsys):
    audit = audit_node_ledger(ledger)
    assert audit.passed
    first, second = audit.runs
    assert (first.name, first.sent, first.num_updates, second.sent) == ("one", 2, 5, 0)
    assert 0.99 < first.epsilon <= 1.0 < second.epsilon <= 2.0
    assert first.against_server == second.against_server > 0
    assert main(["audit", "--node-ledger", str(ledger)]) == 0
    assert "Every budget held" in capsys.readouterr().out


def rewritten(path, change):
    """Change a ledger's content, and store a matching checksum and lock file, as a forger would."""
    with locked_ledger(path) as file:
        body = file.ledger.to_dict()
    change(body)
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"ledger": body, "sha256": digest}))
    path.with_name(f"{path.name}.lock").write_text(json.dumps({"ledger": [digest]}))


def recharge(terms, change):
    (charge,) = json.loads(terms["charges"])
    change(charge)
    terms["charges"] = json.dumps([charge])


def less_noise(body):
    def quieter(charge):
        charge["event"]["noise_stddev"] *= 0.7

    recharge(body["runs"][1]["terms"], quieter)


def more_rounds(body):
    recharge(body["runs"][0]["terms"], lambda charge: charge.update(count=50))


def another_unit(body):
    recharge(body["runs"][0]["terms"], lambda charge: charge.update(unit="record"))


def a_round_twice(body):
    body["runs"][0]["rounds"].append(3)


def a_later_start(body):
    body["runs"][0]["terms"]["first_round"] = 2


def a_round_too_many(body):
    body["runs"][0]["rounds"].append(5)


def in_clear(body):
    body["runs"][0]["terms"]["sums_hidden"] = False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (less_noise, "NO"),
        (more_rounds, "NO"),
        (a_round_twice, "run one sent more updates in one round than it was charged for"),
        (a_later_start, "run one sent an update in a round that it was not charged for"),
        (a_round_too_many, "run one sent an update in a round that it was not charged for"),
        (in_clear, "run one showed single updates to the server"),
    ],
)
def test_what_broke_the_budget_is_found(ledger, change, words, capsys):
    rewritten(ledger, change)
    assert main(["audit", "--node-ledger", str(ledger)]) == 1
    shown = capsys.readouterr().out
    assert words in shown
    assert "does NOT hold" in shown
    assert "yes" not in shown or words == "NO"


def test_a_run_in_the_words_of_another_unit_is_no_ledger(ledger):
    rewritten(ledger, another_unit)
    with pytest.raises(AuditError, match="a run charged per record lacks terms about records"):
        audit_node_ledger(ledger)


def free_rounds(body):
    recharge(body["runs"][0]["terms"], lambda charge: charge["event"].update(parties=0))


def steps_of_records(body):
    steps = {"kind": "dp_sgd_steps", "batch_rate": 1e-6, "noise_multiplier": 9.0, "num_steps": 1}
    recharge(body["runs"][0]["terms"], lambda charge: charge.update(event=steps))


def a_vote_of_chance(body):
    terms = body["runs"][0]["terms"]
    terms["vote"] = terms["charges"]


@pytest.mark.parametrize("change", [free_rounds, steps_of_records, a_vote_of_chance])
def test_terms_with_events_that_no_program_writes_are_refused(ledger, change):
    rewritten(ledger, change)
    with pytest.raises(AuditError, match="missing, unknown or wrong entries|of kind .* may have"):
        audit_node_ledger(ledger)


def test_a_changed_file_is_found_by_its_checksum(ledger):
    ledger.write_text(ledger.read_text().replace('"accountant": "pld"', '"accountant": "rdp"'))
    assert "its checksum is another one" in audit_node_ledger(ledger).findings[0]


def test_an_older_ledger_is_found_by_the_lock_beside_it(ledger, capsys):
    old = ledger.read_text()
    with locked_ledger(ledger) as file:
        file.ledger.charge("two", 1)
        file.save()
    assert audit_node_ledger(ledger).passed
    ledger.write_text(old)
    for command in (["audit", "--node-ledger"], ["node", "status"]):
        assert main([*command, str(ledger)]) == 1
        assert "wrong: " in (shown := capsys.readouterr().out)
        assert "is not the ledger that was written last, as ledger.json.lock says" in shown


def test_a_ledger_without_its_lock_is_said_to_be_of_unknown_age(ledger, capsys):
    lock = ledger.with_name("ledger.json.lock")
    assert audit_node_ledger(ledger).not_computed == ()
    lock.write_text("{}")
    with pytest.raises(AuditError, match=r"ledger\.json\.lock, which says what was written last, is damaged"):
        audit_node_ledger(ledger)
    lock.unlink()
    for command in (["audit", "--node-ledger"], ["node", "status"]):
        assert main([*command, str(ledger)]) == 0
        assert "not computed: whether " in capsys.readouterr().out


def test_a_ledger_of_a_version_that_no_program_wrote_is_refused(ledger):
    rewritten(ledger, lambda body: body.update(version=99))
    with pytest.raises(AuditError, match="version 99, and this audit reads 1 to 4"):
        audit_node_ledger(ledger)


def test_a_ledger_without_runs_is_said_to_have_none(tmp_path, capsys):
    with locked_ledger(tmp_path / "ledger.json") as file:
        file.save()
    assert main(["audit", "--node-ledger", str(tmp_path / "ledger.json")]) == 0
    assert "This ledger has no runs: there was nothing to compute." in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ledger": {"runs": [{}]}, "sha256": ""}'])
def test_no_ledger_is_one_line(tmp_path, text, capsys):
    (tmp_path / "ledger.json").write_text(text)
    assert main(["audit", "--node-ledger", str(tmp_path / "ledger.json")]) == 1
    captured = capsys.readouterr()
    assert "cannot be read as a node's ledger" in captured.err
    assert captured.err.count("\n") == 1


def test_of_a_block_of_rounds_a_node_sends_one_update_and_pays_for_each_that_is_left(tmp_path):
    """A node sends one update in each block of rounds, and pays only for blocks that end after it joined."""
    plan = make_allocated_plan(
        groups=groups_from_shares(40, (1.0,)),
        num_rounds=7,
        sampling_rate=0.4,
        clipping_norm=1.0,
        delta=1e-3,
        group_sampling_rates=(0.4,),
    )
    path = tmp_path / "ledger.json"
    budget: Budgets = {"client": Budget(epsilons=(4.0,), delta=1e-3, ledger=path)}
    terms = terms_of(plan, 0, "one", dropout_tolerance=0.1, corrupt_tolerance=0.0)
    begin(budget, terms)
    with locked_ledger(path) as file:
        for index in (1, 6):
            file.ledger.charge("one", index)
        figures = [file.ledger.epsilon_against_server(1e-3)]
        file.save()
    begin(budget, replace(terms, run="two", first_round=4))
    with locked_ledger(path) as file:
        figures.append(file.ledger.epsilon(1e-3))
    audit = audit_node_ledger(path)
    assert audit.passed
    first, second = audit.runs
    assert (first.num_updates, first.sent, second.num_updates) == (3, 2, 2)
    assert 0.99 < first.epsilon <= 1.0 < second.epsilon <= 4.0
    assert [first.against_server, second.epsilon] == pytest.approx(figures, rel=0.02)
    assert node_standing(path, {}).sampled
    rewritten(path, lambda body: body["runs"][0]["rounds"].append(0))
    assert audit_node_ledger(path).findings == (
        "run one sent 2 updates in the rounds 0 to 2, in one of which it takes part",
    )
