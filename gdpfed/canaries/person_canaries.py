"""Canaries that are persons with several rows, so that what puts rows together is measured as well."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.record_gradients import RecordGradients
from gdpfed.clients.record_work import of_persons
from gdpfed.errors import LearningError
from gdpfed.learning.data import Split, load_dataset
from gdpfed.learning.data.persons import persons_of
from gdpfed.learning.task import Task
from gdpfed.learning.training.record_training import Take


@dataclass(frozen=True, eq=False)
class PersonRows:
    """Which rows of a table lie at every place among the examples, and whose they are by the table.

    `numbers`: of the rows at every place, shape (places, most rows of a person). `labels`: theirs, of the
    same shape, without a label where there is no row. `person_of`: whose every row is, shape (rows,).
    """

    numbers: npt.NDArray[np.int64]
    labels: npt.NDArray[np.generic]
    person_of: npt.NDArray[np.int64]

    @classmethod
    def of(cls, task: Task, parties: int) -> "PersonRows":
        """Number the rows of a table, and put the numbers together as a run does with the rows.

        Whose a row is comes from its column: of one party, unless a person may be at several. Raises
        LearningError: data in which no row has a person.
        """
        data = load_dataset(task.source)
        train = data.train
        if not isinstance(train, Split) or train.persons is None:
            raise LearningError("only tables say which person a row is about")
        numbered = persons_of(replace(data, train=replace(train, x=np.arange(len(train))[:, None])))
        places = numbered.train.take(np.arange(len(numbered.train)))
        owners = np.zeros_like(train.persons) if parties > 1 or data.owners is None else data.owners
        _, person_of = np.unique(np.stack([owners, train.persons]), axis=1, return_inverse=True)
        return cls(places.x[..., 0].astype(np.int64), places.y, person_of.reshape(-1))

    @property
    def whose(self) -> npt.NDArray[np.int64]:
        """The person at every place, which is that of its first row."""
        return np.asarray(self.person_of[self.numbers[:, 0]])

    def take(self, places: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers and labels of the rows at some places, in place of inputs and targets."""
        return torch.from_numpy(self.numbers[places]), torch.from_numpy(self.labels[places])


class _CanaryRows(nn.Module):
    """A model of rows, given by their numbers: minus a length times a coordinate, shape (rows, 1)."""

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
        """The gradient of a row is minus its canary's vector, times its length."""
        return (-self.lengths[rows] * self.theta[self.coordinates[rows]])[:, None]


def person_gradients(
    rows: PersonRows,
    number_of_person: npt.NDArray[np.int64],
    coordinates: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.float64],
    dimension: int,
) -> tuple[RecordGradients, Take]:
    """Gradients of persons by the code of a run, each row's being its canary's; and what takes the rows.

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
