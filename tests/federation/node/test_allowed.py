"""Tests of the overrides that a node's operator allows: runs with any other override are refused."""

import pytest

from gdpfed.federation.node.allowed import check_overrides
from gdpfed.federation.node.node_config import OWN_SETTINGS, NodeConfigError

ALLOWED = "method=gdpfed run.* privacy.budgets"


@pytest.mark.parametrize(
    "words", ["", "method=gdpfed", "run.num_rounds=3 'privacy.budgets=[1, 3]'", "run.directory=/runs/a"]
)
def test_what_is_allowed_passes(words):
    check_overrides({"allowed-overrides": ALLOWED}, {"overrides": words})
    check_overrides({"allowed-overrides": f"x {ALLOWED} *"}, {"overrides": words, "faults": 1})


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("method=fedavg", "method=fedavg"),
        ("method=gdpfed secagg=off", "secagg=off"),
        ("run=other", "run=other"),
        ("++run.num_rounds=3", "++run.num_rounds=3"),
        ("~method", "~method"),
        ("runs.x=1", "runs.x=1"),
        ("privacy.budgets.0=9", "privacy.budgets.0=9"),
        ("'method=gdpfed", "'method=gdpfed"),
    ],
)
def test_what_is_not_allowed_is_refused_by_its_word(words, refused):
    with pytest.raises(NodeConfigError) as error:
        check_overrides({"allowed-overrides": ALLOWED}, {"overrides": words})
    assert repr(refused) in str(error.value)
    assert "leave it out" in str(error.value)
    check_overrides({}, {"overrides": words})


def test_another_key_of_a_run_is_refused_as_an_override_that_nobody_knows():
    with pytest.raises(NodeConfigError, match="overrides 'faults'"):
        check_overrides({"allowed-overrides": ALLOWED}, {"overrides": "", "faults": "{}"})


def test_the_setting_takes_words_and_no_empty_text():
    assert OWN_SETTINGS["allowed-overrides"].fits(ALLOWED)
    assert not OWN_SETTINGS["allowed-overrides"].fits("")
