"""Canaries among records: a record whose gradient is a known vector or, by a coin of its own, is zero."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import Part, RecordGradients, Rows
from gdpfed.canaries.canary import OVERSHOOT, Canaries, Vectors, dirac_directions, parts_of
from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.clients.record_work import checked_steps
from gdpfed.clients.update import contribution_steps
from gdpfed.learning.data.record_groups import record_groups
from gdpfed.learning.task import Task
from gdpfed.methods.base import Theta
from gdpfed.privacy.mechanisms.record_sums import records_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.simulation.batched import BatchedRecords, contributions_steps
from gdpfed.simulation.engine import Cohort, Engine, Steps

TellUpdates = Callable[[int, npt.NDArray[np.bool_], Vectors, npt.NDArray[np.float64]], None]
"""Is told a round, which canaries' clients sent an update, what it holds of each, and its noise there."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordCanaries(Canaries):
    """The canaries of one run that protects records.

    Of a canary that is present the gradient is minus a vector three times as long as the bound, in every
    step, whatever the model is; of all other records it is zero. So what a client sends goes in the canary's
    direction. `clients`: whose record each is, shape (m,). `places`: where each lies among the examples,
    shape (m,). `norms`: the bound on the gradient of each, shape (m,). `group_sizes`: how many records of
    each group every client has, shape (clients, groups of records).
    """

    places: npt.NDArray[np.int64]
    norms: npt.NDArray[np.float64]
    group_sizes: npt.NDArray[np.int64]

    @cached_property
    def number_at(self) -> npt.NDArray[np.int64]:
        """The number of the canary at every place up to the last, -1 where there is none."""
        numbers = np.full(int(self.places.max()) + 1, -1, dtype=np.int64)
        numbers[self.places] = np.arange(len(self.places))
        return numbers

    def gradients(self, places: npt.NDArray[np.int64], dimension: int) -> npt.NDArray[np.float32]:
        """The gradients of the records at these places before they are clipped, shape (places, d)."""
        found = np.zeros((len(places), dimension), dtype=np.float32)
        numbers = np.where(places < len(self.number_at), self.number_at[places % len(self.number_at)], -1)
        ours = np.flatnonzero(numbers >= 0)
        canaries = numbers[ours]
        lengths = OVERSHOOT * self.norms * self.present
        found[ours] = -self.directions.vectors(canaries) * lengths[canaries, None]
        return found


def choose_records(
    plan: PrivacyPlan, task: Task, dimension: int, generator: np.random.Generator
) -> RecordCanaries:
    """Records of all clients and groups alike as canaries: all, or as many as there are coordinates."""
    num_groups = max(part.record_group for part in parts_of(plan)) + 1
    sizes = np.zeros((plan.num_clients, num_groups), dtype=np.int64)
    found, norms, first = [], [], 0
    for group, records in zip(plan.groups, records_of(plan), strict=True):
        for client_id in group.clients:
            own, record_group = _records(task, client_id, num_groups)
            sizes[client_id] = np.bincount(record_group, minlength=num_groups)
            found.append(np.stack([np.full(len(own), client_id), first + record_group, own]))
        norms += [records.clipping_norm] * len(records.groups)
        first = len(norms)
    clients, parts, places = np.concatenate(found, axis=1).astype(np.int64)
    count = min(dimension, len(places))
    chosen = np.sort(generator.choice(len(places), count, replace=False))
    return RecordCanaries(
        clients=clients[chosen],
        groups=parts[chosen],
        present=generator.random(count) < 0.5,
        directions=dirac_directions(count, dimension, generator),
        adjacency=plan.adjacency,
        places=places[chosen],
        norms=np.asarray(norms)[parts[chosen]],
        group_sizes=sizes,
    )


def _records(
    task: Task, client_id: int, num_groups: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where a client's records lie among the examples, and the group of each."""
    places = task.client_indices(client_id)
    if num_groups == 1:
        return places, np.zeros(len(places), dtype=np.int64)
    split = task.client_data(client_id)
    return places, record_groups(split, num_groups, task.record_shares, task.seed, client_id)


class CanaryGradients(RecordGradients):
    """The gradients of canaries; what clips, sums and noises them is the code of every run."""

    form = "canaries"
    stacks = True

    def __init__(self, task: Task, canaries: RecordCanaries) -> None:
        super().__init__(task.build_model(), cross_entropy, torch.device("cpu"))
        self._canaries = canaries

    def parts(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Sequence[Part]:
        """Of records that are given by their places, in ``x``."""
        return [Rows(torch.from_numpy(self._canaries.gradients(x.numpy(), thetas.shape[1])))]


class RecordCanaryEngine(Engine):
    """Clients whose records are canaries or send nothing, batches and noise by the code of every run.

    `canaries`: of the run. `task`: model and data. `many_at_once`: whether the code of the batched engine is
    used in place of a node's. `tell`: is told what every update that is private by itself holds of its
    client's canaries.
    """

    def __init__(
        self, canaries: RecordCanaries, task: Task, *, many_at_once: bool, tell: TellUpdates
    ) -> None:
        self._canaries, self._many_at_once, self._tell = canaries, many_at_once, tell
        self._records = BatchedRecords(CanaryGradients(task, canaries))

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        clients = list(cohort.clients)
        shown, noise = np.zeros((2, len(self._canaries.clients)))
        for some in [clients] if self._many_at_once else [[each] for each in clients]:
            updates = self._records.updates(order, theta, some, cohort, _places)
            steps = self._steps(order, updates, cohort, some)
            if order.kind.own_noise:
                for client_id, own in zip(some, steps, strict=True):
                    ours = self._canaries.clients == client_id
                    shown[ours], noise[ours] = self._shown(order, cohort, client_id, own)[:, ours]
            yield some, steps
        if order.kind.own_noise:
            self._tell(order.round_index, np.isin(self._canaries.clients, clients), shown, noise)

    def _steps(
        self, order: TrainingOrder, updates: torch.Tensor, cohort: Cohort, clients: Sequence[int]
    ) -> Steps:
        if self._many_at_once:
            return contributions_steps(updates, order, cohort, clients).numpy()
        part = cohort.parts.get(clients[0], ClientPart())
        return contribution_steps(order.for_part(part), updates[0], cohort.encoding)[None]

    def _shown(
        self, order: TrainingOrder, cohort: Cohort, client_id: int, steps: npt.NDArray[np.int64]
    ) -> Vectors:
        """What an update holds of every canary, as a sum over its steps, and the noise in that.

        An update is -eta / B times the sum of its steps, the s-th from behind with weight
        1 + beta + ... + beta^(s-1) under momentum beta. It is shown over their mean weight.
        """
        own = checked_steps(order.for_part(cohort.parts.get(client_id, ClientPart())))
        momenta = np.cumsum(order.training.momentum ** np.arange(own.num_steps))
        batch = float(self._canaries.group_sizes[client_id] @ np.asarray(own.batch_rates))
        scale = batch / (order.training.learning_rate * momenta.mean() * cohort.weights([client_id])[0])
        stddev = own.clipping_norm * own.noise_multiplier * np.linalg.norm(momenta) / momenta.mean()
        shown = self._canaries.directions.project(steps * cohort.encoding.grid * scale)
        return np.stack([shown, np.full(len(shown), stddev)])


def _places(places: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Records that are their places, in place of inputs and targets."""
    found = torch.from_numpy(places)
    return found, found
