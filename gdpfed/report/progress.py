"""A live line while a run trains: round, metric, and the spent budget of each group."""

from collections.abc import Sequence
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from gdpfed.report.metric_display import shown_in
from gdpfed.report.status import WITHOUT_A_SUM
from gdpfed.runs.round_log import RoundLogEntry

QUIET_SECONDS = 30.0
"""On something else than a terminal, a line says after this long without a round that the run goes on."""


class RunProgress:
    """Shows the rounds of a run as they are recorded; on something else than a terminal, one line each.

    Args:
        waiting: what is said until the first round is there.
    """

    def __init__(
        self, console: Console, num_rounds: int, budgets: Sequence[float | None], *, waiting: str
    ) -> None:
        self.console = console
        self.num_rounds = num_rounds
        self.budgets = budgets
        self.shown = 0
        self._began = self._said = monotonic()
        self._waiting = waiting
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=10, table_column=Column(no_wrap=True)),
            # It goes on several lines where the terminal is narrow; nothing else gives way.
            TextColumn("{task.description}", table_column=Column(overflow="fold")),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(waiting, total=num_rounds)

    def __enter__(self) -> Self:
        self._progress.start()
        if not self.console.is_terminal:
            self.console.print(self._waiting)
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def update(self, records: Sequence[RoundLogEntry]) -> None:
        """Show the newest of the records."""
        if len(records) > self.shown:
            self._began = self._said = monotonic()
        self._say_that_it_goes_on(len(records) + 1)
        for record in records[self.shown :]:
            if not self.console.is_terminal:
                self.console.print(f"round {record.round}/{self.num_rounds}  {self.describe(record)}")
            for name in record.failures:
                self.console.print(f"round {record.round}, {name}: {WITHOUT_A_SUM}")
        self.shown = len(records)
        if records:
            self._progress.update(
                self._task, completed=records[-1].round, description=self.describe(records[-1])
            )

    def _say_that_it_goes_on(self, under_way: int) -> None:
        now = monotonic()
        if self.console.is_terminal or under_way > self.num_rounds or now < self._said + QUIET_SECONDS:
            return
        self._said = now
        spent = f"{now - self._began:.0f} s"
        self.console.print(f"round {under_way}/{self.num_rounds} is under way for {spent}")

    def describe(self, record: RoundLogEntry) -> str:
        """The metric that is shown and spent budgets in a few words."""
        spent = [
            f"{epsilon:.2f}/{budget:g}"
            for epsilon, budget in zip(record.spent_epsilon, self.budgets, strict=True)
            if epsilon is not None and budget is not None
        ]
        budgets = f"  epsilon {' '.join(spent)}" if spent else ""
        return f"{shown_in(record)}{budgets}"
