"""Tests of the list of defences: the code contains each defence, and the test that it names exists."""

from pathlib import Path

import pytest
import yaml

from tests.deploy.defences import DEFENCES, without


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: defence.name)
def test_what_is_taken_away_is_there_and_what_is_left_can_be_read(defence):
    for file, text in without(defence).items():
        if file.endswith(".yml"):
            assert yaml.safe_load(text)
        else:
            compile(text, file, "exec")


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: defence.name)
def test_its_test_is_there(defence):
    file, _, test = defence.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
