"""The metrics of the released model on the test examples of each party, and of each budget."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isinf
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gdpfed.errors import ReportError
from gdpfed.files import save_whole
from gdpfed.learning.data import Split
from gdpfed.learning.data.client_partition import client_of_owner
from gdpfed.learning.labels.intervals import FEWEST
from gdpfed.learning.training.evaluate import central_evaluation
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.report.console import Table
from gdpfed.report.metric_display import ABSENT, TOO_FEW, MetricDisplay
from gdpfed.rounds.observers import Observer, RunConcluded
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.file_formats import PARTS_FILE, read_result, versioned

INTERVALS = (
    "Intervals are those of chance alone, at 95 %: Wilson's of a share, of an area under a curve by the "
    "error of Hanley and McNeil, of others by the bootstrap; examples count as independent of each other. "
    f"Of fewer than {FEWEST} examples nothing is shown."
)
NOT_PRIVATE = {"private": False}
"""What the file says of its values: they carry no noise, so no budget covers them."""
HEADINGS = ("run", "test examples of", "number")
NOTE = (
    "The released model on the test examples of each party, and of all parties whose budget is the same. "
    f"{INTERVALS} They are no part of the training, and these figures carry no noise."
)


@dataclass(frozen=True)
class Part:
    """The metrics on some test examples.

    `name`: whose examples they are. `examples`: how many. `metrics`: by name; None where one is not defined
    on them. `intervals`: their ends at 95 %, by name; None where there are none.
    """

    name: str
    examples: int
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Sequence[float] | None]

    def shown(self, metric: str) -> tuple[str, str]:
        """A printed metric with its interval, or a note that there are too few examples."""
        form = MetricDisplay.of(metric)
        if self.examples < FEWEST:
            return TOO_FEW, ABSENT
        ends = self.intervals.get(metric)
        between = ABSENT if ends is None else " to ".join(form.text(each).removesuffix(" %") for each in ends)
        return form.text(self.metrics.get(metric)), between


@dataclass(frozen=True)
class Parts:
    """Metrics of the released model by party and by budget; no budgets if parties are not clients."""

    parties: Sequence[Part]
    budgets: Sequence[Part]

    @property
    def all(self) -> list[Part]:
        """The parties, then the budgets."""
        return [*self.parties, *self.budgets]

    def to_json(self) -> str:
        """The JSON text that :meth:`read` reads."""
        return json.dumps(versioned(NOT_PRIVATE | asdict(self)), allow_nan=False, indent=1)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the file of a run; None if there is none.

        Raises:
            ReportError: it is damaged.
            RunError: it is of another format.
        """
        return read_result(directory / PARTS_FILE, "results by party", cls._of_values, ReportError)

    @classmethod
    def _of_values(cls, values: dict[str, Any]) -> Self:
        lists = {name: value for name, value in values.items() if name not in NOT_PRIVATE}
        return cls(**{name: [Part(**part) for part in parts] for name, parts in lists.items()})


class PartsFile(Observer):
    """Writes what the model reaches by party and by budget, where test examples have owners."""

    def __init__(self, run: PreparedRun) -> None:
        self._run = run

    def concluded(self, run: RunConcluded) -> None:
        parts = evaluate_parts(self._run, run)
        if parts is not None:
            save_whole(self._run.path / PARTS_FILE, parts.to_json().encode())


def evaluate_parts(run: PreparedRun, concluded: RunConcluded) -> Parts | None:
    """Evaluate the released model by party and by budget.

    None where test examples have no owners, or where only their clients test on them.
    """
    data = run.task.load()
    owners = data.test_owners
    if owners is None or data.owners is None or run.config.run.evaluation == "nodes":
        return None
    names = data.owner_names or tuple(f"party {owner}" for owner in range(int(data.owners.max()) + 1))
    chosen = {name: np.flatnonzero(owners == owner) for owner, name in enumerate(names)}
    budgets = _budget_parts(run)
    evaluation = central_evaluation(run.task, run.config.run.device, run.config.dataset.metrics)
    positions = [*chosen.values(), *budgets.values()]
    metrics = evaluation.of_parts(concluded.released.astype(np.float32), positions)
    found = [
        Part(name, len(part), each.metrics, each.intervals)
        for name, part, each in zip([*chosen, *budgets], positions, metrics, strict=True)
    ]
    return Parts(found[: len(chosen)], found[len(chosen) :])


def _budget_parts(run: PreparedRun) -> dict[str, npt.NDArray[np.int64]]:
    """Positions of the test examples of every budget, by its name.

    Budgets are those of groups of records, where test examples say their group, or of clients; there are none
    where groups of records have budgets and test examples do not say theirs.
    """
    data, plan = run.task.load(), run.method.plan
    if not plan.private:
        return {}
    own = [each for m in range(len(plan.groups)) if (each := record_groups(plan.mechanism, m))]
    groups = data.test.groups if isinstance(data.test, Split) else None
    if len(own) == 1 and len(own[0]) > 1 and groups is not None:
        return {
            f"budget {each.epsilon:g} (records of group {number})": np.flatnonzero(groups == number)
            for number, each in enumerate(own[0])
        }
    several = any(len(each) > 1 for each in own)
    if several or run.task.partition != "natural" or data.test_owners is None:
        return {}
    clients = client_of_owner(data, run.task.num_clients)[data.test_owners]
    return {
        f"budget {group.epsilon:g} (group {index})": np.flatnonzero(np.isin(clients, list(group.clients)))
        for index, group in enumerate(plan.groups)
        if not isinf(group.epsilon)
    }


def parts_table(found: Sequence[tuple[str, Parts]], metric: str) -> Table:
    """A table with a row for each run and part.

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
                str(part.examples),
                figure.removesuffix(" %"),
                interval,
            ]
            for label, parts in found
            for index, part in enumerate(parts.all)
            for figure, interval in [part.shown(metric)]
        ],
        note=NOTE,
    )
