"""Observers are objects that are told of a run's events: their base class, and a class for each event.

The moments of a run come in this order: the run is opened; every round ends; the run is concluded, which a
run that fails or is interrupted never is; the run is closed, whatever happened. In each moment the
observers are told one after the other: first `gdpfed.rounds.state.RoundFiles`, then those that were given to
the run, in their order. What an observer raises ends the run. Methods with observers of their own are
imported to plan, so nothing here loads torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gdpfed.methods.base import ClientSum, Theta
from gdpfed.runs.round_log import RoundLogEntry


@dataclass(frozen=True)
class RunOpened:
    """Event: the clients and files of a run are ready, and the next round can begin.

    Attributes:
        path: the run directory.
        completed_rounds: rounds behind the run; 0 for a new one.
    """

    path: Path
    completed_rounds: int


@dataclass(frozen=True, eq=False)
class RoundEnded:
    """Event: a round has ended, and its model is evaluated if an evaluation is due.

    Attributes:
        round_index: of the round, from 0.
        theta: the model that the next round goes on from, shape (d,).
        released: what the method releases of it, shape (d,); this was evaluated.
        sums: that led to theta; none where an earlier process was interrupted in the round.
        record: cohorts, evaluation, the ledger's figures and the seconds.
    """

    round_index: int
    theta: Theta
    released: Theta
    sums: Sequence[ClientSum]
    record: RoundLogEntry


@dataclass(frozen=True, eq=False)
class RunConcluded:
    """Event: the last round of this process is over, so that observers can write results.

    Attributes:
        released: what the method releases of the last model, shape (d,).
        records: of all rounds, those of earlier processes too.
        spent: epsilon that every group has spent.
        against_server: epsilon against the server of every group, of the client that took part most often.
        charged_rounds: how many rounds the ledger was charged.
    """

    released: Theta
    records: Sequence[RoundLogEntry]
    spent: Sequence[float]
    against_server: Sequence[float]
    charged_rounds: int


class Observer:
    """Receives what happens in a run, and cannot change it; each method does nothing unless overridden."""

    def opened(self, run: RunOpened) -> None:
        """Called when the run begins or is resumed."""

    def round_ended(self, ended: RoundEnded) -> None:
        """Called after a round, when its log entry and checkpoint are on disk."""

    def concluded(self, run: RunConcluded) -> None:
        """Called after the last round of this process, before the final model is written."""

    def closed(self) -> None:
        """Called at the end: no more events follow from this process."""
