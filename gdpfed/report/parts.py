"""Metrics of the released model on parts of the test examples: by party, and by privacy budget."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from gdpfed.errors import ReportError
from gdpfed.learning.labels.intervals import FEWEST
from gdpfed.report.console import Table
from gdpfed.report.metric_display import ABSENT, TOO_FEW, MetricDisplay
from gdpfed.runs.file_formats import PARTS_FILE, read_result, versioned

INTERVALS = (
    "Intervals are those of chance alone, at 95 %: Wilson's of a share, of an area under a curve by the "
    "error of Hanley and McNeil, of others by the bootstrap; examples count as independent of each other. "
    f"Of fewer than {FEWEST} examples nothing is shown."
)
NOT_PRIVATE = {"private": False}
"""What the file says of its values: they carry no noise, so no budget covers them."""
MOST_FEW = 20
"""Parties with too few examples that have a row each; more of them share one."""
HEADINGS = ("run", "test examples of", "number")
NOTE = (
    "The released model on the test examples of each party, and of all parties whose budget is the same. "
    f"{INTERVALS} They are no part of the training, and these figures carry no noise."
)


@dataclass(frozen=True)
class Part:
    """Metrics of the model on some test examples: those of one party, or those with the same budget.

    `name`: whose examples they are. `examples`: how many. `metrics`: by name; None where one is not defined
    on them. `intervals`: their ends at 95 %, by name; None where there are none.
    """

    name: str
    examples: int
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Sequence[float] | None]

    def shown(self, metric: str) -> tuple[str, str]:
        """Write a metric's value and interval, or a note that there are too few examples."""
        form = MetricDisplay.of(metric)
        if self.examples < FEWEST:
            return TOO_FEW, ABSENT
        ends = self.intervals.get(metric)
        between = ABSENT if ends is None else " to ".join(form.text(end).removesuffix(" %") for end in ends)
        return form.text(self.metrics.get(metric)), between


@dataclass(frozen=True)
class Parts:
    """Metrics of the released model on each party's test examples, and on those of each privacy budget."""

    parties: Sequence[Part]
    budgets: Sequence[Part]

    @property
    def all(self) -> list[Part]:
        """The metrics of every party, followed by those of all parties with the same budget."""
        return [*self.parties, *self.budgets]

    @property
    def rows(self) -> list[Part]:
        """The rows of a table; if many parties have too few examples, these share one row."""
        few = [each for each in self.parties if each.examples < FEWEST]
        if len(few) <= MOST_FEW:
            return self.all
        together = Part(f"{len(few)} parties", max(each.examples for each in few), {}, {})
        return [*(each for each in self.parties if each.examples >= FEWEST), together, *self.budgets]

    def to_json(self) -> str:
        """Return the metrics as JSON text, which :meth:`read` reads."""
        return json.dumps(versioned(NOT_PRIVATE | asdict(self)), allow_nan=False, indent=1)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the metrics by party from a run's directory; None if there are none.

        Raises:
            ReportError: it is damaged.
            RunError: it is of another format.
        """
        return read_result(directory / PARTS_FILE, "results by party", cls._of_values, ReportError)

    @classmethod
    def _of_values(cls, values: dict[str, Any]) -> Self:
        lists = {name: value for name, value in values.items() if name not in NOT_PRIVATE}
        return cls(**{name: [Part(**part) for part in parts] for name, parts in lists.items()})


def parts_table(found: Sequence[tuple[str, Parts]], metric: str) -> Table:
    """Return a table of one metric, with a row for each run and each party or privacy budget in it.

    `found`: label and parts of every run that has some. `metric`: the one that is shown, by name.
    """
    shown = MetricDisplay.of(metric)
    return Table(
        title="By party and by budget",
        headings=(*HEADINGS, shown.heading, "95 % interval"),
        rows=[
            [
                label if index == 0 else "",
                part.name,
                f"up to {part.examples}" if part not in parts.all else str(part.examples),
                figure.removesuffix(" %"),
                interval,
            ]
            for label, parts in found
            for index, part in enumerate(parts.rows)
            for figure, interval in [part.shown(metric)]
        ],
        note=NOTE,
    )
