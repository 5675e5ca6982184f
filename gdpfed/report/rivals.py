"""What a run's model is measured against: models that a party or all parties could have without the run."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from conf.schema import Config
from gdpfed.errors import ReportError
from gdpfed.learning.data import Dataset, Split
from gdpfed.learning.models import assign, flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import LocalTraining, local_update
from gdpfed.learning.training.near_fit import fit_near
from gdpfed.report.class_figures import Scores

RIDGE = 1.0
"""The penalty on parameters of models that are trained alone or on all rows, as scikit-learn's default."""
NOT_ACCOUNTED = "not accounted"
Models = Sequence[nn.Module]


@dataclass(frozen=True, eq=False)
class Rival:
    """One model for all parties, or one of each party's own.

    Attributes:
        name: in print.
        privacy: what a record is promised.
        scores: on every test row, by the model of its party, shape (N, k).
    """

    name: str
    privacy: str
    scores: Scores


@dataclass(frozen=True, eq=False)
class Parties:
    """The rows of every party, to train on and to test on."""

    task: Task
    data: Dataset
    owners: npt.NDArray[np.int64]
    test_owners: npt.NDArray[np.int64]

    @classmethod
    def of(cls, task: Task) -> "Parties":
        """The parties of a task.

        Raises:
            ReportError: labels that are numbers, or test rows that are nobody's.
        """
        data = task.load()
        name = task.source.name
        if data.num_classes < 2:
            raise ReportError(f"dataset={name} has numbers as labels: what is compared tells classes apart")
        if data.owners is None or data.test_owners is None:
            raise ReportError(
                f"dataset={name} does not say whose its test rows are: compare on data that come by party"
            )
        return cls(task, data, data.owners, data.test_owners)

    @property
    def names(self) -> tuple[str, ...]:
        """What the parties are called."""
        return self.data.owner_names or tuple(f"party {number}" for number in range(self.count))

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.owners.max()) + 1

    def train(self, party: int) -> Split:
        """The rows that one party trains on."""
        return self.data.train.take(np.flatnonzero(self.owners == party))

    def labels(self) -> npt.NDArray[np.int64]:
        """The classes of all test rows."""
        return np.asarray(self.data.test.y, dtype=np.int64)

    def scores(self, models: Models) -> Scores:
        """Scores of every test row by the model of its party."""
        found = np.zeros((len(self.data.test), self.data.num_classes))
        for party, model in enumerate(models):
            rows = np.flatnonzero(self.test_owners == party)
            with torch.inference_mode():
                x = torch.from_numpy(self.data.test.take(rows).x)
                found[rows] = model.eval()(x).double().numpy()
        return found

    def own(self, model: nn.Module, names: Sequence[str], pull: float) -> Models:
        """One model a party: the given one, with the named parameters fitted to the party's rows."""
        models = [deepcopy(model) for _ in range(self.count)]
        for party, each in enumerate(models):
            fit_near(each, self.train(party), self.task.make_loss(), names=names, pull=pull)
        return models


def rivals(parties: Parties, config: Config) -> Iterator[Rival]:
    """The most frequent class, each party alone, all rows in one place, and fedavg without privacy."""
    task = parties.task
    yield Rival("most frequent class", NOT_ACCOUNTED, parties.scores(_most_frequent(parties)))
    every = [name for name, _ in task.build_model().named_parameters()]
    yield Rival(
        "each party alone", NOT_ACCOUNTED, parties.scores(parties.own(task.build_model(), every, RIDGE))
    )
    pooled = task.build_model()
    whole = parties.data.train.take(np.arange(len(parties.data.train)))
    fit_near(pooled, whole, task.make_loss(), names=every, pull=RIDGE)
    yield Rival("all rows in one place", "none", parties.scores([pooled] * parties.count))
    averaged = _federated_average(parties, config)
    yield Rival("fedavg without privacy", "none", parties.scores([averaged] * parties.count))


class _Constant(nn.Module):
    """Scores that are the logarithm of how frequent the classes are."""

    def __init__(self, counts: npt.NDArray[np.int64]) -> None:
        super().__init__()
        self.scores = torch.from_numpy(np.log((counts + 1) / (counts.sum() + len(counts))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores.expand(len(x), -1)


def _most_frequent(parties: Parties) -> Models:
    classes = parties.data.num_classes
    counts = [np.bincount(parties.train(each).y, minlength=classes) for each in range(parties.count)]
    return [_Constant(each) for each in counts]


def _federated_average(parties: Parties, config: Config) -> nn.Module:
    """FedAvg over all parties, weighted by rows, with the settings that the data set recommends."""
    recommended, model, loss = config.dataset, parties.task.build_model(), parties.task.make_loss()
    for each in model.parameters():
        each.requires_grad_(True)
    theta, rng, cpu = flatten(model), np.random.default_rng(config.run.seed), torch.device("cpu")
    splits = [parties.train(each) for each in range(parties.count)]
    weights = np.array([len(each) for each in splits]) / sum(map(len, splits))
    rate = recommended.learning_rate
    for _ in range(recommended.num_rounds):
        training = LocalTraining(recommended.local_steps, recommended.batch_size, rate, recommended.momentum)
        updates = [
            local_update(model, theta, split, training, rng=rng, device=cpu, loss=loss).numpy()
            for split in splits
        ]
        theta = (theta + np.tensordot(weights, np.array(updates), axes=1)).astype(np.float32)
        rate *= recommended.learning_rate_decay
    assign(model, torch.from_numpy(theta))
    return model
