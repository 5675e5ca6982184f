"""The training order: it tells a client what to train in one round, as flat values for a message."""

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

ROUND_FIELDS = ("round_index", "device", "noise", "work", "clipping_norm", "weight")


@dataclass(frozen=True)
class ClientPart:
    """One client's part of a sum: the bound on its contribution, and its weight.

    Attributes:
        clipping_norm: w_i C_i, the L2 bound on the contribution; infinite where it is that of the sum.
        weight: w_i.
    """

    clipping_norm: float = inf
    weight: float = 1.0


@dataclass(frozen=True)
class TrainingOrder:
    """The order that a client trains by: task, local training and round.

    Attributes:
        device: the server's wish; ``auto`` lets the client choose.
        noise: the law of the noise that the client adds, gaussian or discrete_gaussian.
        work: what the client computes: ``update``, its model's change by local training.
        clipping_norm: w_i C_i, the L2 bound on this client's contribution; infinite where it is the sum's.
        weight: w_i, of what the client computes; clipping comes after it.
    """

    task: Task
    training: LocalTraining
    round_index: int
    device: str
    noise: str = "gaussian"
    work: str = "update"
    clipping_norm: float = inf
    weight: float = 1.0

    def to_scalars(self) -> dict[str, Scalar]:
        """One flat mapping; the task, which is nested, travels as JSON."""
        flat = {"task": self.task.to_json()} | asdict(self.training)
        return flat | {name: getattr(self, name) for name in ROUND_FIELDS}

    def for_part(self, part: ClientPart) -> Self:
        """The same order for a client with this part of the sum."""
        return replace(self, clipping_norm=part.clipping_norm, weight=part.weight)

    def context(self, theta: npt.NDArray[np.float32]) -> bytes:
        """A hash of this order and the model: the same for clients that are to train the same.

        Clipping norm and weight are left out, as clients of one sum may have their own.
        """
        scalars = json.dumps(self.for_part(ClientPart()).to_scalars(), sort_keys=True)
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
