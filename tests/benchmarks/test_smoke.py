"""Tests that each benchmark that needs one process runs at tiny size; `make bench-smoke` runs all of them."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.smoke import BENCHMARKS, NO_BENCHMARKS, run_tiny
from gdpfed.learning.models import MODELS
from testing.project import PROJECT


@pytest.mark.parametrize("name", [name for name, tiny in BENCHMARKS.items() if tiny.alone])
def test_a_benchmark_runs_and_shows_its_table(name, tmp_path, monkeypatch, capsys):
    # Some register models of their own.
    monkeypatch.setattr(MODELS, "_items", dict(MODELS._items))
    assert run_tiny(name, tmp_path) == 0
    assert "Measured by `" in capsys.readouterr().out


def test_every_benchmark_has_a_tiny_size():
    there = {path.stem for path in Path(PROJECT, "benchmarks").glob("*.py")} - {"__init__"}
    there |= {path.parent.name for path in Path(PROJECT, "benchmarks").glob("*/__main__.py")}
    assert there - NO_BENCHMARKS == set(BENCHMARKS)
    assert all(find_spec(f"benchmarks.{name}") for name in BENCHMARKS)
