"""The folder through which an edge server's run and its client exchange jobs and answers as files.

    job-<round>      the cloud's model, and how devices are to train: the edge client writes it
    answer-<round>   how far the edge's interval moved that model, or why there is none: the run writes it
    run              the one run of the cloud that the folder serves
    over             that this run has ended: no further job comes

Those of the newest round alone are kept.

A file is whole or absent. It holds one line of JSON and then the vector, as little-endian float32. An answer
names its job by run, round and the hash of the model, so that none is taken for another job's.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gdpfed.federation.node.stand_ins import StandInError
from gdpfed.files import read_regular, write_whole

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder

Vector = npt.NDArray[np.float32]

JOB, ANSWER, BOUND, OVER = "job", "answer", "run", "over"


class EdgeError(StandInError):
    """Raised if an edge server refuses or fails a round; its text, for the central server, holds no data."""


@dataclass(frozen=True, eq=False)
class Job:
    """A job for an edge server: a round, the training settings and the model to start from.

    `run`: names the cloud's run. `round_index`: of that run, from 0. `training`: how devices are to train, as
    plain values. `start`: the model to start from, shape (d,).
    """

    run: str
    round_index: int
    training: Mapping[str, Any]
    start: Vector

    @classmethod
    def of(cls, run: str, order: "TrainingOrder", start: Vector) -> Self:
        """Make a job from the central server's instruction to train."""
        return cls(run, order.round_index, asdict(order.training), start)

    @property
    def names(self) -> dict[str, Any]:
        """The values that identify a job: run, round, hash of the model, and training settings."""
        model = sha256(np.ascontiguousarray(self.start, dtype="<f4").tobytes()).hexdigest()
        return {"run": self.run, "round": self.round_index, "model": model, "training": dict(self.training)}


class Mailbox:
    """A folder of files: the central server's jobs for an edge server, and the edge server's answers.

    Args:
        folder: which the edge's run and its edge client share, and nobody else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def offer(self, job: Job) -> None:
        """Store a job for the edge server, unless it exists already, and delete files of earlier rounds.

        Raises EdgeError: the folder serves another run, or it has a later job or another one of this round.
        """
        self._bind(job.run)
        newest = max(self.rounds(JOB), default=-1)
        if newest > job.round_index:
            raise EdgeError(f"this edge is at round {newest + 1}, and round {job.round_index + 1} is past")
        if newest == job.round_index:
            there = self._read(JOB, newest)
            if there is None or there[0] != job.names:
                raise EdgeError(f"this edge has another job for round {newest + 1}: send one job in a round")
            return
        self._write(self._path(JOB, job.round_index), job.names, job.start)
        for kind in (JOB, ANSWER):
            for earlier in self.rounds(kind):
                if earlier < job.round_index:
                    self._path(kind, earlier).unlink(missing_ok=True)

    def _bind(self, run: str) -> None:
        """Reserve the folder for one run of the central server; raise EdgeError if another run has it."""
        path, own = self.folder / BOUND, json.dumps(run).encode()
        if not path.exists():
            self._save(path, own)
        elif self._bound(path) != own:
            raise EdgeError(
                "this edge serves another run of the cloud: begin a new run of the edge, with a new folder"
            )

    def _bound(self, path: Path) -> bytes:
        try:
            return read_regular(path)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> EdgeError:
        """Return the error for an unusable folder; the central server reads it, so it contains no path."""
        return EdgeError(
            "the folder that an edge's run (run.mailbox) shares with its edge client (edge) cannot be used "
            f"({error.strerror}): both processes must be able to read and write it"
        )

    def end(self, run: str) -> None:
        """Note in the folder that the central server's run has ended, so that the edge server stops waiting.

        Raises EdgeError: the folder serves another run.
        """
        self._bind(run)
        self._save(self.folder / OVER, b"")

    def is_over(self) -> bool:
        """Return whether the central server's run has ended."""
        return (self.folder / OVER).is_file()

    def withdraw(self, job: Job) -> None:
        """Delete a job of the edge server whose answer is not needed any more."""
        self.discard(job.round_index)

    def discard(self, round_index: int) -> None:
        """Delete the edge server's job for a round without reading it."""
        self._path(JOB, round_index).unlink(missing_ok=True)

    def rounds(self, kind: str) -> list[int]:
        """Return the rounds that have a file of this kind (job or answer), in ascending order."""
        found = (path for path in self.folder.glob(f"{kind}-*") if not path.is_dir())
        names = (path.name.removeprefix(f"{kind}-") for path in found)
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def open_rounds(self) -> list[int]:
        """Return the rounds that have a job without an answer, in ascending order."""
        return sorted(set(self.rounds(JOB)) - set(self.rounds(ANSWER)))

    def job(self, round_index: int) -> Job | None:
        """Read the edge server's job for a round; return None if there is none.

        Raises EdgeError: a file that is not a job.
        """
        read = self._read(JOB, round_index)
        if read is None:
            return None
        header, start = read
        job = Job(header["run"], round_index, header["training"], start)
        if not isinstance(job.training, dict) or header != job.names:
            raise EdgeError(f"{JOB}-{round_index} is damaged: its model has another hash than it states")
        return job

    def answer(self, job: Job, change: Vector | None, reason: str = "") -> None:
        """Answer a job with the change of the model, shape (d,), or with a reason why there is none."""
        moved = np.zeros(0, np.float32) if change is None else change
        self._write(self._path(ANSWER, job.round_index), {**job.names, "reason": reason}, moved)

    def answered(self, job: Job) -> Vector | None:
        """Return the change of the model that answers a job, shape (d,); None until there is an answer.

        Raises EdgeError: the edge has refused, or the answer is to another job.
        """
        read = self._read(ANSWER, job.round_index)
        if read is None:
            return None
        header, change = read
        reason = header.pop("reason", "")
        if header != job.names:
            raise EdgeError(
                f"this edge has answered another job of round {job.round_index + 1}: send the same job, "
                "or begin a new run"
            )
        if reason:
            raise EdgeError(f"the edge has ended round {job.round_index + 1} without a model: {reason}")
        if change.shape != job.start.shape or not np.isfinite(change).all():
            raise EdgeError(f"the edge's answer to round {job.round_index + 1} does not fit the model")
        return change

    def _path(self, kind: str, round_index: int) -> Path:
        return self.folder / f"{kind}-{round_index}"

    def _write(self, path: Path, header: Mapping[str, Any], vector: Vector) -> None:
        self._save(path, json.dumps(header).encode() + b"\n" + vector.astype("<f4").tobytes())

    def _save(self, path: Path, data: bytes) -> None:
        try:
            write_whole(path, data)
        except OSError as error:
            raise self._unusable(error) from None

    def _read(self, kind: str, round_index: int) -> tuple[dict[str, Any], Vector] | None:
        try:
            line, _, body = read_regular(self._path(kind, round_index)).partition(b"\n")
            header = json.loads(line)
            vector = np.frombuffer(body, dtype="<f4").astype(np.float32)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise EdgeError(f"{kind}-{round_index} cannot be read: {type(error).__name__}") from None
        if not isinstance(header, dict) or not {"run", "round", "model", "training"} <= header.keys():
            raise EdgeError(f"{kind}-{round_index} lacks run, round, model or training")
        return header, vector
