"""Tests of the benchmark that times a new user's first commands and names a command that fails."""

import sys

import pytest

from benchmarks import first_minutes
from gdpfed.errors import RunError

DRAW = "import pathlib; p = pathlib.Path('comparison'); p.mkdir(); [(p / n).touch() for n in {}]"


def steps(names):
    draw = (sys.executable, "-c", DRAW.format(list(names)))
    return (("wait", (sys.executable, "-c", "import time; time.sleep(0.2)")), ("draw", draw))


def test_every_step_is_timed_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(first_minutes, "STEPS", steps(first_minutes.PICTURES))
    found = first_minutes.first_minutes(tmp_path, with_environment=False)
    assert [step.words for step in found] == ["wait", "draw"]
    assert found[0].seconds >= 0.2 > found[0].processor_seconds
    total = sum(step.seconds for step in found)
    assert first_minutes.table_of(found).rows[-1][-1] == f"{total:.1f}"


def test_a_step_that_fails_or_draws_nothing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(first_minutes, "STEPS", steps(first_minutes.PICTURES[:1]))
    with pytest.raises(RunError, match=f"there is no comparison/{first_minutes.PICTURES[1]}"):
        first_minutes.first_minutes(tmp_path, with_environment=False)
    with pytest.raises(RunError, match="ended with 1: FileExistsError"):
        first_minutes.first_minutes(tmp_path, with_environment=False)
