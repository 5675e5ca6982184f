"""Many clients at once on one device: trained, clipped, rounded and summed in chunks."""

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.clients.held_out import held_out_update
from gdpfed.clients.order import ClientPart, OrderError, TrainingOrder
from gdpfed.clients.own_noise import with_own_noise
from gdpfed.clients.record_work import BitsOf, gradients_of, secret_bits
from gdpfed.clients.update import WORKS
from gdpfed.learning.task import Task
from gdpfed.methods.base import Theta
from gdpfed.record_steps import HELD_OUT_WORKS, NOISED_UPDATE, RECORD_WORKS
from gdpfed.simulation.batched_encoding import contributions_steps
from gdpfed.simulation.batched_records import BatchedRecords
from gdpfed.simulation.batched_training import BatchedTraining
from gdpfed.simulation.chunk_size import clients_at_once
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum, SumJob
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
        bits: the source of every client's secret bits, for works on records and noise of its own.
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
        for clients, steps in self._chunks(order, _Starts.one(theta), cohort):
            yield clients, steps.cpu().numpy()

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        return self.sums_of([SumJob(order, theta, cohort)])[0]

    def sums_of(self, jobs: Sequence[SumJob]) -> list[StepSum]:
        """The sum of each of several cohorts; those of one order and one grid are trained together."""
        totals = [StepSum.zero(job.cohort.encoding.dimension) for job in jobs]
        for number, clients, steps in self._pieces(jobs):
            totals[number].add(steps.sum(dim=0).cpu().numpy(), len(clients))
        return totals

    def updates_of(self, jobs: Sequence[SumJob]) -> Iterator[tuple[int, Sequence[int], Steps]]:
        """The updates of several cohorts, those of one order and one grid trained together."""
        for number, clients, steps in self._pieces(jobs):
            yield number, clients, steps.cpu().numpy()

    def _pieces(self, jobs: Sequence[SumJob]) -> Iterator[tuple[int, Sequence[int], torch.Tensor]]:
        """The number of its job, client ids, and their updates on the device."""
        for numbers in _alike(jobs):
            same = [jobs[number] for number in numbers]
            first, sizes = same[0], [len(job.cohort.clients) for job in same]
            together = replace(
                first.cohort,
                clients=[client for job in same for client in job.cohort.clients],
                parts=ChainMap(*(dict(job.cohort.parts) for job in same)),
            )
            starts = _Starts(np.stack([job.start for job in same]), np.repeat(np.arange(len(same)), sizes))
            begin = 0
            for clients, steps in self._chunks(first.order, starts, together):
                owners = starts.owners[begin : begin + len(clients)]
                begin += len(clients)
                found, counts = np.unique(owners, return_counts=True)
                ends = np.cumsum(counts).tolist()
                pieces = torch.split(steps, counts.tolist())
                for owner, piece, end in zip(found.tolist(), pieces, ends, strict=True):
                    yield numbers[owner], clients[end - len(piece) : end], piece

    def _chunks(
        self, order: TrainingOrder, starts: "_Starts", cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
        """Client ids and their updates on the device; a chunk that memory cannot hold is halved."""
        at_once = self._at_once
        if order.work not in at_once:
            at_once[order.work] = self._chunk_clients or self._clients_at_once(order, starts.models[0])
        begin = 0
        while begin < len(cohort.clients):
            clients = cohort.clients[begin : begin + at_once[order.work]]
            try:
                chunk = self._chunk(order, starts.of(begin, len(clients)), clients, cohort)
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
        elif order.work in HELD_OUT_WORKS:
            updates = self._held_out(order, theta, clients, cohort)
        elif order.work in ("update", NOISED_UPDATE):
            batches = Batches.draw(order, clients, with_keys=self._training.draws)
            updates = self._training.updates(theta, order.training, self._examples, batches)
            if order.work == NOISED_UPDATE:
                self._add_own_noise(order, clients, cohort, updates)
        else:
            raise OrderError(f"the order's work is {order.work!r}; clients compute {', '.join(WORKS)}")
        return clients, contributions_steps(updates, order, cohort, clients)

    def _held_out(
        self, order: TrainingOrder, theta: Theta, clients: Sequence[int], cohort: Cohort
    ) -> torch.Tensor:
        """What each client sends of the records that it holds out, as a node does."""
        models = np.broadcast_to(theta, (len(clients), theta.shape[-1]))
        orders = [order.for_part(cohort.parts.get(client, ClientPart())) for client in clients]
        made = zip(orders, models, cohort.encodings(clients), clients, strict=True)
        return torch.stack(
            [
                held_out_update(own, start, encoding, self._task.held_out(client), self._model, self.device)
                for own, start, encoding, client in made
            ]
        ).to(self.device)

    @cached_property
    def _model(self) -> nn.Module:
        return self._task.build_model()

    def _add_own_noise(
        self, order: TrainingOrder, clients: Sequence[int], cohort: Cohort, updates: torch.Tensor
    ) -> None:
        """Clip and noise the update of each client, in place, as a client does with its own."""
        for row, client in enumerate(clients):
            own = order.for_part(cohort.parts.get(client, ClientPart()))
            updates[row] = with_own_noise(own, updates[row], self._bits(client))

    def _clients_at_once(self, order: TrainingOrder, theta: Theta) -> int:
        if order.work in RECORD_WORKS:
            return self._records.clients_at_once(len(theta))
        return clients_at_once(self._training, theta, order, self._examples)


@dataclass(frozen=True, eq=False)
class _Starts:
    """The models that clients start from: one for all, or for each the one of its sum.

    Attributes:
        models: shape (sums, d).
        owners: the number of its sum for every client, in their order.
    """

    models: Theta
    owners: npt.NDArray[np.int64]

    @classmethod
    def one(cls, theta: Theta) -> "_Starts":
        """The same model for all."""
        return cls(theta[None], np.zeros(0, np.int64))

    def of(self, begin: int, count: int) -> Theta:
        """The start of some consecutive clients: shape (d,) for one model, or (count, d)."""
        if len(self.models) == 1:
            one: Theta = self.models[0]
            return one
        return self.models[self.owners[begin : begin + count]]


def _alike(jobs: Sequence[SumJob]) -> list[list[int]]:
    """The numbers of jobs of one order and one grid, together."""
    kinds: list[tuple[SumJob, list[int]]] = []
    for number, job in enumerate(jobs):
        for first, numbers in kinds:
            if job.order == first.order and job.cohort.encoding == first.cohort.encoding:
                numbers.append(number)
                break
        else:
            kinds.append((job, [number]))
    return [numbers for _, numbers in kinds]
