"""Train what is missing of an experiment."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from conf.schema import DatasetConfig
from gdpfed.errors import LearningError
from gdpfed.experiments.crew import Crew, Refusal
from gdpfed.experiments.runs import CellRun
from gdpfed.runs.records import RoundRecord

Place = tuple[str, str, str]


class Watcher(Protocol):
    """Is told how the runs go on."""

    def started(self, run: CellRun) -> None:
        """A training begins or continues."""

    def round_done(self, run: CellRun, record: RoundRecord) -> None:
        """It has come so far."""

    def done(self, run: CellRun) -> None:
        """Nothing is left to do for a run: it is finished, or not to be had."""


def train_missing(runs: Sequence[CellRun], crew: Crew, watcher: Watcher) -> dict[Place, str]:
    """Train every run that is not finished; returns why cells are missing, by their place.

    A data set that cannot be had, or a plan that cannot be kept, leaves its cells out and the others go on.
    A data set that failed once is not tried again for the same settings.

    Raises:
        ExperimentError: a directory that holds another run; before anything is trained.
        RunError: a training failed.
    """
    for each in runs:
        each.check()
    missing = _Missing()
    waiting, at_work = list(runs), set[Path]()
    with crew:
        while waiting or at_work:
            # Two cells may come to the same configuration, and then share one run.
            run = next((each for each in waiting if each.path not in at_work), None)
            if run is None or not crew.has_room:
                done, refusal = crew.next_done()
                at_work.remove(done.path)
                missing.note(done, refusal)
                watcher.done(done)
                continue
            waiting.remove(run)
            if run.finished or missing.is_known(run):
                watcher.done(run)
            else:
                at_work.add(run.path)
                watcher.started(run)
                crew.start(run, partial(watcher.round_done, run))
    return missing.reasons


class _Missing:
    """Why cells are missing, by their place."""

    def __init__(self) -> None:
        self.reasons: dict[Place, str] = {}
        self._unusable: list[tuple[DatasetConfig, str]] = []

    def note(self, run: CellRun, refusal: Refusal | None) -> None:
        """Remember why a run is not to be had, if it is not."""
        if refusal is None:
            return
        self.reasons[run.cell.place] = str(refusal)
        if isinstance(refusal, LearningError):
            self._unusable.append((run.config.dataset, str(refusal)))

    def is_known(self, run: CellRun) -> bool:
        """Whether what kept another run of the same cell or data set keeps this one; then noted, too."""
        known = (reason for dataset, reason in self._unusable if dataset == run.config.dataset)
        reason = self.reasons.get(run.cell.place) or next(known, None)
        if reason is not None:
            self.reasons[run.cell.place] = reason
        return reason is not None
