"""Many clients at once on one device: trained, clipped, rounded and summed in chunks."""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial

import torch

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.record_work import BitsOf, gradients_of, secret_bits
from gdpfed.clients.update import WORKS
from gdpfed.learning.task import Task
from gdpfed.methods.base import Theta
from gdpfed.record_steps import RECORD_WORKS
from gdpfed.simulation.batched_encoding import contributions_steps
from gdpfed.simulation.batched_records import BatchedRecords
from gdpfed.simulation.batched_training import BatchedTraining
from gdpfed.simulation.chunk_size import clients_at_once
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum
from gdpfed.simulation.examples import Batches, DeviceExamples
from gdpfed.simulation.programmed_training import ProgrammedTraining
from gdpfed.simulation.training_choice import choose_training


class BatchedEngine(Engine):
    """Trains a chunk of clients at once, or of those for whose model there is a program, one by one.

    On a CPU the result does not depend on the size of a chunk, bit for bit; on a GPU the library may
    choose another product for another number of matrices, which moves the last bits of an update.

    Args:
        task: model and data.
        device: where to train.
        precision: of the products in local training.
        chunk_clients: how many clients at once; None for as many as suit the device.
        bits: the source of every client's secret bits, for works on records.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device,
        *,
        precision: str = "float32",
        chunk_clients: int | None = None,
        bits: BitsOf = secret_bits,
    ) -> None:
        self.device = device
        self._precision = precision
        self._choose_training = partial(choose_training, task, device, precision)
        self._examples = DeviceExamples(task, device)
        self._chunk_clients = chunk_clients
        self._at_once: dict[str, int] = {}
        self._task, self._bits = task, bits

    @cached_property
    def _training(self) -> BatchedTraining | ProgrammedTraining:
        return self._choose_training()[0]

    @cached_property
    def _records(self) -> BatchedRecords:
        if self._precision != "float32":
            raise OrderError(
                f"simulation.precision={self._precision} is for runs that protect clients: leave "
                "it out, since gradients of records are computed in float32"
            )
        return BatchedRecords(gradients_of(self._task, self.device), self._bits)

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for clients, steps in self._chunks(order, theta, cohort):
            yield clients, steps.cpu().numpy()

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        dimension = cohort.encoding.dimension
        total, num_updates = torch.zeros(dimension, dtype=torch.int64, device=self.device), 0
        for clients, steps in self._chunks(order, theta, cohort):
            total += steps.sum(dim=0)
            num_updates += len(clients)
        return StepSum(total.cpu().numpy(), num_updates)

    def _chunks(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
        """Client ids and their updates on the device; a chunk that memory cannot hold is halved."""
        at_once = self._at_once
        if order.work not in at_once:
            at_once[order.work] = self._chunk_clients or self._clients_at_once(order, theta)
        begin = 0
        while begin < len(cohort.clients):
            clients = cohort.clients[begin : begin + at_once[order.work]]
            try:
                chunk = self._chunk(order, theta, clients, cohort)
            except torch.cuda.OutOfMemoryError:
                if len(clients) == 1:
                    raise
                at_once[order.work] = len(clients) // 2
                continue
            begin += len(clients)
            yield chunk

    def _chunk(
        self, order: TrainingOrder, theta: Theta, clients: Sequence[int], cohort: Cohort
    ) -> tuple[Sequence[int], torch.Tensor]:
        if order.work in RECORD_WORKS:
            updates = self._records.updates(order, theta, clients, cohort, self._examples.take)
        elif order.work == "update":
            batches = Batches.draw(order, clients)
            updates = self._training.updates(theta, order.training, self._examples, batches)
        else:
            raise OrderError(f"the order's work is {order.work!r}; clients compute {', '.join(WORKS)}")
        return clients, contributions_steps(updates, order, cohort, clients)

    def _clients_at_once(self, order: TrainingOrder, theta: Theta) -> int:
        if order.work in RECORD_WORKS:
            return self._records.clients_at_once(len(theta))
        return clients_at_once(self._training, theta, order, self._examples)
