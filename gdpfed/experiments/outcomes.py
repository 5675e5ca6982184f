"""What came of the cells: read back from the runs, complete or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdpfed.experiments.cells import Cell
from gdpfed.experiments.runs import CellRun
from gdpfed.report.finished_run import FinishedRun, read_run
from gdpfed.report.lines import Line

NOT_YET = "not run yet"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A cell with its finished runs.

    Attributes:
        runs: all runs that belong to it, finished or not.
        finished: those that are.
        reason: why none of them is; None if one is.
    """

    cell: Cell
    runs: tuple[CellRun, ...]
    finished: tuple[FinishedRun, ...]
    reason: str | None

    @property
    def line(self) -> Line | None:
        """The finished runs as one line; None without any."""
        return Line(self.cell.row, self.finished) if self.finished else None


def outcomes_of(
    cells: Sequence[Cell], runs: Sequence[CellRun], reasons: Mapping[tuple[str, str, str], str]
) -> list[Outcome]:
    """Every cell's finished runs.

    Raises:
        ReportError: a damaged run; names its directory.
    """
    return [_outcome(cell, tuple(run for run in runs if run.cell is cell), reasons) for cell in cells]


def _outcome(cell: Cell, runs: tuple[CellRun, ...], reasons: Mapping[tuple[str, str, str], str]) -> Outcome:
    finished = tuple(read_run(run.path) for run in runs if run.finished)
    reason = None if finished else reasons.get(cell.place, NOT_YET)
    return Outcome(cell, runs, finished, reason)
