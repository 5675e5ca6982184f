"""Tests of budgets by party name: files show the names, and a party that hardly uses its budget is named."""

import json

import pytest

from conf.errors import ConfigError
from conf.load import load
from gdpfed.cli import main
from gdpfed.methods import make_method, resolve
from gdpfed.report.party_lines import party_lines
from testing.small_runs import nothing_drawn

COLUMNS = """\
label: {column: stays, classes: [no, yes]}
numeric: {age: [0, 100]}
party: {column: hospital, values: [bonn, fulda, kiel]}
purpose: to plan beds
period: 2020 to 2024
"""
THEIRS = ("privacy=record_level", "method=dp_sum", "privacy.budgets=clients")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    rows = [
        f"{age},{'yes' if age > 40 else 'no'},{party}"
        for age in range(20, 90)
        for party in ("bonn", "fulda", "kiel")
    ]
    (folder / "all.csv").write_text("\n".join(["age,stays,hospital", *rows, ""]))
    (folder / "columns.yaml").write_text(COLUMNS)
    return ("dataset=csv", f"dataset.path={folder}/all.csv", "dataset.num_clients=3")


def test_a_run_names_its_parties_wherever_it_speaks_of_them(data, tmp_path, capsys):
    words = (*data, *THEIRS, "privacy.client_budgets={kiel: 6, bonn: 1, fulda: 3}", "run.num_rounds=2")
    chosen = ("privacy.batch_rate=0.2", "training.local_steps=1", "secagg=off")
    assert main(["partition", *data]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "fulda" in line and "56" in line]
    with nothing_drawn():
        assert main(["simulate", *words, *chosen, f"run.directory={tmp_path}/run"]) == 0
    assert "epsilon by party: bonn: 1, fulda: 3, kiel: 6" in capsys.readouterr().out
    assignment = json.loads((tmp_path / "run" / "assignment.json").read_text())
    assert (assignment["parties"], assignment["clients"]) == (
        ["bonn", "fulda", "kiel"],
        [[[0, 1]], [[1, 2]], [[2, 3]]],
    )
    assert main(["audit", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["plan", *words, *chosen, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["parties"] == {"bonn": 1, "fulda": 3, "kiel": 6}
    assert planned["columns"] == assignment["columns"]
    card = (tmp_path / "run" / "model_card.md").read_text()
    for line in (
        "* purpose: to plan beds",
        "* records from: 2020 to 2024",
        "* predicted: stays, no or yes",
        "* from these columns: age",
        "* without any model: answering 'yes' always would be right for",
        "bonn, fulda and kiel have made one model together. It tells 'stays' from 1 facts about a case.",
        "| kiel | 6 | 6 |",
    ):
        assert line in card
    plain = card.partition("## In plain words")[2].partition("##")[0]
    assert not [word for word in ("epsilon", "delta", "noise", "gradient", "client") if word in plain]


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        (
            "{bonn: 1, fulda: 3, kiell: 6}",
            "names 'kiell', and the parties are bonn, fulda, kiel; did you mean 'kiel'?",
        ),
        ("{bonn: 1, fulda: 3}", "names no budget for kiel: name one for each party"),
        ("{bonn: 1, fulda}", "is not a list of names with a number each"),
        ("{bonn: one}", "is 'one', which is not a number"),
    ],
)
def test_names_that_do_not_fit_are_refused_in_one_line(data, budgets, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        make_method(load([*data, *THEIRS, f"privacy.client_budgets={budgets}"]))


def test_few_parties_have_a_rate_each_and_groups_with_sums_of_their_own_stay_three():
    budgets = "privacy.client_budgets=[1,2,3,4,5,6]"
    six = ("dataset=breast_cancer", "privacy.budgets=clients", budgets)
    assert resolve(load([*six, *THEIRS, "method.chosen=[]"])).privacy.num_groups == 6
    assert resolve(load([*six, "method=gdpfed_star"])).privacy.num_groups == 6
    assert resolve(load([*six, "method=gdpfed"])).privacy.num_groups == 3
    assert resolve(load([*six, *THEIRS, "method.chosen=[]", "privacy.num_groups=2"])).privacy.num_groups == 2
    many = ("privacy.budgets=clients", "privacy.client_budgets=uniform(1,6)", "method=gdpfed_star")
    assert resolve(load(many)).privacy.num_groups == 3


def test_a_party_of_whose_budget_little_is_used_is_named(data):
    words = (*data, *THEIRS, "privacy.client_budgets=[1,2,6]", "privacy.num_groups=2", "run.num_rounds=2")
    config = resolve(load([*words, "privacy.batch_rate=0.2"]))
    _, _, line = party_lines(config, make_method(config).plan)
    assert (
        line == "kiel: up to 6 is offered, and the plan uses 2: a larger privacy.num_groups uses more of it"
    )
