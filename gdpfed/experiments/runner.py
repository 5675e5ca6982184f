"""Train what is missing of an experiment, one run after the other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from conf.schema import Config, ConfigError, DatasetConfig
from gdpfed.experiments.runs import CellRun
from gdpfed.learning.errors import LearningError
from gdpfed.privacy.errors import PrivacyError
from gdpfed.report.records import RoundRecord

Place = tuple[str, str, str]


class Trainer(Protocol):
    """Trains one run to its end and returns its directory; :func:`gdpfed.simulation.simulate` is one."""

    def __call__(self, config: Config, *, observe: Callable[[RoundRecord], None] | None = None) -> Path:
        """Train; ``observe`` sees every round as it is recorded."""


class Watcher(Protocol):
    """Is told how the runs go on."""

    def running(self, run: CellRun) -> AbstractContextManager[Callable[[RoundRecord], None]]:
        """Around a training; what it gives sees every round."""

    def done(self, run: CellRun, reason: str | None) -> None:
        """A run is finished, or is not to be had for that reason."""


def train_missing(runs: Sequence[CellRun], trainer: Trainer, watcher: Watcher) -> dict[Place, str]:
    """Train every run that is not finished; returns why cells are missing, by their place.

    A data set that cannot be had, or a plan that cannot be kept, leaves its cells out and the others go on.
    A data set that failed once is not tried again for the same settings.

    Raises:
        ExperimentError: a directory that holds another run; before anything is trained.
    """
    for run in runs:
        run.check()
    reasons: dict[Place, str] = {}
    unusable: list[tuple[DatasetConfig, str]] = []
    for run in runs:
        known = (reason for dataset, reason in unusable if dataset == run.config.dataset)
        reason = reasons.get(run.cell.place) or next(known, None)
        if reason is None and not run.finished:
            try:
                _train(run, trainer, watcher)
            except LearningError as error:
                reason = str(error)
                unusable.append((run.config.dataset, reason))
            except (ConfigError, PrivacyError) as error:
                reason = str(error)
        if reason is not None:
            reasons[run.cell.place] = reason
        watcher.done(run, reason)
    return reasons


def _train(run: CellRun, trainer: Trainer, watcher: Watcher) -> None:
    with watcher.running(run) as observe:
        trainer(run.to_train(), observe=observe)
