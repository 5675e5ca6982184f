"""Trains many clients at once on one device: updates are clipped, rounded and summed in chunks."""

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.noise import BitsOf, secret_bits
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.record_forms import gradients_of, graphs_of
from gdpfed.clients.record_work import RecordJobs, Updates, holder_of
from gdpfed.clients.rounding import clipped_steps, on_host
from gdpfed.clients.update import update_steps
from gdpfed.clients.works import Job, function_of
from gdpfed.clients.works.noised_update import with_own_noise
from gdpfed.clients.works.norm_histogram import histograms
from gdpfed.learning.data import Split
from gdpfed.learning.data.persons import rows_to_take
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import with_indicator
from gdpfed.learning.training.record_graphs import RecordGraphs
from gdpfed.learning.training.record_training import RecordGradients, Take
from gdpfed.learning.training.step_recording import recorder
from gdpfed.methods.base import Theta
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples, ProgrammedTraining
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum, SumJob
from gdpfed.simulation.training_choice import choose_training, clients_at_once

TRAINED_TOGETHER = ("update", "noised_update", "norm_histogram")
"""Works of local training, which many clients do at once; each client does any other work by itself."""
MOST_CLIENTS = 1024
# Model, update, velocity, noise and their copies, in 32 and in 64 bits.
BYTES_A_PARAMETER = 4 * 4 + 6 * 8


