"""Test of a method that shows its plan in its own tables."""

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.methods import make_method
from gdpfed.methods.base import PlanTable
from gdpfed.report.plan_table import plan_lines


def test_tables_of_a_method_take_the_place_of_the_usual_one(monkeypatch):
    method = make_method(load(["dataset=digits", "method=fedavg"]))
    assert any("no privacy" in line for line in plan_lines(method, SecAggConfig()))
    own = PlanTable(
        title="two edges",
        headings=("edge", "noise"),
        rows=[("north", "0.25"), ("south", "12.5")],
        notes=["Noise is a guess."],
        text_columns=("edge",),
    )
    monkeypatch.setattr(type(method), "plan_tables", lambda self: [own, own])
    lines = [line.strip() for line in plan_lines(method, SecAggConfig())]
    assert lines.count("two edges") == lines.count("* Noise is a guess.") == 2
    assert "│ north │  0.25 │" in lines
    assert "no privacy" not in " ".join(lines)
