"""Tests of ``gdpfed settings``: it lists all settings with descriptions, and can search them."""

from dataclasses import asdict

import pytest

from conf.load import load, options
from conf.option_files import method_configs
from conf.settings import setting_groups
from gdpfed.cli import main


def said(capsys, *words):
    assert main(["settings", *words]) == 0
    return capsys.readouterr().out


def test_every_setting_of_the_schema_is_there_with_words_and_its_default():
    found = [setting for group in setting_groups() for setting in group.settings]
    expected = {
        f"{group}.{key}" for group, section in asdict(load()).items() for key in section if group != "method"
    }
    of_methods = {
        f"method.{key}" for schema in method_configs().values() for key in schema.__dataclass_fields__
    }
    assert {each.key for each in found} == (expected | of_methods) - {"dataset.name", "method.name"}
    assert [each.key for each in found if not each.words] == []
    given = [f"{each.key}={each.default}" for each in found if not each.owners and not each.source]
    assert load(given) == load()
    for method in method_configs():
        own = [f"{each.key}={each.default}" for each in found if method in each.owners]
        assert load([f"method={method}", *own]).method == load([f"method={method}"]).method


def test_every_option_file_says_what_it_is():
    for group in setting_groups():
        assert list(group.options) == list(options(group.name))
        assert [option for option, words in group.options.items() if not words] == []


def test_the_list_is_80_columns_wide_and_can_be_searched(capsys):
    whole = said(capsys, "--all")
    assert max(map(len, whole.splitlines())) <= 80
    assert "privacy.accountant=pld\n    pld | rdp | theorem1\n" in whole
    assert "privacy.clipping_norm=2  (number; as dataset.clipping_norm says)\n" in whole
    assert "method.history=10  (whole number; of pfa)" in whole
    group = said(capsys, "secagg", "DROPOUT")
    assert "secagg=off\n    No masks, for comparison" in group
    keys = [line.partition("=")[0] for line in group.splitlines() if line.startswith("secagg.")]
    assert keys == ["secagg.dropout_tolerance", "secagg.noise_levels"]
    assert said(capsys, "dataset=svhn", "num_clients").startswith(
        "dataset.num_clients=6000  (whole number)\n"
    )


def test_without_a_word_the_groups_are_listed_with_counts(capsys):
    lines = said(capsys).splitlines()
    assert max(map(len, lines)) <= 80
    counted = {line.split()[0]: line for line in lines[:-2]}
    found = {group.name: group for group in setting_groups(names=["secagg", "run"])}
    assert set(found) == {"secagg", "run"}
    of_methods = {key for schema in method_configs().values() for key in schema.__dataclass_fields__}
    assert f" {len(method_configs())} options, {len(of_methods - {'name'})} settings" in counted["method"]
    assert set(counted) == {"dataset", "training", "method", "privacy", "secagg", "run", "simulation"}
    for name, group in found.items():
        assert f" {len(group.settings)} settings" in counted[name]
        assert f" {len(group.options)} options" in counted[name] or len(group.options) == 1


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (
            ["epsilonn", "budjets"],
            "no setting has 'epsilonn budjets' in its name or description; did you mean",
        ),
        (
            ["dataset=mnist"],
            "dataset=mnist is not known; did you mean fmnist? Use breast_cancer, cifar10, ",
        ),
        (["run.seed=1"], "'run.seed=1' chooses no option: the groups are dataset, method"),
    ],
)
def test_what_is_not_there_is_one_line(capsys, words, refusal):
    assert main(["settings", *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert refusal in captured.err
