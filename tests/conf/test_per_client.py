"""Tests of settings with one number per client, given as a list, a file or a distribution."""

import json
import re

import numpy as np
import pytest
import yaml

from conf.load import load, to_yaml
from conf.per_client import spelled_out
from gdpfed.errors import ConfigError
from gdpfed.runs.paths import FOLDERS, check_paths

OWN = ["dataset.num_clients=6", "privacy.budgets=clients"]


def test_a_list_a_file_and_a_distribution_give_the_same_setting(tmp_path):
    file = tmp_path / "budgets of all.txt"
    file.write_text("# epsilon\n1\n0.5  # a strict one\n\n2\n8\n3.25\n1e0\n")
    numbers = [1.0, 0.5, 2.0, 8.0, 3.25, 1.0]
    for value in (json.dumps(numbers), str(file), f"'{file}'"):
        assert load([*OWN, f"privacy.client_budgets={value}"]).privacy.client_budgets == numbers
    config = load([*OWN, "privacy.client_budgets=loguniform(0.5,8)"])
    drawn = config.privacy.client_budgets or []
    assert len(set(drawn)) == 6
    assert all(0.5 <= each <= 8 for each in drawn)
    assert load([*OWN, "privacy.client_budgets=loguniform(0.5,8)"]) == config
    assert load([*OWN, "privacy.client_budgets=loguniform(0.5,8)", "run.seed=1"]).privacy != config.privacy
    # What is saved is the numbers, and a run that goes on needs neither file nor draw.
    saved = yaml.safe_load(to_yaml(config))
    assert load([], begun=saved).privacy == config.privacy
    assert load(spelled_out([*OWN, "privacy.client_budgets=loguniform(0.5,8)"], config)) == config


def test_the_distributions_are_what_they_say():
    many = ["dataset.num_clients=20000", "privacy.budgets=clients"]
    logs = np.log(load([*many, "privacy.client_budgets=loguniform(0.5,8)"]).privacy.client_budgets or [])
    assert np.quantile(logs, [0.25, 0.5]) == pytest.approx(np.log([1, 2]), abs=0.03)
    flat = load([*many, "privacy.client_budgets=uniform(1,5)"]).privacy.client_budgets or []
    assert np.quantile(flat, [0.25, 0.5]) == pytest.approx([2, 3], abs=0.06)
    records = ["dataset.num_clients=50", "privacy=record_level", "method=dp_sgd"]
    counts = load([*records, "privacy.client_records=uniform(10,20)"]).privacy.client_records
    assert {type(each) for each in counts or ()} == {int}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[1,2,x]", "privacy.client_budgets: entry 3 is 'x', which is not a number"),
        ("[1,,2]", "privacy.client_budgets: entry 2 is '', which is not a number"),
        ("[1,2", "privacy.client_budgets=[1,2 opens a [ and does not close it: in a shell put"),
        ("[1,nan]", "entry 2 is 'nan': give a finite number"),
        ("nowhere.txt", "privacy.client_budgets=nowhere.txt is not a file: give a list, a file with"),
        (
            "~nobody-of-that-name/a.txt",
            "privacy.client_budgets=~nobody-of-that-name/a.txt: there is no user of that name here",
        ),
        ("gamma(1,2)", "gamma(1,2) is not known: use uniform(LEAST, MOST) or loguniform(LEAST, MOST)"),
        ("uniform(2,1)", "privacy.client_budgets=uniform(2,1) needs two numbers above 0, the smaller one"),
        ("uniform(a,1)", "privacy.client_budgets is 'a', which is not a number"),
    ],
)
def test_what_is_none_is_one_line(value, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        load([*OWN, f"privacy.client_budgets={value}"])
    assert "\n" not in str(error.value)


def test_a_file_names_its_line_and_long_lists_stay_out_of_messages(tmp_path):
    file = tmp_path / "budgets.txt"
    file.write_text("1\n2\nepsilon\n")
    with pytest.raises(ConfigError, match=re.escape(f"{file}: line 3 is 'epsilon', which is not a number")):
        load([*OWN, f"privacy.client_budgets={file}"])
    with pytest.raises(ConfigError, match=re.escape("privacy.client_budgets=[1.0, ...] goes with")):
        load(["privacy.client_budgets=[1" + ",1" * 999 + "]"])
    with pytest.raises(ConfigError, match="has 2.5: give a whole number"):
        load(["privacy.client_records=[2.5]"])


def test_a_submitter_names_files_of_numbers_below_the_operators_folders_only(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDERS, str(tmp_path))
    check_paths([f"privacy.client_budgets={tmp_path / 'own.txt'}", "privacy.client_aversions=[0.1,0.2]"])
    check_paths(["privacy.client_budgets=loguniform(1,2)"])
    with pytest.raises(ConfigError, match=re.escape("privacy.client_budgets=/etc/hostname lies outside of")):
        check_paths(["privacy.client_budgets=/etc/hostname"])
