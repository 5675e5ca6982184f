"""Record canaries: a fair coin decides whether a canary record's gradient is a known vector or zero.

Some are persons with several rows, so that what puts rows together is measured as well.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import RecordGradients
from fastgrad.record_parts import Part, Rows
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_forms import of_persons
from gdpfed.clients.record_work import checked_steps
from gdpfed.clients.update import contribution_steps
from gdpfed.errors import LearningError
from gdpfed.extras.canaries.canary import (
    OVERSHOOT,
    Canaries,
    DiracDirections,
    Vectors,
    dirac_directions,
    parts_of,
)
from gdpfed.learning.data import Split, load_dataset
from gdpfed.learning.data.client_partition import record_groups
from gdpfed.learning.data.persons import persons_of
from gdpfed.learning.task import Task
from gdpfed.learning.training.record_training import Take
from gdpfed.methods.base import Theta
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.simulation.batched import BatchedRecords, contributions_steps
from gdpfed.simulation.engine import Cohort, Engine, Steps


@dataclass(frozen=True, eq=False)
class PersonRows:
    """Which rows of a table form each example, and which person each row belongs to.

    `numbers`: of the rows at every place, shape (places, most rows of a person). `labels`: theirs, of the
    same shape, without a label where there is no row. `person_of`: whose every row is, shape (rows,).
    """

    numbers: npt.NDArray[np.int64]
    labels: npt.NDArray[np.generic]
    person_of: npt.NDArray[np.int64]

    @classmethod
    def of(cls, task: Task, parties: int) -> "PersonRows":
        """Number the rows of a table, and group them by person as training does.

        Whose a row is comes from its column: of one party, unless a person may be at several. Raises
        LearningError: data in which no row has a person.
        """
        data = load_dataset(task.source)
        train = data.train
        if not isinstance(train, Split) or train.persons is None:
            raise LearningError(
                "only tables say which person a row is about: use dataset=csv with declared persons, or "
                "choose a run that protects rows"
            )
        numbered = persons_of(replace(data, train=replace(train, x=np.arange(len(train))[:, None])))
        places = numbered.train.take(np.arange(len(numbered.train)))
        owners = np.zeros_like(train.persons) if parties > 1 or data.owners is None else data.owners
        _, person_of = np.unique(np.stack([owners, train.persons]), axis=1, return_inverse=True)
        return cls(places.x[..., 0].astype(np.int64), places.y, person_of.reshape(-1))

    @property
    def whose(self) -> npt.NDArray[np.int64]:
        """The person of each example, shape (examples,)."""
        return np.asarray(self.person_of[self.numbers[:, 0]])

    def take(self, places: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the row numbers of some examples as their inputs, and the rows' labels as their targets."""
        return torch.from_numpy(self.numbers[places]), torch.from_numpy(self.labels[places])


