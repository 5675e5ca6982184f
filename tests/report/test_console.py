"""Tables show each figure whole at any width, and progress wraps where a terminal is narrow."""

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from gdpfed.report.console import Fitted
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


def test_the_progress_of_six_groups_fits_on_80_columns():
    console = Console(file=StringIO(), width=80, record=True)
    budgets = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    record = RoundLogEntry(1, 0.5, 1.0, [], [], {}, [each / 8 for each in budgets], [])
    progress = RunProgress(
        Console(file=StringIO(), force_terminal=True), 30, budgets, waiting="...", against="everyone"
    )
    progress.update([record])
    console.print(progress._progress.get_renderable())
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    words = ("1/30", "accuracy 50.0 %", *(f"{each / 8:.2f}/{each:g}" for each in budgets), "left")
    assert [word for word in words if word not in shown] == []
