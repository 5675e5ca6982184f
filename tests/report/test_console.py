"""Tests of console output: tables show each number and name in full, and progress takes one line."""

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from gdpfed.report.console import Fitted, OutputConsole
from gdpfed.report.facts import Fact, FactLines
from gdpfed.report.progress import RunProgress
from gdpfed.runs.round_log import RoundLogEntry

NAMES = [f"method_{letter}, clipping_norm {letter}.5" for letter in "abc"]


def table():
    made = Table(title="Some figures", caption="what they are")
    for heading in ("name", *(f"figure number {index}" for index in range(9))):
        made.add_column(heading, justify="right")
    for row, name in enumerate(NAMES):
        made.add_row(name, *(f"{row}{index}.25 ± 1" for index in range(9)))
    return made


@pytest.mark.parametrize("width", [200, 130, 100, 80, 40])
def test_no_figure_and_no_name_is_lost(width):
    console = Console(file=StringIO(), width=width, record=True)
    console.print(Fitted(table()))
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= width
    assert all(f"{row}{index}.25 ± 1" in shown for row in range(3) for index in range(9))
    assert all(word in shown for name in NAMES for word in name.split())
    assert shown.count("Some figures") == shown.count("what they are") == 1
    bands = shown.count("┏")
    assert shown.count("method_a") == bands
    assert (bands == 1) == (width >= 130)


@pytest.mark.parametrize("groups", [3, 6])
def test_the_progress_is_one_line_of_80_columns(groups):
    console = Console(file=StringIO(), width=80, record=True)
    budgets = [float(each) for each in range(1, groups + 1)]
    record = RoundLogEntry(30, 0.5, 1.0, [], [], {}, [each / 8 for each in budgets], [])
    progress = RunProgress(
        Console(file=StringIO(), force_terminal=True), 30, budgets, waiting="...", against="everyone"
    )
    progress.update([record])
    console.print(progress._progress.get_renderable())
    (line,) = console.export_text().splitlines()
    assert len(line.rstrip()) <= 80
    spent = [f"{each / 8:.2f}/{each:g}" for each in budgets]
    shown = spent if groups == 3 else [spent[0], "to", spent[-1]]
    assert f"accuracy 50.0 %  epsilon {' '.join(shown)}" in line
    assert "30/30" in line


def test_a_notebook_gets_no_codes_for_a_terminal(monkeypatch):
    """In a notebook, output has no terminal codes, even where the environment asks for colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert OutputConsole().is_terminal
    monkeypatch.setenv("JPY_PARENT_PID", "7")
    console = OutputConsole()
    with console.capture() as captured:
        console.print("[bold]epsilon 3[/bold]")
    assert captured.get() == "epsilon 3\n"
    assert not console.is_terminal


def test_facts_are_lines_of_a_name_and_a_value_within_the_width():
    facts = [Fact("who", "360 clients"), Fact("inference", "at most 15.5 % " * 5), Fact("sigma", "4", True)]
    lines = list(FactLines(facts).lines(40))
    assert lines[0] == "who        360 clients"
    assert all(line.startswith("           at") for line in lines[2:])
    assert max(map(len, lines)) <= 40
    assert not any(line.endswith("15.5") for line in lines)
    assert list(FactLines(facts, details=True).lines(40))[-1] == "sigma      4"
