"""Presents an edge server to the central server as one client, whose update is the change of the model."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpfed.extras.edges.mailbox import JOB, EdgeError, Job, Mailbox, Vector
from gdpfed.federation.node.node_config import NodeConfigError, path, positive
from gdpfed.federation.node.own_budget import BUDGET_KEYS
from gdpfed.federation.node.stand_ins import StandInKind

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder

EDGE_KEY, EDGE_SECONDS_KEY = "edge", "edge-seconds"
DEFAULT_EDGE_SECONDS = 600.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class EdgeClient:
    """Answers the central server for an edge: passes jobs to the edge's run, and returns the run's answers.

    `folder`: that it shares with the run. `seconds`: how long it waits for an answer.
    """

    folder: Path
    seconds: float

    def check(self, order: "TrainingOrder") -> None:
        """Raise LearningError if this edge lacks the model or loss that the central server asks for."""
        from gdpfed.clients.order_checks import check_model

        check_model(order.task)

    def change(self, run: str, order: "TrainingOrder", theta: Vector) -> Vector:
        """Return how far the edge server's devices moved the central model in one round, shape (d,)."""
        return self.interval(Job.of(run, order, theta))

    def interval(self, job: Job) -> Vector:
        """Give a job to the edge server's run and wait; return how far that run moved the model, shape (d,).

        A job that is asked for twice is done once: the answer is kept. Raises EdgeError: the edge refuses,
        does not answer in time, or the cloud has gone on to a later round, as after it was killed. Then its
        job is taken back; one that it has begun it ends, and its devices stay charged.
        """
        mailbox = Mailbox(self.folder)
        mailbox.offer(job)
        deadline = time.monotonic() + self.seconds
        while (change := mailbox.answered(job)) is None:
            if time.monotonic() > deadline:
                mailbox.withdraw(job)
                raise EdgeError(
                    f"the edge has not answered round {job.round_index + 1} within {self.seconds:g} s: see "
                    "whether the edge's run is still running"
                )
            if max(mailbox.rounds(JOB), default=job.round_index) > job.round_index:
                raise EdgeError(f"the cloud has gone on, and round {job.round_index + 1} is past")
            time.sleep(POLL_SECONDS)
        return change

    def end(self, run: str) -> None:
        """Tell the edge server's run that the central server's run has ended.

        Raises EdgeError: the folder serves another run.
        """
        Mailbox(self.folder).end(run)


def edge_client_of(config: Mapping[str, Any]) -> EdgeClient:
    """Return the client that stands for an edge server, as a node's settings describe it.

    Raises NodeConfigError: an edge client with data or a budget, which are its edge's devices' own.
    """
    other = [key for key in (*BUDGET_KEYS, "data", "edge-trusted") if key in config]
    if other:
        raise NodeConfigError(
            f"{EDGE_KEY} makes this node the client of an edge, and {other[0]} is for a device: leave one out"
        )
    seconds = float(config.get(EDGE_SECONDS_KEY, DEFAULT_EDGE_SECONDS))
    return EdgeClient(Path(str(config[EDGE_KEY])).expanduser(), seconds)


EDGE = StandInKind({EDGE_KEY: path(), EDGE_SECONDS_KEY: positive()}, edge_client_of)
"""How a node is told that it is the client of an edge."""
