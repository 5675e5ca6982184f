"""Tests of the audit of runs that protect records: honest runs pass, and each changed value is named."""

import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.cli import main
from gdpfed.federation.node.budget import begin
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budget, Budgets
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.records.budgets import RecordTraining
from gdpfed.privacy.mechanisms.records.calibration import steps_epsilon
from gdpfed.privacy.mechanisms.records.planner import record_plan
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.runs.file_formats import CHECKPOINT_FILE
from testing.forged import edit_json
from testing.small_runs import run

FILES = ("config.yaml", "plan.json", "assignment.json", "ledger.json", "rounds.jsonl")
RUN = [
    "dataset.num_clients=6",
    "privacy=record_level",
    "privacy.sampling_rate=1",
    "privacy.delta=1e-5",
    "privacy.accountant=pld",
]
METHODS = {
    "dp_sgd": ["method=dp_sgd", "privacy.budgets=[2.0]", "training.local_steps=3"],
    "dp_sum": ["method=dp_sum", "privacy.budgets=[2.0]"],
    # The strict stop first, after three steps of the six.
    "steps": [
        "method=dp_sgd",
        "privacy.budgets=[0.82,1.2]",
        "method.heterogeneous=steps",
        "method.noise_multiplier=1.2",
        "training.local_steps=2",
    ],
    "records": ["method=dp_sum", "privacy.budgets=[1.0,3.0,6.0]", "privacy.budgets_of=records"],
    "scale": ["method=dp_sum", "privacy.budgets=[1.0,3.0]", "method.heterogeneous=scale"],
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Run each configuration in METHODS once; return the text of each run's files, by run and file name."""
    runs = {}
    for name, overrides in METHODS.items():
        directory = tmp_path_factory.mktemp("records") / name
        run(directory, [*RUN, *overrides])
        runs[name] = {file: (directory / file).read_text() for file in FILES}
    return runs


@pytest.fixture
def directory(tmp_path, honest):
    def written(name):
        for file, text in honest[name].items():
            (tmp_path / file).write_text(text)
        # It has not ended yet: there is neither a seal nor a card.
        (tmp_path / CHECKPOINT_FILE).write_bytes(b"")
        return tmp_path

    return written


@pytest.mark.parametrize(
    ("name", "steps"),
    [("dp_sgd", [9]), ("dp_sum", [3]), ("steps", [3, 6]), ("records", [3, 3, 3]), ("scale", [3, 3])],
)
def test_an_honest_run_passes_with_its_own_figures(directory, name, steps):
    audit = audit_run(directory(name))
    assert audit.findings == ()
    assert audit.passed
    assert [group.records.steps for group in audit.groups if group.records is not None] == steps
    plan = json.loads((directory(name) / "plan.json").read_text())
    for group, taken in zip(audit.groups, steps, strict=True):
        assert group.records is not None
        records, number = plan["groups"][group.group]["records"], group.records.number
        expected = steps_epsilon(
            make_accountant("pld"),
            batch_rate=records["groups"][number]["batch_rate"],
            noise_multiplier=records["noise_multiplier"],
            num_steps=taken,
            delta=1e-5,
        )
        assert group.spent == pytest.approx(expected, rel=1e-3)
        # The log has the figure of a client's first group of records.
        assert group.recorded == (pytest.approx(expected, rel=1e-3) if number == 0 else None)
        assert group.against_server == group.against_members == group.spent <= group.budget


def test_the_table_says_that_it_is_about_records(directory, capsys):
    assert main(["audit", str(directory("steps"))]) == 0
    shown = capsys.readouterr().out
    assert "records" in shown
    assert "3/3" in shown
    assert "Every budget held, and the files agree." in shown
    assert main(["audit", str(directory("steps")), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["groups"]
    assert (first["records"]["steps"], first["records"]["steps_allowed"]) == (3, 3)
    assert second["records"]["steps"] < second["records"]["steps_allowed"]


def in_rounds(directory, change):
    records = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    change(records)
    (directory / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def of_records(plan):
    return plan["groups"][0]["records"]


def events(plan):
    group = plan["groups"][0]
    charges = [*group["charges"], *of_records(plan)["groups"][0]["charges"]]
    return [charge["event"] for charge in charges]


def lower_stated_rate(plan):
    of_records(plan)["groups"][0]["batch_rate"] *= 0.5


def raise_rate(plan):
    of_records(plan)["groups"][0]["batch_rate"] *= 2
    for event in events(plan):
        event["batch_rate"] *= 2


def lower_noise(plan):
    of_records(plan)["noise_multiplier"] *= 0.7
    for event in events(plan):
        event["noise_multiplier"] *= 0.7


def raise_noise(plan):
    of_records(plan)["noise_multiplier"] *= 2
    for event in events(plan):
        event["noise_multiplier"] *= 2


def lower_stated_noise(plan):
    plan["groups"][0]["noise_multiplier"] *= 0.5


def allow_more(plan):
    of_records(plan)["steps_allowed"] += 6


def allow_fewer(plan):
    of_records(plan)["steps_allowed"] -= 2


def fewer_rounds(plan):
    of_records(plan)["most_rounds"] -= 1


def raise_budget(plan):
    of_records(plan)["groups"][0]["epsilon"] = 9.0


def other_norms_of_the_same_mean(plan):
    for group, more in zip(plan["groups"], (0.1, -0.1), strict=True):
        group["records"]["clipping_norm"] += more / group["clients"]


def lower_last_budget(plan):
    of_records(plan)["groups"][2]["epsilon"] = 3.0


def share_less(plan):
    of_records(plan)["groups"][0]["share"] = 0.5


def another_unit(plan):
    plan["unit"] = "client"


def other_steps(plan):
    of_records(plan)["groups"][0]["charges"][0]["event"]["num_steps"] += 1


def one_more_round(ledger):
    client = next(iter(ledger["participations"][0]))
    ledger["participations"][0][client] += 1


def fewer_charged_steps(ledger):
    ledger["charges"][0][0]["event"]["num_steps"] -= 1


def less_noise(records):
    records[1]["noise_stddevs"][0] *= 0.9


def claim_less(records):
    records[1]["spent_epsilon"][0] *= 0.5


def ask_too_many(records):
    records[0]["cohort_sizes"][0] = 7


@pytest.mark.parametrize(
    ("name", "file", "change", "words"),
    [
        ("dp_sgd", "plan.json", lower_stated_rate, "group 0, records 0, are not those of batch rate"),
        ("dp_sgd", "plan.json", raise_rate, r"group 0, records 0, was planned for a budget of 2, but its 3"),
        ("dp_sgd", "plan.json", raise_rate, r"the ledger's charges of group 0 are not those of 3 rounds"),
        ("dp_sgd", "plan.json", raise_rate, r"9 steps are said to be within the budget of 2 of group 0"),
        ("dp_sgd", "plan.json", lower_noise, r"9 steps are said to be within the budget of 2 of group 0"),
        ("dp_sgd", "plan.json", lower_noise, r"ledger was opened for plan \w+, but plan.json and"),
        ("dp_sgd", "plan.json", raise_noise, r"9 steps are said to be all that group 0 has budgets for"),
        ("dp_sgd", "plan.json", allow_more, r"15 steps are said to be within the budget of 2 of group 0"),
        ("dp_sgd", "plan.json", allow_fewer, r"group 0 is charged 9 steps, of 7 that its budgets admit"),
        ("dp_sgd", "plan.json", fewer_rounds, r"are for 3 rounds, its clients take part in 2"),
        ("dp_sgd", "plan.json", fewer_rounds, r"counts client \d in 3 rounds, and its records pay for 2"),
        (
            "dp_sgd",
            "plan.json",
            raise_budget,
            r"epsilon \[9.0\] of the records of group 0, the configuration \[2.0\]",
        ),
        (
            "dp_sgd",
            "plan.json",
            share_less,
            r"share \[0.5\] of the records of group 0, the configuration \[1.0\]",
        ),
        (
            "records",
            "plan.json",
            lower_last_budget,
            r"epsilon \[1.0, 3.0, 3.0\] of the records of group 0, the",
        ),
        ("dp_sgd", "plan.json", other_steps, r"not those of its first group of records"),
        ("dp_sgd", "ledger.json", fewer_charged_steps, r"ledger's charges of group 0 are not those of 3"),
        ("dp_sgd", "ledger.json", one_more_round, r"counts client \d in 4 of 3 charged rounds"),
        ("steps", "ledger.json", one_more_round, r"counts client \d in 3 rounds, and its records pay for 2"),
        ("steps", "ledger.json", one_more_round, r"participations in group 0, rounds.jsonl 6: one"),
        (
            "scale",
            "plan.json",
            other_norms_of_the_same_mean,
            r"group 0 clips gradients to \S+, and 0\.\S+ was",
        ),
        ("dp_sum", "plan.json", lower_stated_noise, r"plan.json states noise of standard deviation \S+ for"),
        ("dp_sum", "plan.json", lower_noise, r"plan.json states noise of standard deviation \S+ for the sum"),
        ("dp_sum", "rounds.jsonl", less_noise, r"round 2 asked sum 0 for noise of standard deviation"),
        ("dp_sum", "rounds.jsonl", claim_less, r"round 2 records epsilon \S+ of group 0, where \S+ is spent"),
        ("dp_sum", "rounds.jsonl", ask_too_many, r"round 1 has a cohort of 7 in group 0, of 6 clients in"),
    ],
)
def test_what_was_changed_is_named(directory, name, file, change, words):
    path = directory(name)
    if file == "rounds.jsonl":
        in_rounds(path, change)
    else:
        edit_json(path / file, change)
    findings = "\n".join(audit_run(path).findings)
    assert re.search(words, findings), findings
    assert not audit_run(path).passed


TRAINING = RecordTraining(batch_rate=0.05, clipping_norm=1.0, schedule=(5, 5, 3), noise_multiplier=1.5)
ONE = groups_from_shares(6, (2.0,))
NO_TOLERANCE: Any = {"dropout_tolerance": 0.0, "corrupt_tolerance": 0.0}
TERMS = terms_of(record_plan(groups=ONE, num_rounds=3, training=TRAINING), 0, "one", **NO_TOLERANCE)
GROUPED = terms_of(
    record_plan(
        groups=ONE,
        num_rounds=3,
        training=replace(TRAINING, noise_multiplier=None),
        record_budgets=[(0.5, 0.7), (2.0, 0.3)],
    ),
    0,
    "grouped",
    **NO_TOLERANCE,
)
OF_CLIENTS = terms_of(
    make_plan(groups=ONE, num_rounds=2, sampling_rate=1.0, clipping_norm=1.0, delta=1e-5),
    0,
    "of clients",
    **NO_TOLERANCE,
)


@pytest.fixture
def ledger(tmp_path):
    """Write a ledger with a run that protects the client, and a run that protects records and has ended."""
    path = tmp_path / "ledger.json"
    budgets: Budgets = {
        "client": Budget(epsilons=(2.0,), delta=1e-5, ledger=path),
        "record": Budget(epsilons=(2.0,), delta=1e-5, ledger=path),
    }
    begin(budgets, OF_CLIENTS)
    begin(budgets, TERMS)
    with locked_ledger(path) as file:
        for index, steps in enumerate((5, 5, 3)):
            file.ledger.charge("one", index, steps)
        file.save()
    return path


def test_units_are_accounted_apart(ledger, capsys):
    audit = audit_node_ledger(ledger)
    assert audit.passed
    of_client, of_records = audit.runs
    assert (of_client.unit, of_client.record_group, of_client.num_steps) == ("client", None, 0)
    assert (of_records.unit, of_records.steps, of_records.num_steps) == ("record", 13, 13)
    cost = steps_epsilon(
        make_accountant("pld"), batch_rate=0.05, noise_multiplier=1.5, num_steps=13, delta=1e-5
    )
    assert of_records.epsilon == of_records.against_server == pytest.approx(cost, rel=1e-3)
    assert of_client.epsilon <= 2.0
    assert main(["audit", "--node-ledger", str(ledger)]) == 0
    shown = capsys.readouterr().out
    assert "records 0" in shown
    assert "13/13" in shown


def test_every_group_of_records_has_a_row_and_a_second_run_adds_to_it(tmp_path):
    path = tmp_path / "grouped.json"
    budgets: Budgets = {"record": Budget(epsilons=(1.2, 4.0), delta=1e-5, ledger=path)}
    dealt = replace(GROUPED, dealt_by="the hash of data")
    begin(budgets, dealt)
    begin(budgets, replace(dealt, run="again"))
    audit = audit_node_ledger(path)
    assert audit.passed
    first, second = audit.runs[:2], audit.runs[2:]
    assert [(run.record_group, run.budget) for run in first] == [(0, 1.2), (1, 4.0)]
    assert 0.45 < first[0].epsilon <= 0.5
    assert 1.9 < first[1].epsilon <= 2.0
    with locked_ledger(path) as file:
        own = [file.ledger.epsilon(1e-5, unit="record", also=dealt, record_group=group) for group in (0, 1)]
    assert [run.epsilon for run in second] == pytest.approx(own, rel=0.02)


@pytest.mark.parametrize("dealt_by", ["", "the hash of other data"])
def test_a_record_that_may_have_changed_its_group_pays_for_the_dearest(tmp_path, dealt_by):
    path = tmp_path / "grouped.json"
    other = replace(GROUPED, run="again", dealt_by=dealt_by)
    with locked_ledger(path) as file:
        for terms in (replace(GROUPED, dealt_by=dealt_by and "the hash of data"), other):
            file.ledger.begin(terms, epsilons=[1.0, 3.0], delta=1e-5)
        file.save()
        own = [
            file.ledger.epsilon(1e-5, unit="record", also=other, record_group=group, limit=limit)
            for group, limit in enumerate((1.0, 3.0))
        ]
    audit = audit_node_ledger(path)
    assert [run.epsilon for run in audit.runs[2:]] == pytest.approx(own, rel=0.02)
    assert own[0] > 2.0
    assert not audit.passed


def rewritten(path, change):
    """Change the second run of a ledger, and store a checksum that matches, as a forger would."""
    data = json.loads(path.read_text())["ledger"]
    change(data["runs"][1])
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"ledger": data, "sha256": digest}))


def more_steps(entry):
    entry["steps"] = [5, 5, 30]


def no_steps(entry):
    entry["steps"] = [5, 5, 0]


def fewer_entries(entry):
    entry["steps"] = [5, 5]


def a_round_twice(entry):
    entry["rounds"] = [0, 1, 1]


def a_later_round(entry):
    entry["rounds"] = [0, 1, 3]


def quieter(entry):
    charges = json.loads(entry["terms"]["charges"])
    for charge in charges:
        charge["event"]["noise_multiplier"] = 0.9
    entry["terms"]["charges"] = json.dumps(charges)


def other_rates(entry):
    records = json.loads(entry["terms"]["records"])
    records["batch_rates"] = [0.01]
    entry["terms"]["records"] = json.dumps(records)


def in_windows(entry):
    records = json.loads(entry["terms"]["records"])
    records["work"] = "convex_steps"
    entry["terms"]["records"] = json.dumps(records)


def in_clear(entry):
    records = json.loads(entry["terms"]["records"])
    records["work"] = "gradient_sum"
    entry["terms"] |= {"records": json.dumps(records), "sums_hidden": False}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (more_steps, "run one took 40 steps, and 13 were charged"),
        (no_steps, "run one has steps [5, 5, 0] for 3 rounds with an update"),
        (fewer_entries, "run one has steps [5, 5] for 3 rounds with an update"),
        (a_round_twice, "run one sent more updates in one round than it was charged for"),
        (a_later_round, "run one sent an update in a round that it was not charged for"),
        (quieter, "NO"),
        (other_rates, "the charges of run one are not those of one noise and its batch rates"),
        (in_windows, "the charges of run one are not those of its clients' work, convex_steps"),
        (in_clear, "run one showed single updates to the server"),
    ],
)
def test_what_broke_a_budget_of_records_is_found(ledger, change, words, capsys):
    rewritten(ledger, change)
    assert main(["audit", "--node-ledger", str(ledger)]) == 1
    assert words in capsys.readouterr().out
