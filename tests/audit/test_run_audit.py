"""Tests of the audit of a run: an honest run passes, and each change of its files is named."""

import json
import math
import re

import pytest

from gdpfed.audit.run_audit import audit_run
from gdpfed.cli import main
from gdpfed.errors import ReportError
from gdpfed.runs.file_formats import CHECKPOINT_FILE
from testing.forged import edit_json
from testing.small_runs import run

FILES = ("config.yaml", "plan.json", "assignment.json", "ledger.json", "rounds.jsonl")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Run a training with budgets 1, 3 and 6; return the text of each of its files, by name."""
    directory = tmp_path_factory.mktemp("audit") / "run"
    run(directory, ["method=gdpfed", "privacy.accountant=pld"])
    return {name: (directory / name).read_text() for name in FILES}


@pytest.fixture
def directory(tmp_path, honest):
    for name, text in honest.items():
        (tmp_path / name).write_text(text)
    # It has not ended yet: there is neither a seal nor a card.
    (tmp_path / CHECKPOINT_FILE).write_bytes(b"")
    return tmp_path


def edit_rounds(directory, change):
    records = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    records = change(records) or records
    (directory / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_an_honest_run_passes_with_its_own_figures(directory):
    audit = audit_run(directory)
    assert audit.passed
    assert audit.findings == ()
    for group, budget in zip(audit.groups, (1.0, 3.0, 6.0), strict=True):
        assert group.budget == budget
        assert group.spent == group.planned
        assert budget * 0.998 < group.spent <= budget
        assert group.recorded == pytest.approx(group.spent, rel=1e-3)
        assert group.most_rounds in (1, 2, 3)
        assert group.against_members == group.against_server
        # In two of a hundred runs no client of a group takes part more than once, which costs less.
        assert group.against_members > group.spent or group.most_rounds == 1


def test_without_secure_aggregation_only_the_figure_against_members_is_finite(tmp_path, capsys):
    run(tmp_path / "run", ["secagg=off", "run.num_rounds=1"])
    audit = audit_run(tmp_path / "run")
    assert audit.passed
    taking_part = [group for group in audit.groups if group.most_rounds]
    assert taking_part
    for group in taking_part:
        assert 0 < group.spent <= group.against_members < math.inf == group.against_server
    assert main(["audit", str(tmp_path / "run")]) == 0
    assert "vs members" in capsys.readouterr().out


def test_the_command_says_so(directory, capsys):
    assert main(["audit", str(directory)]) == 0
    assert "Every budget held, and the files agree." in capsys.readouterr().out
    assert main(["audit", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True


def test_a_run_without_privacy_says_that_nothing_was_promised(tmp_path, capsys):
    run(tmp_path / "run", ["method=fedavg", "run.num_rounds=1"])
    assert main(["audit", str(tmp_path / "run")]) == 0
    assert "Nothing was promised" in capsys.readouterr().out


@pytest.mark.parametrize(
    "mode",
    [
        "pause",
        "discrete",
        "fixed_size",
        "allocation",
        "rates",
        "fixed_rates",
        "no promise",
        "tested at nodes",
    ],
)
def test_other_runs_pass_too(tmp_path, mode):
    overrides = {
        "pause": ["run.stop_after_round=1", "privacy.accountant=pld", "privacy.renyi_orders=whole"],
        "discrete": ["privacy.noise=discrete_gaussian", "privacy.accountant=pld"],
        "fixed_size": ["privacy.sampling=fixed_size", "privacy.sampling_rate=0.75", "method=gdpfed"],
        "allocation": [
            *("privacy.sampling=allocation", "privacy.accountant=pld", "method=dp_fedavg"),
            "dataset.num_clients=40",
        ],
        "rates": ["method=gdpfed_star", "privacy.sampling_rates=[0.3,0.5,0.9]"],
        "fixed_rates": [
            *("method=gdpfed_star", "privacy.sampling_rates=[0.3,0.5,0.9]", "dataset.num_clients=25"),
            *("privacy.sampling=fixed_size", "privacy.adjacency=replace_one"),
        ],
        "no promise": ["method=fedavg", "privacy.noise=discrete_gaussian", "privacy.accountant=pld"],
        "tested at nodes": ["method=fedavg", "run.evaluation=nodes"],
    }[mode]
    run(tmp_path / "run", overrides)
    assert audit_run(tmp_path / "run").findings == ()


def lower_noise(plan):
    group = plan["groups"][1]
    group["noise_multiplier"] *= 0.8
    for charge in group["charges"]:
        charge["event"]["noise_stddev"] *= 0.8


def lower_stated_noise(plan):
    plan["groups"][1]["noise_multiplier"] *= 0.8


def charge_fewer_rounds(plan):
    plan["groups"][1]["charges"][0]["count"] -= 1


def charge_records(plan):
    plan["groups"][1]["charges"][0]["unit"] = "record"


def forget_a_charge(ledger):
    ledger["charges"][1][0]["count"] -= 1


def test_rates_that_a_plan_does_not_take_from_its_configuration_are_found(tmp_path):
    run(tmp_path / "run", ["method=gdpfed_star", "privacy.sampling_rates=[0.3,0.5,0.9]", "run.num_rounds=1"])
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("- 0.3\n", "- 0.2\n"))
    found = audit_run(tmp_path / "run").findings
    assert "plan.json has sampling rate 0.3 of group 0, the configuration 0.2" in found


def lower_rate(plan):
    plan["groups"][1]["sampling_rate"] *= 0.5


def raise_budget(plan):
    plan["groups"][1]["epsilon"] = 4.0


def drop_round(records):
    return [records[0], records[2]]


def claim_less(records):
    records[1]["spent_epsilon"][2] *= 0.9


def claim_less_against_server(records):
    records[2]["epsilon_against_server"] = [0.01, 0.01, 0.01]


def ask_for_less_noise(records):
    # A cohort is drawn, so a sum may be empty by chance. It asks for noise of 0, which 0.9 leaves as it is.
    noise = next(record["noise_stddevs"] for record in records if any(record["noise_stddevs"]))
    noise[next(number for number, stddev in enumerate(noise) if stddev)] *= 0.9


def claim_too_many_in_reach(records):
    records[0]["reachable"] = [5, 4, 4]


def claim_few_in_reach(records):
    for record in records:
        record["reachable"] = [size // 4 for size in record["cohort_sizes"]]


def hide_a_group(records):
    sizes, groups = records[0]["cohort_sizes"], records[0]["groups_in_sums"]
    sizes[0], groups[0] = max(1, sizes[0]), [1]


def ask_too_many(records):
    records[0]["cohort_sizes"][0] += 25


def sum_over_more(records):
    records[0]["survivors"][0] += 24


def count_less(ledger):
    client = next(iter(ledger["participations"][2]))
    del ledger["participations"][2][client]


def count_a_stranger(ledger):
    ledger["participations"][0]["11"] = 1


def charge_less(ledger):
    ledger["charged_rounds"] = 1


def charge_more(ledger):
    ledger["charged_rounds"] = 5


def another_plan(ledger):
    ledger["plan"] = "0" * 64


def swap_groups(assignment):
    assignment["clients"][0], assignment["clients"][1] = assignment["clients"][1], assignment["clients"][0]


def clients_twice(assignment):
    assignment["clients"][0][0][1] += 1


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("plan.json", lower_noise, r"ledger was opened for plan \w+, but plan.json and assignment.json make"),
        ("plan.json", lower_noise, r"group 1 was planned for a budget of 3, but its 3 rounds cost \d\.\d+"),
        ("plan.json", lower_noise, r"the ledger's charges of group 1 are not those of 3 rounds of the plan"),
        ("plan.json", lower_stated_noise, r"charges of group 1 are not those of its rate, size and noise"),
        ("plan.json", charge_fewer_rounds, r"the charges of group 1 are for 2 rounds, the plan has 3"),
        ("plan.json", charge_records, r"group 1 is charged per record, the plan protects a client"),
        (
            "ledger.json",
            forget_a_charge,
            r"charges of group 1 are not those of 3 rounds of the plan",
        ),
        ("plan.json", lower_rate, r"one of them was changed"),
        (
            "plan.json",
            raise_budget,
            r"has groups with budgets of \[.*4.*\], the configuration \[1.0, 3.0, 6.0\]",
        ),
        ("rounds.jsonl", drop_round, r"rounds.jsonl has rounds \[1, 3\], not 1 to 2 in order"),
        ("rounds.jsonl", claim_less, r"round 2 records epsilon \S+ of group 2, where \S+ is spent"),
        ("rounds.jsonl", claim_less_against_server, r"records epsilon 0.01 against the server in group"),
        ("rounds.jsonl", ask_for_less_noise, r"round \d asked sum \d for noise of standard deviation"),
        ("rounds.jsonl", hide_a_group, r"round 1 asked \d+ clients of group 0, which is in none of its sums"),
        ("rounds.jsonl", ask_too_many, r"round 1 has a cohort of \d+ in group 0, not to be expected"),
        ("rounds.jsonl", ask_too_many, r"the ledger counts \d+ participations in group 0, rounds.jsonl \d+"),
        ("rounds.jsonl", claim_too_many_in_reach, r"has 5 clients in reach, group 0 has 4"),
        ("rounds.jsonl", claim_few_in_reach, r"has a cohort of \d+ in group \d, not to be expected"),
        ("rounds.jsonl", sum_over_more, r"round 1 has sums over \d+ clients, of \d+ that were asked"),
        ("ledger.json", count_less, r"participations in group 2, rounds.jsonl \d+: one of them was changed"),
        ("ledger.json", count_a_stranger, r"the ledger counts client 11 in group 0, which it is not in"),
        ("ledger.json", charge_less, r"rounds.jsonl has 3 rounds, the ledger 1: a round is charged before"),
        ("ledger.json", charge_more, r"the ledger has 5 charged rounds, the plan 3"),
        ("ledger.json", another_plan, r"ledger was opened for plan 000000000000"),
        ("assignment.json", swap_groups, r"one of them was changed"),
        ("assignment.json", clients_twice, r"assignment.json has a client in two groups"),
        ("assignment.json", clients_twice, r"group 0 has 5 clients in assignment.json, 4 in plan.json"),
    ],
)
def test_every_change_is_found(directory, file, change, words, capsys):
    if file == "rounds.jsonl":
        edit_rounds(directory, change)
    else:
        edit_json(directory / file, change)
    assert main(["audit", str(directory)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(words, shown)
    assert "does NOT hold" in shown
    # Figures that the files contradict prove nothing: no group of a rejected run has held.
    assert "yes" not in shown
    assert "unproved" in shown or "NO" in shown


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "clipping_norm: 2.0",
            "clipping_norm: 1.0",
            "plan.json has clipping_norm 2.0, the configuration 1.0",
        ),
        (
            "  num_rounds: 3\n  seed",
            "  num_rounds: 30\n  seed",
            "plan.json has num_rounds 3, the configuration 30",
        ),
        ("num_clients: 12", "num_clients: 13", "assignment.json has 12 clients, the configuration 13"),
        ("  mode: curious", "  mode: 'off'", "plan.json has sums_hidden True, the configuration False"),
    ],
)
def test_a_changed_configuration_is_found(directory, before, after, words):
    text = (directory / "config.yaml").read_text()
    assert before in text
    (directory / "config.yaml").write_text(text.replace(before, after))
    assert any(words in finding for finding in audit_run(directory).findings)


def test_a_member_with_a_smaller_budget_than_its_group_is_found(tmp_path):
    said = [1.0 + k % 3 for k in range(12)]
    run(
        tmp_path / "run",
        ["privacy.budgets=clients", f"privacy.client_budgets={said}", "run.num_rounds=1"],
    )
    assert audit_run(str(tmp_path / "run")).passed
    path = tmp_path / "run" / "config.yaml"
    before, said_there, after = path.read_text().partition("client_budgets:")
    path.write_text(before + said_there + after.replace("- 3.0\n", "- 0.5\n", 1))
    sealed, of_plan, finding = audit_run(tmp_path / "run").findings
    assert "privacy.client_budgets" in of_plan
    assert sealed.startswith("config.yaml is not the file that the run wrote")
    assert "client 2 has a budget of 0.5, but group 2, which it is in, is planned for 3" in finding


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("text", ["", "nonsense: [", "[1]", "{}"])
def test_damaged_files_are_one_line(directory, file, text, capsys):
    (directory / file).write_text(text + "\n" if text else "")
    assert main(["audit", str(directory)]) == 1
    captured = capsys.readouterr()
    if file == "rounds.jsonl" and not text:
        assert "rounds.jsonl has 0 rounds, the ledger 3" in captured.out
    else:
        assert captured.err.startswith("gdpfed: ")
        assert captured.err.count("\n") == 1


def test_no_directory_is_one_line(tmp_path):
    with pytest.raises(ReportError, match="nowhere is not a run directory"):
        audit_run(tmp_path / "nowhere")
    for name in ("one", "two"):
        (tmp_path / "sweep" / name).mkdir(parents=True)
        (tmp_path / "sweep" / name / "plan.json").touch()
    with pytest.raises(ReportError, match=r"sweep holds 2 runs: name one, such as .*/sweep/one$"):
        audit_run(tmp_path / "sweep")


def test_infinite_figures_are_null_in_json(tmp_path, capsys):
    run(tmp_path / "run", ["method=fedavg", "run.num_rounds=1"])
    main(["audit", str(tmp_path / "run"), "--json"])
    assert json.loads(capsys.readouterr().out)["groups"][0]["budget"] is None
    assert math.isinf(audit_run(tmp_path / "run").groups[0].budget)
