"""Accuracy and loss of a model on examples that no client has."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gdpfed.learning.datasets import Examples
from gdpfed.learning.models import assign
from gdpfed.learning.task import Task, choose_device

BATCH_SIZE = 1024


@dataclass(frozen=True)
class Evaluation:
    """Share of examples classified rightly, and mean cross-entropy in nats."""

    accuracy: float
    loss: float


def evaluate(
    model: nn.Module, theta: npt.NDArray[np.float32], data: Examples, *, device: torch.device
) -> Evaluation:
    """Evaluate the parameters ``theta`` of shape (d,) on ``data``."""
    model.to(device).eval()
    assign(model, torch.from_numpy(theta.copy()).to(device))
    right, loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(data), BATCH_SIZE):
            batch = data.take(np.arange(start, min(start + BATCH_SIZE, len(data))))
            x, y = torch.from_numpy(batch.x).to(device), torch.from_numpy(batch.y).to(device)
            logits = model(x)
            right += int((logits.argmax(dim=1) == y).sum())
            loss += float(cross_entropy(logits, y, reduction="sum"))
    return Evaluation(accuracy=right / len(data), loss=loss / len(data))


def central_evaluation(task: Task, device_name: str) -> Callable[[npt.NDArray[np.float32]], Evaluation]:
    """A function from parameters of shape (d,) to accuracy and loss on the task's test split."""
    model, test, device = task.build_model(), task.load().test, choose_device(device_name)
    return lambda theta: evaluate(model, theta, test, device=device)
