"""Many clients at once on one device: trained, clipped, rounded and summed in chunks."""

from collections.abc import Iterator, Sequence

import torch

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.learning.task import Task
from gdpfed.methods.base import Theta
from gdpfed.simulation.batched_encoding import contributions_steps
from gdpfed.simulation.batched_training import BatchedTraining
from gdpfed.simulation.chunk_size import clients_at_once
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum
from gdpfed.simulation.examples import Batches, DeviceExamples


class BatchedEngine(Engine):
    """Trains a chunk of clients at once.

    On a CPU the result does not depend on the size of a chunk, bit for bit; on a GPU the library may
    choose another product for another number of matrices, which moves the last bits of an update.

    Args:
        task: model and data.
        device: where to train.
        precision: of the products in local training.
        chunk_clients: how many clients at once; None for as many as suit the device.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device,
        *,
        precision: str = "float32",
        chunk_clients: int | None = None,
    ) -> None:
        self.device = device
        self._training = BatchedTraining(task.build_model(), device, precision)
        self._examples = DeviceExamples(task, device)
        self._chunk_clients = chunk_clients

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for clients, steps in self._chunks(order, theta, cohort):
            yield clients, steps.cpu().numpy()

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        total, num_updates = torch.zeros(len(theta), dtype=torch.int64, device=self.device), 0
        for clients, steps in self._chunks(order, theta, cohort):
            total += steps.sum(dim=0)
            num_updates += len(clients)
        return StepSum(total.cpu().numpy(), num_updates)

    def _chunks(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
        """Client ids and their updates on the device; a chunk that memory cannot hold is halved."""
        if self._chunk_clients is None:
            self._chunk_clients = clients_at_once(self._training, theta, order, self._examples)
        begin = 0
        while begin < len(cohort.clients):
            clients = cohort.clients[begin : begin + self._chunk_clients]
            try:
                chunk = self._chunk(order, theta, clients, cohort)
            except torch.cuda.OutOfMemoryError:
                if len(clients) == 1:
                    raise
                self._chunk_clients = len(clients) // 2
                continue
            begin += len(clients)
            yield chunk

    def _chunk(
        self, order: TrainingOrder, theta: Theta, clients: Sequence[int], cohort: Cohort
    ) -> tuple[Sequence[int], torch.Tensor]:
        if order.work != "update":
            raise OrderError(f"the order's work is {order.work!r}; the batched engine computes update")
        batches = Batches.draw(order, clients)
        updates = self._training.updates(theta, order.training, self._examples, batches)
        return clients, contributions_steps(updates, cohort, clients)
