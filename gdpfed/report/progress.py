"""Shows the progress of a run to someone who waits: on a terminal, in a pipe, in a notebook."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from gdpfed.decimal_numbers import counted
from gdpfed.report.metric_display import NOT_EVALUATED, WITHOUT_A_SUM, duration, shown_in
from gdpfed.runs.round_log import RoundLogEntry, failed_in

QUIET_SECONDS = 30.0
"""On something else than a terminal, a line says after this long without a round that the run goes on."""


TOLD_ALONE = 10
"""Of a run of more rounds than these, something else than a terminal is told every tenth."""
MOST_BUDGETS = 4
"""Spent budgets that a line names; of more it has the ends."""


class _OneLine(TextColumn):
    """A text column of a progress display; its text is cut to the terminal's width."""

    def __init__(self) -> None:
        super().__init__("{task.description}", table_column=Column(ratio=1))

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class RunProgress:
    """Shows a run's rounds while they are recorded: on a terminal as one line that changes.

    On something else than a terminal, a pipe or a notebook say, it is a line for the first round, for every
    tenth and for the last; of a run of ten rounds or fewer for each.

    `waiting`: what is said until the first round is there. `against`: whom epsilon holds against.
    """

    def __init__(
        self,
        console: Console,
        num_rounds: int,
        budgets: Sequence[float | None],
        *,
        waiting: str,
        against: str,
    ) -> None:
        self.console = console
        self.num_rounds = num_rounds
        self.budgets = budgets
        self.against = against
        self.shown = 0
        self._figure = NOT_EVALUATED
        self._began = self._said = monotonic()
        self._waiting = waiting
        self._progress = Progress(
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            BarColumn(bar_width=10, table_column=Column(no_wrap=True)),
            _OneLine(),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=console,
            disable=not console.is_terminal,
            expand=True,
        )
        self._task = self._progress.add_task(waiting, total=num_rounds)

    def __enter__(self) -> Self:
        self._progress.start()
        if not self.console.is_terminal:
            self.console.print(self._waiting)
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def go_on_after(self, records: Sequence[RoundLogEntry]) -> None:
        """Print after which round a resumed run continues; earlier rounds are not shown again."""
        if records:
            done, self.shown = f"{records[-1].round}/{self.num_rounds}", len(records)
            self._began = self._said = monotonic()
            self._progress.update(self._task, completed=records[-1].round)
            self.console.print(f"round {done} was the last one recorded: the run goes on after it")

    def update(self, records: Sequence[RoundLogEntry]) -> None:
        """Show the newest log entries of the run."""
        if len(records) > self.shown:
            self._began = self._said = monotonic()
        self._say_that_it_goes_on(len(records) + 1)
        for record in records[self.shown :]:
            if not self.console.is_terminal and self._is_told(record.round):
                said = f"round {record.round}/{self.num_rounds}  {self.describe(record)}"
                self.console.print(said, soft_wrap=True)
            for name in record.failures:
                self.console.print(f"{failed_in(record.round, name)}: {WITHOUT_A_SUM}")
        self.shown = len(records)
        if records:
            newest = records[-1]
            self._progress.update(
                self._task, completed=newest.round, description=self.describe(newest, against="")
            )

    def _is_told(self, number: int) -> bool:
        tenth = self.num_rounds <= TOLD_ALONE or number % TOLD_ALONE == 0
        return tenth or number in (1, self.num_rounds)

    def _say_that_it_goes_on(self, under_way: int) -> None:
        now = monotonic()
        if self.console.is_terminal or under_way > self.num_rounds or now < self._said + QUIET_SECONDS:
            return
        self._said = now
        spent = f"{now - self._began:.0f} s"
        self.console.print(f"round {under_way}/{self.num_rounds} is under way for {spent}")

    def describe(self, record: RoundLogEntry, *, against: str | None = None) -> str:
        """Describe a round briefly: the displayed metric and the spent budgets."""
        spent = [
            f"{epsilon:.2f}/{budget:g}"
            for epsilon, budget in zip(record.spent_epsilon, self.budgets, strict=True)
            if epsilon is not None and budget is not None
        ]
        if len(spent) > MOST_BUDGETS:
            spent = [spent[0], "to", spent[-1]]
        against = self.against if against is None else against
        whom = f" against {against}" if against else ""
        budgets = f"  epsilon{whom} {' '.join(spent)}" if spent else ""
        if record.evaluated:
            figure = shown_in(record)
            self._figure = f"{figure} in round {record.round}"
            return f"{figure}{budgets}"
        return f"{self._figure}{budgets}"


SLOW_SECONDS = 3.0
"""After this long a notebook or an interactive session is told what goes on."""


def is_interactive() -> bool:
    """Whether a person uses this process interactively: in a notebook, IPython, or Python's prompt."""
    return hasattr(sys, "ps1")


@contextmanager
def said_if_slow(words: str) -> Iterator[None]:
    """Tell an interactive user what a ``with`` block does, if it takes more than some seconds."""
    if not is_interactive():
        yield
        return
    with said_after(partial(print, flush=True), words):
        yield


@contextmanager
def said_after(say: Callable[[str], None], words: str) -> Iterator[None]:
    """Say what a ``with`` block does, once, if it takes more than some seconds."""
    timer = Timer(SLOW_SECONDS, say, [words])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # A process that is forked later is to find no second thread here.
        timer.join()


class RoundLines:
    """Prints a line about rounds in interactive sessions, less and less often, and one at the end.

    It is given the record of every round. `path`: the run directory.
    """

    def __init__(self, num_rounds: int, path: Path) -> None:
        self._num_rounds = num_rounds
        self._began = self._said = monotonic()
        self._first: tuple[int, float] | None = None
        print(f"training {counted(num_rounds, 'round')}; the run's files are in {path}", flush=True)

    def __call__(self, record: RoundLogEntry) -> None:
        """Print a line about this round, unless the last line is too recent."""
        now, left = monotonic(), self._num_rounds - record.round
        # Before the first round data are read and programs compiled, which no later round does.
        number, since = self._first = self._first or (record.round, now)
        if left and now - self._said < max(SLOW_SECONDS, (now - self._began) / 20):
            return
        self._said = now
        done = record.round - number
        a_round = (now - since) / done if done else record.seconds["total"]
        remaining = duration(a_round * left)
        print(f"round {record.round}/{self._num_rounds}: {shown_in(record)}, {remaining} left", flush=True)