class _CanaryRows(nn.Module):
    """A model with known gradients: for row r, its output is -lengths[r] * theta[coordinates[r]]."""

    coordinates: torch.Tensor
    lengths: torch.Tensor

    def __init__(
        self, coordinates: npt.NDArray[np.int64], lengths: npt.NDArray[np.float64], dimension: int
    ) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(dimension))
        self.register_buffer("coordinates", torch.from_numpy(coordinates))
        self.register_buffer("lengths", torch.from_numpy(lengths.astype(np.float32)))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return -lengths[r] * theta[coordinates[r]] for each row r, so that gradients are known."""
        return (-self.lengths[rows] * self.theta[self.coordinates[rows]])[:, None]


def person_gradients(
    rows: PersonRows,
    number_of_person: npt.NDArray[np.int64],
    coordinates: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.float64],
    dimension: int,
) -> tuple[RecordGradients, Take]:
    """Return the object that computes canary persons' gradients, and the function that reads their rows.

    Args:
        rows: of the table.
        number_of_person: of its canary, -1 where it is none, shape (persons,).
        coordinates, lengths: of every canary, shape (m,).
        dimension: d.
    """
    number = number_of_person[rows.person_of]
    model = _CanaryRows(coordinates[number], np.where(number < 0, 0.0, lengths[number]), dimension)
    outputs: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda outputs, y: outputs[:, 0]  # noqa: E731
    whole, loss = of_persons(model, outputs)
    return RecordGradients(whole, loss, torch.device("cpu"), vmapped=True), rows.take


TellUpdates = Callable[[int, npt.NDArray[np.bool_], Vectors, npt.NDArray[np.float64]], None]
"""Is told a round, which canaries' clients sent an update, what it holds of each, and its noise there."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordCanaries(Canaries):
    """Which records of one run are canaries, which of them are present, and the gradient of each.

    Of a canary that is present the gradient is minus a vector three times as long as the bound, in every
    step, whatever the model is; of all other records it is zero. So what a client sends goes in the canary's
    direction. A canary that is a person has such a gradient for each of its rows, at every client where it
    has any.

    `clients`: whose record each is, of a person the first, shape (m,). `directions`: a coordinate of its own
    for each. `number_at`: the number of the canary at every place among the examples, -1 where there is none.
    `norms`: the bound on the gradient of each, shape (m,). `group_sizes`: how many records of each group
    every client has, shape (clients, groups of records). `at`: at which clients each is, shape (clients, m).
    `rows`: of the table whose persons the canaries are; None of records.
    """

    directions: DiracDirections
    number_at: npt.NDArray[np.int64]
    norms: npt.NDArray[np.float64]
    group_sizes: npt.NDArray[np.int64]
    at: npt.NDArray[np.bool_]
    rows: PersonRows | None = None

    @property
    def parts(self) -> npt.NDArray[np.int64]:
        """At how many clients each canary has records, shape (m,)."""
        return np.asarray(self.at.sum(axis=0))

    @property
    def lengths(self) -> npt.NDArray[np.float64]:
        """The gradient norm of each canary, or of each row of a canary person, shape (m,)."""
        return OVERSHOOT * self.norms * self.present

    @property
    def number_of_person(self) -> npt.NDArray[np.int64]:
        """The number of each person's canary, or -1 for a person who is not a canary, shape (persons,)."""
        rows = self.rows
        if rows is None:
            raise LearningError(
                "canaries are single records, and this run protects persons: measure a run that protects rows"
            )
        number = np.full(int(rows.person_of.max()) + 1, -1, dtype=np.int64)
        ours = np.flatnonzero(self.number_at >= 0)
        number[rows.whose[ours]] = self.number_at[ours]
        return number

    def gradients(self, places: npt.NDArray[np.int64], dimension: int) -> npt.NDArray[np.float32]:
        """Return the unclipped gradients of the records at these positions, shape (places, d)."""
        numbers = np.where(places < len(self.number_at), self.number_at[places % len(self.number_at)], -1)
        ours = np.flatnonzero(numbers >= 0)
        canaries = numbers[ours]
        rows = self.directions.vectors(canaries)
        rows *= -self.lengths[canaries, None]
        if len(ours) == len(places):
            return rows.astype(np.float32)
        found = np.zeros((len(places), dimension), dtype=np.float32)
        found[ours] = rows
        return found


def choose_records(
    plan: PrivacyPlan, task: Task, dimension: int, generator: np.random.Generator
) -> RecordCanaries:
    """Choose at most `dimension` canaries uniformly from all clients' records, or from all persons."""
    parts = parts_of(plan)
    num_groups = max(part.record_group for part in parts) + 1
    sizes = np.zeros((plan.num_clients, num_groups), dtype=np.int64)
    found, norms, budgets, first = [], list[float](), list[float](), 0
    for group, records in zip(plan.groups, records_of(plan), strict=True):
        for client_id in group.clients:
            own, record_group = _records(task, client_id, num_groups)
            sizes[client_id] = np.bincount(record_group, minlength=num_groups)
            found.append(np.stack([np.full(len(own), client_id), first + record_group, own]))
        norms += [records.clipping_norm] * len(records.groups)
        budgets += [each.epsilon for each in records.groups]
        first = len(norms)
    clients, part_of, places = np.concatenate(found, axis=1).astype(np.int64)
    # A person at clients with different budgets is promised the largest.
    dearest = np.argsort(-np.asarray(budgets)[part_of], kind="stable")
    clients, part_of, places = clients[dearest], part_of[dearest], places[dearest]
    rows = PersonRows.of(task, records_of(plan)[0].parties) if task.by_person else None
    whose = places if rows is None else rows.whose[places]
    units, chosen_from, unit_of = np.unique(whose, return_index=True, return_inverse=True)
    count = min(dimension, len(units))
    chosen = np.sort(generator.choice(len(units), count, replace=False))
    numbers = np.full(len(units), -1, dtype=np.int64)
    numbers[chosen] = np.arange(count)
    number_at = np.full(int(places.max()) + 1, -1, dtype=np.int64)
    number_at[places] = numbers[unit_of]
    at = np.zeros((plan.num_clients, count + 1), dtype=np.bool_)
    at[clients, numbers[unit_of]] = True
    groups = part_of[chosen_from[chosen]]
    return RecordCanaries(
        clients=clients[chosen_from[chosen]],
        groups=groups,
        present=generator.random(count) < 0.5,
        directions=dirac_directions(count, dimension, generator),
        adjacency=plan.adjacency,
        number_at=number_at,
        norms=np.asarray(norms)[groups],
        group_sizes=sizes,
        at=at[:, :count],
        rows=rows,
    )


