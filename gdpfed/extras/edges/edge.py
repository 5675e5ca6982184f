"""An edge server's run with its devices: each round trains the central server's model and reports the change.

The run itself is one like any other, with a plan, a ledger and files of its own, and `gdpfed audit` checks it
as such. A round is charged before it begins and is never repeated: a job whose round is charged already is
refused. Rounds that the cloud did without this edge are left out, with nobody in them.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import TrainingOver
from gdpfed.extras.edges.mailbox import EdgeError, Job, Mailbox
from gdpfed.methods.base import Theta
from gdpfed.rounds.extensions.base import Extension, RoundLeftOut
from gdpfed.rounds.loop import INTERRUPTED
from gdpfed.rounds.observers import RoundEnded
from gdpfed.rounds.run import PreparedRun

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
LEFT_OUT = "the cloud did this round without this edge"
TOO_LATE = "its round is behind this edge: charged or left out, and not done again"


class Edge(Extension):
    """Makes an edge server's run wait for jobs of the central server, train one round for each, and answer.

    `mailbox`: shared with the edge client. `announce`: is told in one line for what it waits. `num_rounds`:
    of the edge's run.
    """

    key = "edge"

    def __init__(self, mailbox: Mailbox, announce: Callable[[str], None], num_rounds: int) -> None:
        self._mailbox = mailbox
        self._announce = announce
        self._num_rounds = num_rounds

    def start(self, order: TrainingOrder, theta: Theta) -> Theta:
        """Wait for the central server's next job, and return the start model of the round, shape (d,).

        It waits for a job as long as it takes: nothing is charged meanwhile. Raises RoundLeftOut: the cloud
        is past that round. Raises TrainingOver: the cloud's run has ended, and has no job left for this edge.
        """
        index, waited = order.round_index, 0.0
        while True:
            for each in self._mailbox.open_rounds():
                job = self._job(each)
                if job is None:
                    continue
                reason = TOO_LATE if each < index else self._unfit(job, order, theta)
                if not reason:
                    if each != index:
                        raise RoundLeftOut(LEFT_OUT)
                    return job.start
                self._announce(f"the cloud's job of round {each + 1} is refused: {reason}")
                self._mailbox.answer(job, None, reason)
            if self._mailbox.is_over() and not self._mailbox.open_rounds():
                raise TrainingOver("the cloud's run is over")
            if waited >= PATIENCE_SECONDS:
                self._announce(f"waits for the cloud's round {index + 1}")
                waited = 0.0
            time.sleep(POLL_SECONDS)
            waited += POLL_SECONDS

    def round_ended(self, ended: RoundEnded) -> None:
        """Answer the central server's job, once all files of the round are on disk."""
        if ended.round_index not in self._mailbox.open_rounds():
            return
        job = self._job(ended.round_index)
        if job is None:
            return
        if any(each.total is not None for each in ended.sums):
            self._mailbox.answer(job, (ended.theta - job.start).astype(np.float32))
        else:
            # Other reasons tell how many were drawn: they stay in this run's own log.
            interrupted = INTERRUPTED in ended.record.failures.values()
            self._mailbox.answer(job, None, INTERRUPTED if interrupted else "no sum")

    def _job(self, round_index: int) -> Job | None:
        """Read the central server's job for a round, or return None; delete a job that is damaged."""
        try:
            return self._mailbox.job(round_index)
        except EdgeError as error:
            self._announce(f"a damaged job of round {round_index + 1} is removed: {error}")
            self._mailbox.discard(round_index)
            return None

    def _unfit(self, job: Job, order: TrainingOrder, theta: Theta) -> str:
        """Return the reason why a job does not fit the edge server's run, or "" if it fits."""
        if job.round_index >= self._num_rounds:
            return f"it is of round {job.round_index + 1}, and this edge's run has {self._num_rounds}"
        if job.start.shape != theta.shape:
            return f"its model has {len(job.start)} parameters, and this edge's {len(theta)}"
        if not np.isfinite(job.start).all():
            return "its model is not finite"
        own = Job.of(job.run, order, theta).training
        differing = [key for key in own if job.training.get(key) != own[key]]
        if differing:
            key = differing[0]
            return f"it orders training.{key}={job.training.get(key)}, and this edge has {own[key]}"
        return ""


def edge_of(run: PreparedRun, announce: Callable[[str], None]) -> Edge | None:
    """Return the extension with which a run works as an edge server; None if run.mailbox is not set."""
    folder = run.config.run.mailbox
    if folder is None:
        return None
    return Edge(Mailbox(Path(folder).expanduser()), announce, run.config.run.num_rounds)
