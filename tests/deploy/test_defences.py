"""The list of defences fits the code; what it costs to take them away is for ``make test-defences``."""

import compileall
from pathlib import Path

import pytest
from defences import DEFENCES, FILES, FOLDERS, take_away
from faulty_app import copy_of_project


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: defence.name)
def test_what_is_taken_away_is_there_and_what_is_left_is_python(tmp_path, defence):
    copy_of_project(tmp_path, FOLDERS, FILES)
    take_away(defence, tmp_path)
    for file, _, _ in defence.removals:
        assert compileall.compile_file(tmp_path / file, quiet=1)


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: defence.name)
def test_its_test_is_there(defence):
    name = defence.test.partition("[")[0]
    assert f"def {name}(" in Path(__file__).with_name("test_faults.py").read_text()
