"""What the server asks a client to train in one round, as flat values that any message can carry."""

import json
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from math import inf
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gdpfed.learning.local_update import LocalTraining
from gdpfed.learning.models import fingerprint
from gdpfed.learning.task import Task

Scalar = str | int | float

ROUND_FIELDS = ("round_index", "device", "noise", "clipping_norm")


@dataclass(frozen=True)
class TrainingOrder:
    """Task, local training and round.

    Attributes:
        device: the server's wish; ``auto`` lets the client choose.
        noise: the law of the noise that the client adds, gaussian or discrete_gaussian.
        clipping_norm: C_i, this client's own L2 bound; infinite where it is that of the sum.
    """

    task: Task
    training: LocalTraining
    round_index: int
    device: str
    noise: str = "gaussian"
    clipping_norm: float = inf

    def to_scalars(self) -> dict[str, Scalar]:
        """One flat mapping; the task, which is nested, travels as JSON."""
        flat = {"task": self.task.to_json()} | asdict(self.training)
        return flat | {name: getattr(self, name) for name in ROUND_FIELDS}

    def context(self, theta: npt.NDArray[np.float32]) -> bytes:
        """A hash of this order and the model: the same for clients that are to train the same.

        The clipping norm is left out, as clients of one sum may have their own.
        """
        scalars = json.dumps(replace(self, clipping_norm=inf).to_scalars(), sort_keys=True)
        return sha256(scalars.encode() + fingerprint(theta)).digest()

    @classmethod
    def from_scalars(cls, scalars: dict[str, Any]) -> Self:
        """Inverse of :meth:`to_scalars`.

        Raises:
            KeyError, ValueError, TypeError: a value is missing or of another form.
        """
        training = {field.name: scalars[field.name] for field in fields(LocalTraining)}
        return cls(
            task=Task.from_json(scalars["task"]),
            training=LocalTraining(**training),
            **{name: scalars[name] for name in ROUND_FIELDS},
        )