class BatchedRecords:
    """Computes clients' updates from gradients of single records, for many clients at once if possible.

    The models of a chunk of clients go together through one pass if the form of the gradients knows how. Else
    one client comes after the other, and its records go together. `gradients`: of the model. `bits`: the
    source of every client's secret bits. `graphs`: by which steps are replayed; None where they are called.
    """

    def __init__(
        self, gradients: RecordGradients, bits: BitsOf = secret_bits, graphs: RecordGraphs | None = None
    ) -> None:
        self.gradients, self.graphs = gradients, graphs
        self._bits = bits

    @property
    def form(self) -> str:
        """How gradients of single records are computed, in words."""
        return self.gradients.form

    def clients_at_once(self, dimension: int) -> int:
        """Return how many clients fit into memory to be trained together."""
        if not self.gradients.stacks:
            return 1
        need = BYTES_A_PARAMETER * dimension
        return max(1, min(MOST_CLIENTS, self.gradients.memory_budget() // need))

    def updates(
        self, order: TrainingOrder, theta: Theta, clients: Sequence[int], cohort: Cohort, take: Take
    ) -> torch.Tensor:
        """Return the unweighted updates of these clients: shape (clients, d), float64, on the device.

        ``take`` gives the records at some places among the examples.
        """
        orders = [cohort.order_of(client_id, order) for client_id in clients]
        data = order.task.load().train if order.task.by_person else None
        rows = rows_to_take(data) if isinstance(data, Split) else None
        holders = [
            holder_of(
                own,
                client_id,
                order.task.client_indices(client_id),
                partial(order.task.client_data, client_id),
                self._bits,
                rows,
            )
            for own, client_id in zip(orders, clients, strict=True)
        ]
        updates: Updates = function_of(order.work, "updates")
        grid = cohort.encoding.grid
        return updates(RecordJobs(orders, theta, self.gradients, holders, take, grid, self.graphs))


class BatchedEngine(Engine):
    """A simulation engine that trains many clients at once, or one after the other by a compiled program.

    On a CPU the result does not depend on the size of a chunk, bit for bit; on a GPU the library may
    choose another product for another number of matrices, which moves the last bits of an update.

    Args:
        task: model and data.
        device: where to train.
        precision: of the products in local training.
        chunk_clients: how many clients at once; None for as many as suit the device.
        bits: the source of every client's secret bits, for works on records and noise of its own.
        graphs: whether a step may be recorded as a graph, on a GPU.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device,
        *,
        precision: str = "float32",
        graphs: bool = False,
        chunk_clients: int | None = None,
        bits: BitsOf = secret_bits,
    ) -> None:
        self.device = device
        self._precision, self._graphs = precision, graphs
        self._choose_training = partial(choose_training, task, device, precision, graphs)
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
        gradients, record = gradients_of(self._task, self.device), recorder(self.device, self._graphs)
        graphs, _ = graphs_of(self._task, gradients, record, self._examples.resident)
        return BatchedRecords(gradients, self._bits, graphs)

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for clients, steps in self._chunks(order, _Starts.one(theta), cohort):
            yield clients, on_host(steps)

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        return self.sums_of([SumJob(order, theta, cohort)])[0]

    def sums_of(self, jobs: Sequence[SumJob]) -> list[StepSum]:
        """Return the sum of each cohort; cohorts with the same instruction and rounding train together."""
        totals = [StepSum.zero(job.cohort.encoding.dimension) for job in jobs]
        for number, clients, steps in self._pieces(jobs):
            totals[number].add(on_host(steps.sum(dim=0)), len(clients))
        return totals

    def updates_of(self, jobs: Sequence[SumJob]) -> Iterator[tuple[int, Sequence[int], Steps]]:
        """Yield several cohorts' updates; cohorts with the same instruction and rounding train together."""
        for number, clients, steps in self._pieces(jobs):
            yield number, clients, on_host(steps)

    def _pieces(self, jobs: Sequence[SumJob]) -> Iterator[tuple[int, Sequence[int], torch.Tensor]]:
        """Yield pieces: a sum's index, ids of some of its clients, and their updates on the device."""
        for numbers in _numbers_of_equal_jobs(jobs):
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
        """Yield client ids and their updates on the device; halve a chunk that does not fit into memory."""
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
                self._forget_graphs(order)
                continue
            begin += len(clients)
            yield chunk

    def _chunk(
        self, order: TrainingOrder, theta: Theta, clients: Sequence[int], cohort: Cohort
    ) -> tuple[Sequence[int], torch.Tensor]:
        if not (order.kind.on_records or order.work in TRAINED_TOGETHER):
            steps = self._one_by_one(order, theta, clients, cohort)
        else:
            steps = contributions_steps(self._updates(order, theta, clients, cohort), order, cohort, clients)
        if cohort.kept is not None:
            cohort.kept.keep(clients, steps.cpu().numpy(), cohort.encoding.grid, order)
        return clients, steps

    def _one_by_one(
        self, order: TrainingOrder, theta: Theta, clients: Sequence[int], cohort: Cohort
    ) -> torch.Tensor:
        """Compute each client's contribution one by one, for tasks that batching does not speed up."""
        starts = np.broadcast_to(theta, (len(clients), theta.shape[-1]))
        steps = [
            update_steps(Job(cohort.order_of(client, order), start, cohort.encoding, client, bits=self._bits))
            for start, client in zip(starts, clients, strict=True)
        ]
        return torch.from_numpy(np.stack(steps))

    def _updates(
        self, order: TrainingOrder, theta: Theta, clients: Sequence[int], cohort: Cohort
    ) -> torch.Tensor:
        """Compute the clients' updates before weighting: shape (clients, d), float64, on the device."""
        if order.kind.on_records:
            return self._records.updates(order, theta, clients, cohort, self._examples.take)
        batches, added = Batches.draw(order, clients, with_keys=self._training.draws), None
        if cohort.kept is not None:
            added = torch.from_numpy(cohort.kept.added(clients, order.training)).to(self.device)
        updates = self._training.updates(theta, order.training, self._examples, batches, added)
        if added is None and not (has_examples := batches.weights.any(axis=(0, 2))).all():
            # As on a node, who has none takes no step: weight decay would move its model, too.
            updates[torch.from_numpy(~has_examples).to(updates.device)] = 0
        if order.kind.own_noise:
            for row, client in enumerate(clients):
                own = cohort.order_of(client, order)
                updates[row] = with_own_noise(own, updates[row], self._bits(client))
        if order.kind.once == "norm_histogram":
            owns = [cohort.order_of(client, order) for client in clients]
            return histograms(updates, owns, cohort.encoding)
        return updates

    def _forget_graphs(self, order: TrainingOrder) -> None:
        if order.kind.on_records:
            if self._records.graphs is not None:
                self._records.graphs.forget()
        elif isinstance(self._training, BatchedTraining):
            self._training.forget()

    def _clients_at_once(self, order: TrainingOrder, theta: Theta) -> int:
        if order.kind.on_records:
            return self._records.clients_at_once(len(theta))
        return clients_at_once(self._training, theta, order, self._examples)


@dataclass(frozen=True, eq=False)
class _Starts:
    """The models that clients start from: the same for all clients, or one for each sum.

    `models`: shape (sums, d). `owners`: the number of its sum for every client, in their order.
    """

    models: Theta
    owners: npt.NDArray[np.int64]

    @classmethod
    def one(cls, theta: Theta) -> "_Starts":
        """Return start models that are the same for all clients."""
        return cls(theta[None], np.zeros(0, np.int64))

    def of(self, begin: int, count: int) -> Theta:
        """Return the start models of consecutive clients: shape (d,) if all are equal, else (count, d)."""
        if len(self.models) == 1:
            one: Theta = self.models[0]
            return one
        return self.models[self.owners[begin : begin + count]]


def _numbers_of_equal_jobs(jobs: Sequence[SumJob]) -> list[list[int]]:
    """Group jobs (sums to compute) that have equal instructions and rounding steps; return their indices."""
    kinds: list[tuple[SumJob, list[int]]] = []
    for number, job in enumerate(jobs):
        for first, numbers in kinds:
            alike = job.cohort.encoding == first.cohort.encoding and job.cohort.kept is first.cohort.kept
            if alike and job.order == first.order:
                numbers.append(number)
                break
        else:
            kinds.append((job, [number]))
    return [numbers for _, numbers in kinds]


def contributions_steps(
    updates: torch.Tensor, order: TrainingOrder, cohort: Cohort, clients: Sequence[int]
) -> torch.Tensor:
    """Weigh, clip and round the updates of some clients, shape (clients, d); the input is overwritten."""
    if cohort.parts:
        updates *= updates.new_tensor(cohort.weights(clients))[:, None]
    if order.norm_factor != 1.0:
        updates /= order.norm_factor
    encodings = cohort.encodings(clients)
    if order.indicator_share:
        bounds = updates.new_tensor([[encoding.clip_bound] for encoding in encodings])
        updates = with_indicator(updates, bounds, order.indicator_share)
    return clipped_steps(updates, encodings)
