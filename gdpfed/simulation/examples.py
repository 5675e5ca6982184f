"""The training examples on the device, and the batches of every client."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.update import batch_generator
from gdpfed.learning.data import Split
from gdpfed.learning.models.dropout_keys import draw_keys
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import draw_batches


class DeviceExamples:
    """The training split, once: in memory of a GPU as model inputs, on a CPU where it lies already."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._train = task.load().train
        self._device = device
        self._resident: tuple[torch.Tensor, torch.Tensor] | None = None
        if device.type != "cpu":
            everything = self._train.take(np.arange(len(self._train)))
            self._resident = self._moved(everything)

    def take(self, positions: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels at these positions, on the device; shapes (*positions.shape, ...)."""
        if self._resident is None:
            x, y = self._moved(self._train.take(positions.reshape(-1)))
        else:
            where = torch.from_numpy(positions.reshape(-1)).to(self._device)
            x, y = (each[where] for each in self._resident)
        return x.view(*positions.shape, *x.shape[1:]), y.view(*positions.shape, *y.shape[1:])

    def _moved(self, examples: Split) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(examples.x).to(self._device), torch.from_numpy(examples.y).to(self._device)


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of some clients, step by step.

    A client with fewer examples than a batch holds takes all of them; the rest of its batch is any example
    with weight 0. A client without examples has weights of 0 alone.

    Attributes:
        positions: in the training split, shape (steps, clients, batch size), int64; a batch has no more
            places than the largest client could fill.
        weights: of every example in its client's loss; a step's weights add up to 1 or are all 0.
        keys: by which dropout draws, shape (steps, clients), int64; 0 where it does not.
    """

    positions: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    keys: npt.NDArray[np.int64]

    @classmethod
    def draw(cls, order: TrainingOrder, clients: Sequence[int], *, with_keys: bool = False) -> "Batches":
        """The batches that these clients draw on their own nodes, and keys if the model draws by them."""
        width = min(order.training.batch_size, order.task.largest_part())
        shape = (order.training.local_steps, len(clients), width)
        positions, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        keys = np.zeros(shape[:2], np.int64)
        for column, client_id in enumerate(clients):
            own = order.task.client_indices(client_id)
            if len(own) == 0:
                continue
            size = min(order.training.batch_size, len(own))
            rng = batch_generator(order, client_id)
            drawn = draw_batches(len(own), order.training, rng)
            if with_keys:
                keys[:, column] = draw_keys(order.training.local_steps, rng)
            positions[:, column, :size] = own[np.stack(drawn)]
            weights[:, column, :size] = 1 / size
        return cls(positions, weights, keys)
