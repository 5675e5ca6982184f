"""Who trains the runs of an experiment; here, this process, one run after the other."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from conf.schema import Config
from gdpfed.errors import ConfigError, LearningError, PrivacyError
from gdpfed.experiments.runs import CellRun
from gdpfed.runs.records import RoundRecord

Observe = Callable[[RoundRecord], None]
Refusal = LearningError | ConfigError | PrivacyError


class Trainer(Protocol):
    """Trains one run to its end and returns its directory; :func:`gdpfed.simulation.simulate` is one."""

    def __call__(self, config: Config, *, observe: Observe | None = None) -> Path:
        """Train; ``observe`` sees every round as it is recorded."""


class Crew(Protocol):
    """Takes runs as long as it has room, and gives them back one by one when they are done."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whatever is still at work ends; the files of a run are whole at any time."""

    @property
    def num_jobs(self) -> int:
        """How many runs it trains at a time."""

    @property
    def has_room(self) -> bool:
        """Whether another run can be started."""

    def start(self, run: CellRun, observe: Observe) -> None:
        """Begin or continue a run, and show its rounds to ``observe``."""

    def next_done(self) -> tuple[CellRun, Refusal | None]:
        """Wait until a run that was started is done; with it, why it cannot be had, if it cannot.

        Raises:
            RunError: a training failed.
        """


class Alone:
    """Trains in this process, on all cores, one run after the other."""

    num_jobs = 1

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._done: list[tuple[CellRun, Refusal | None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @property
    def has_room(self) -> bool:
        return not self._done

    def start(self, run: CellRun, observe: Observe) -> None:
        """Begin or continue a run, and show its rounds to ``observe``; it is done when this returns.

        Raises:
            RunError: the training failed.
        """
        refusal = refusal_of(lambda: self._trainer(run.to_train(), observe=observe))
        self._done.append((run, refusal))

    def next_done(self) -> tuple[CellRun, Refusal | None]:
        return self._done.pop()


def refusal_of(act: Callable[[], object]) -> Refusal | None:
    """Do something; why it cannot be done, if the configuration or the data do not allow it."""
    try:
        act()
    except (LearningError, ConfigError, PrivacyError) as refusal:
        return refusal
    return None
