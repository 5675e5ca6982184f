"""Tests, at tiny size, of the benchmark that compares the speed of our private steps with Opacus's."""

import json
import sys
from dataclasses import replace

import pytest

from benchmarks.records import __main__ as benchmark
from benchmarks.records import our_steps
from benchmarks.records.work import OPACUS_PYTHON, Work, measure_each, opacus_python
from benchmarks.simulation.work import RESULT_LINE
from gdpfed.learning.training.step_recording import recorder

TINY = Work(model="linear", threads=1, num_records=40, expected_batch=8, num_steps=2, repeats=2)


@pytest.mark.parametrize(("way", "form"), [("", "closed form"), ("tape", "one pass"), ("plain", "")])
def test_our_steps_are_measured_for_each_work(way, form, monkeypatch, capsys):
    works = [vars(TINY), vars(replace(TINY, repeats=3))]
    monkeypatch.setattr(sys, "argv", ["our_steps", json.dumps({"works": works, "way": way})])
    measure_each(our_steps.measured)
    results = json.loads(capsys.readouterr().out.removeprefix(RESULT_LINE))["results"]
    assert [len(each["seconds"]) for each in results] == [2, 3]
    assert all(second > 0 for each in results for second in each["seconds"])
    assert results[0]["form"].endswith(form)


def test_steps_are_recorded_where_the_device_records(monkeypatch):
    class Again:
        def __init__(self, act):
            self.replay = act

    asked = []

    def recording(device, graphs):
        asked.append((device.type, graphs))
        return Again if graphs else recorder(device)

    monkeypatch.setattr(our_steps, "recorder", recording)
    forms = [our_steps.measured(TINY, way)["form"] for way in ("", "called")]
    assert asked == [("cpu", True), ("cpu", False)]
    assert forms == ["many records at once in closed form" + words for words in (", a graph a step", "")]


def test_a_race_has_a_table_for_each_work(monkeypatch):
    def found(program, settings, **how):
        each = {"seconds": [0.5, 0.25] if program == "our_steps" else [1.0], "form": "a form", "version": "1"}
        return {"results": [each] * len(settings["works"])}

    monkeypatch.setattr(benchmark, "run_alone", found)
    tables = benchmark.race([TINY, replace(TINY, device="cuda")], 1, ["ghost"])
    assert [table.title for table in tables] == [
        f"linear{place}, 40 records, 8 a step in the mean" for place in ("", " on a GPU")
    ]
    assert [row[0] for row in tables[0].rows] == ["ours", "Opacus 1, ghost clipping", benchmark.PLAIN]
    assert tables[0].rows[1][-1] == f"{1.0 / 0.375:.2f}"


def test_opacus_is_run_by_its_own_environment_or_by_this_one(monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.records.work.find_spec", lambda name: None)
    assert opacus_python() == OPACUS_PYTHON
    monkeypatch.setattr("benchmarks.records.work.OPACUS_PYTHON", tmp_path / "none")
    monkeypatch.setattr("benchmarks.records.work.find_spec", lambda name: object())
    assert str(opacus_python()) == sys.executable
