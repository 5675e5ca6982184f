"""Observers are objects that are told of a run's events: their base class, and a class for each event.

A run has these events, in this order: it is opened; every round ends; it is concluded, unless it fails or is
interrupted; it is closed in any case. At each event the observers are told one after the other: first
`gdpfed.rounds.state.RoundFiles`, then the run's extensions, then the other observers; only when the run is
closed, the last observer is told first. An error that an observer raises ends the run. This module does not
load torch, because methods with observers of their own are imported for planning too.
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
        completed_rounds: how many rounds are complete; 0 for a new run.
    """

    path: Path
    completed_rounds: int


@dataclass(frozen=True, eq=False)
class RoundEnded:
    """Event: a round has ended, and its model is evaluated if an evaluation is due.

    Attributes:
        round_index: the number of the round, from 0.
        theta: the model from which the next round goes on, shape (d,).
        released: the released model, shape (d,), which was evaluated if an evaluation was due.
        sums: the sums from which theta was computed; empty if an earlier process broke off in the round.
        record: the log entry: cohorts, evaluation, the ledger's figures and the seconds.
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
        released: the model that the run releases, shape (d,).
        records: the log entries of all rounds, also those of earlier processes.
        spent: each group's spent epsilon.
        against_server: for each group, epsilon against the server of the client that took part most often.
        charged_rounds: how many rounds the ledger has charged.
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
        """Called when this process is done with the run, also after an error; no more events follow."""
