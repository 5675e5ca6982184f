"""A round for its operator: a line of text, its values by name, and how far a run is while it trains."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isinf
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from gdpfed.learning.labels.classes import DEFAULT
from gdpfed.report.metric_display import shown_in
from gdpfed.runs.round_log import RoundLogEntry

WITHOUT_A_SUM = "no sum, rounds.jsonl says why"


def status_line(
    record: RoundLogEntry,
    budgets: Sequence[float],
    num_rounds: int,
    seconds_left: float,
    *,
    cohorts: bool,
    against: str,
) -> str:
    """Round, metric, cohort, survivors, epsilon spent and left of every group, time, failures.

    Without ``cohorts`` cohort, survivors, time and reasons of failures are left out: they tell of the draw.
    """
    failures = record.failures if cohorts else dict.fromkeys(record.failures, WITHOUT_A_SUM)
    failed = "".join(f"; {name}: {reason}" for name, reason in failures.items())
    shown = f"round {record.round}/{num_rounds}: {shown_in(record)}"
    spent = _budgets(record.spent_epsilon, budgets, against)
    left = f"{duration(seconds_left)} left{failed}"
    if not cohorts:
        return f"{shown}, {spent}, {left}"
    drawn = f"asked {each_of(record.cohort_sizes)}, in the sums {each_of(record.survivors)}"
    return f"{shown}, {drawn}, {spent}, {record.seconds['total']:.1f} s, {left}"


def each_of(sizes: Sequence[int]) -> str:
    """Format sizes of groups or sums, as in 3+4."""
    return "+".join(str(size) for size in sizes) or "0"


def _budgets(spent: Sequence[float | None], budgets: Sequence[float], against: str) -> str:
    if all(isinf(budget) for budget in budgets):
        return "no privacy"
    figures = [
        f"{epsilon:.2f}+{max(0.0, budget - epsilon):.2f}"
        for epsilon, budget in zip(spent, budgets, strict=True)
        if epsilon is not None
    ]
    whom = f" against {against}," if against else ""
    return f"epsilon{whom} spent+left {', '.join(figures)}"


def duration(seconds: float) -> str:
    """A time in words, as in 1 min 5 s."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole_seconds} s" if minutes else f"{whole_seconds} s"


def metrics_of(record: RoundLogEntry, *, cohorts: bool) -> dict[str, float]:
    """The figures of a round by name; groups and sums count from 0.

    Without ``cohorts`` nothing is among them that depends on who was drawn, the round's time included.
    """
    by_group: dict[str, Sequence[float | None]] = {"epsilon/group": record.spent_epsilon}
    if cohorts:
        by_group |= {
            "cohort/group": record.cohort_sizes,
            "survivors/sum": record.survivors,
            "epsilon_against_server/group": record.epsilon_against_server,
        }
    by_name: dict[str, float | None] = {DEFAULT: record.accuracy} | record.metrics | {"loss": record.loss}
    metrics = {f"test/{name}": value for name, value in by_name.items() if value is not None}
    for name, values in by_group.items():
        metrics |= {f"{name}_{k}": float(v) for k, v in enumerate(values) if v is not None}
    seconds = record.seconds if cohorts else {}
    return metrics | {f"seconds/{phase}": value for phase, value in seconds.items()}


QUIET_SECONDS = 30.0
"""On something else than a terminal, a line says after this long without a round that the run goes on."""


TOLD_ALONE = 10
"""Of a run of more rounds than these, something else than a terminal is told every tenth."""
MOST_BUDGETS = 4
"""Spent budgets that a line names; of more it has the ends."""


class _OneLine(TextColumn):
    """Text that is cut where the terminal ends, and never goes on below."""

    def __init__(self) -> None:
        super().__init__("{task.description}", table_column=Column(ratio=1))

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class RunProgress:
    """Shows the rounds of a run as they are recorded, on a terminal as one live line.

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

    def update(self, records: Sequence[RoundLogEntry]) -> None:
        """Show the newest of the records."""
        if len(records) > self.shown:
            self._began = self._said = monotonic()
        self._say_that_it_goes_on(len(records) + 1)
        for record in records[self.shown :]:
            if not self.console.is_terminal and self._is_told(record.round):
                said = f"round {record.round}/{self.num_rounds}  {self.describe(record)}"
                self.console.print(said, soft_wrap=True)
            for name in record.failures:
                self.console.print(f"round {record.round}, {name}: {WITHOUT_A_SUM}")
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
        """The metric that is shown and spent budgets in a few words; whom they hold against, unless told."""
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
        return f"{shown_in(record)}{budgets}"


SLOW_SECONDS = 3.0
"""After this long a notebook or an interactive session is told what goes on."""


def is_interactive() -> bool:
    """Whether a person types into this process: a notebook, IPython, or Python's own prompt."""
    return hasattr(sys, "ps1")


@contextmanager
def said_if_slow(words: str) -> Iterator[None]:
    """Say in an interactive session what a ``with`` block does, if it takes longer than a few seconds."""
    if not is_interactive():
        yield
        return
    timer = Timer(SLOW_SECONDS, partial(print, words, flush=True))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # A process that is forked later is to find no second thread here.
        timer.join()


class RoundLines:
    """Tells an interactive session how far a run is: less and less often, and at the end.

    It is given the record of every round. `path`: the run directory.
    """

    def __init__(self, num_rounds: int, path: Path) -> None:
        self._num_rounds = num_rounds
        self._began = self._said = monotonic()
        self._first: tuple[int, float] | None = None
        print(f"training {num_rounds} rounds; the run's files are in {path}", flush=True)

    def __call__(self, record: RoundLogEntry) -> None:
        """Say a line, unless the last one is too recent."""
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
