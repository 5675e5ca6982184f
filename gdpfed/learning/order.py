"""What the server asks a client to train in one round, as flat values that any message can carry."""

import json
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gdpfed.learning.local_update import LocalTraining
from gdpfed.learning.models import fingerprint
from gdpfed.learning.task import Task

Scalar = str | int | float


@dataclass(frozen=True)
class TrainingOrder:
    """Task, local training and round.

    Attributes:
        device: the server's wish; ``auto`` lets the client choose.
        noise: the law of the noise that the client adds, gaussian or discrete_gaussian.
    """

    task: Task
    training: LocalTraining
    round_index: int
    device: str
    noise: str = "gaussian"

    def to_scalars(self) -> dict[str, Scalar]:
        """One flat mapping; a missing path travels as an empty string."""
        flat = asdict(self.task) | asdict(self.training)
        flat["path"] = flat["path"] or ""
        return flat | {"round_index": self.round_index, "device": self.device, "noise": self.noise}

    def context(self, theta: npt.NDArray[np.float32]) -> bytes:
        """A hash of this order and the model: the same for clients that are to train the same."""
        scalars = json.dumps(self.to_scalars(), sort_keys=True)
        return sha256(scalars.encode() + fingerprint(theta)).digest()

    @classmethod
    def from_scalars(cls, scalars: dict[str, Any]) -> Self:
        """Inverse of :meth:`to_scalars`.

        Raises:
            KeyError: a value is missing.
        """
        task = {field.name: scalars[field.name] for field in fields(Task)}
        training = {field.name: scalars[field.name] for field in fields(LocalTraining)}
        return cls(
            task=Task(**task | {"path": task["path"] or None}),
            training=LocalTraining(**training),
            round_index=scalars["round_index"],
            device=scalars["device"],
            noise=scalars["noise"],
        )
