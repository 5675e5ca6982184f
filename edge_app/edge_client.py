"""The bridge: an edge as a client of the cloud, whose update is what an interval of the edge's run moved."""

import time
from dataclasses import dataclass
from pathlib import Path

from edge_app.mailbox import JOB, BridgeError, Job, Spool, Vector

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Bridge:
    """Hands the cloud's jobs to an edge's run.

    Attributes:
        folder: that it shares with the run.
        seconds: how long it waits for an answer.
    """

    folder: Path
    seconds: float

    def interval(self, job: Job) -> Vector:
        """What the edge's interval changes of the job's model, shape (d,).

        A job that is asked for twice is done once: the answer is kept.

        Raises:
            BridgeError: the edge refuses, does not answer in time, or the cloud has gone on to a later round,
                as after it was killed. Then its job is taken back; one that it has begun it ends, and its
                devices stay charged.
        """
        spool = Spool(self.folder)
        spool.offer(job)
        deadline = time.monotonic() + self.seconds
        while (change := spool.answered(job)) is None:
            if time.monotonic() > deadline:
                spool.withdraw(job)
                raise BridgeError(
                    f"the edge has not answered round {job.round_index + 1} within {self.seconds:g} s"
                )
            if max(spool.rounds(JOB), default=job.round_index) > job.round_index:
                raise BridgeError(f"the cloud has gone on, and round {job.round_index + 1} is past")
            time.sleep(POLL_SECONDS)
        return change

    def end(self, run: str) -> None:
        """Tell the edge's run that the cloud's is over.

        Raises:
            BridgeError: the folder serves another run.
        """
        Spool(self.folder).end(run)