def _records(
    task: Task, client_id: int, num_groups: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the positions of a client's records among the examples, and each record's budget group."""
    places = task.client_indices(client_id)
    if num_groups == 1:
        return places, np.zeros(len(places), dtype=np.int64)
    split = task.client_data(client_id)
    return places, record_groups(split, num_groups, task.record_shares, task.seed, client_id)


class CanaryGradients(RecordGradients):
    """The known gradients of canary records, which the run's code clips, sums and adds noise to."""

    form = "canaries"
    stacks = True

    def __init__(self, task: Task, canaries: RecordCanaries) -> None:
        super().__init__(task.build_model(), cross_entropy, torch.device("cpu"))
        self._canaries = canaries

    def parts(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Sequence[Part]:
        """Return the gradients of the records whose positions are in ``x``."""
        return [Rows(torch.from_numpy(self._canaries.gradients(x.numpy(), thetas.shape[1])))]


class RecordCanaryEngine(Engine):
    """A simulation engine in which records are canaries or have gradient zero.

    `canaries`: of the run. `task`: model and data. `many_at_once`: whether the code of the batched engine is
    used in place of a node's. `tell`: is told what every update that is private by itself holds of its
    client's canaries.
    """

    def __init__(
        self, canaries: RecordCanaries, task: Task, *, many_at_once: bool, tell: TellUpdates
    ) -> None:
        self._canaries, self._many_at_once, self._tell = canaries, many_at_once, tell
        gradients: RecordGradients = CanaryGradients(task, canaries)
        self._take: Take = _places
        if canaries.rows is not None:
            gradients, self._take = person_gradients(
                canaries.rows,
                canaries.number_of_person,
                canaries.directions.coordinates,
                canaries.lengths,
                task.dimension,
            )
        self._records = BatchedRecords(gradients)

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        clients = list(cohort.clients)
        shown, variance = np.zeros((2, len(self._canaries.clients)))
        for some in [clients] if self._many_at_once else [[each] for each in clients]:
            updates = self._records.updates(order, theta, some, cohort, self._take)
            steps = self._steps(order, updates, cohort, some)
            if order.kind.own_noise:
                for client_id, own in zip(some, steps, strict=True):
                    told, stddev = self._shown(order, cohort, client_id, own)
                    shown += self._canaries.at[client_id] * told
                    variance += self._canaries.at[client_id] * stddev**2
            yield some, steps
        if order.kind.own_noise:
            asked = np.asarray(self._canaries.at[clients].any(axis=0))
            self._tell(order.round_index, asked, shown, np.sqrt(variance))

    def _steps(
        self, order: TrainingOrder, updates: torch.Tensor, cohort: Cohort, clients: Sequence[int]
    ) -> Steps:
        if self._many_at_once:
            return contributions_steps(updates, order, cohort, clients).numpy()
        own = cohort.order_of(clients[0], order)
        return contribution_steps(own, updates[0], cohort.encoding)[None]

    def _shown(
        self, order: TrainingOrder, cohort: Cohort, client_id: int, steps: npt.NDArray[np.int64]
    ) -> Vectors:
        """Return a client's update projected onto each canary's vector, and the noise stddev of projections.

        An update is -eta / B times the sum of its steps, the s-th from behind with weight
        1 + beta + ... + beta^(s-1) under momentum beta. It is shown over their mean weight.
        """
        own = checked_steps(cohort.order_of(client_id, order))
        momenta = np.cumsum(order.training.momentum ** np.arange(own.num_steps))
        batch = float(self._canaries.group_sizes[client_id] @ np.asarray(own.batch_rates))
        scale = batch / (order.training.learning_rate * momenta.mean() * cohort.weights([client_id])[0])
        stddev = own.clipping_norm * own.noise_multiplier * np.linalg.norm(momenta) / momenta.mean()
        shown = self._canaries.directions.project(steps * cohort.encoding.grid * scale)
        return np.stack([shown, np.full(len(shown), stddev)])


def _places(places: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return records' positions instead of the records: once as the inputs and once as the targets."""
    found = torch.from_numpy(places)
    return found, found
