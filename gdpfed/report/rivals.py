"""``gdpfed compare``: a run's model beside what parties could have without it, in all and by party."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file
from torch import nn

from conf.load import load
from conf.schema import Config
from gdpfed.clients.configured import task_of
from gdpfed.errors import ReportError
from gdpfed.learning.adapted_model import fit_near
from gdpfed.learning.data import Dataset, Split
from gdpfed.learning.data.client_partition import client_of_owner
from gdpfed.learning.labels.intervals import FEWEST
from gdpfed.learning.model_folder import read_model
from gdpfed.learning.models import assign, flatten, names_of
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import local_update
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.methods import METHODS
from gdpfed.report.class_figures import Figure, Scores, figures_of
from gdpfed.report.console import Table
from gdpfed.report.finished_run import read_run
from gdpfed.report.metric_display import TOO_FEW
from gdpfed.runs.file_formats import PERSONAL_FILE, PERSONAL_KEY
from gdpfed.runs.paths import as_of_run

RIDGE = 1.0
"""The penalty on parameters of models that are trained alone or on all rows, as scikit-learn's default."""
NOT_ACCOUNTED = "not accounted"
RIVALS = ("most frequent class", "each party alone", "all rows in one place", "fedavg without privacy")
"""What a run is compared with, by name, in the order of :func:`rivals`."""
Models = Sequence[nn.Module]


@dataclass(frozen=True, eq=False)
class Rival:
    """A model to compare with: one for all parties, or one for each.

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

        Raises ReportError: labels that are no classes, or test rows that are nobody's.
        """
        data = task.load()
        name = task.source.name
        if not data.labels.is_one_class:
            raise ReportError(
                f"dataset={name} has {data.labels.words} as labels: what is compared tells classes apart"
            )
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
        """The number of parties."""
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
    """Train what to compare with: constant guess, each party alone, all rows pooled, fedavg."""
    task = parties.task
    constant, alone, in_one_place, averaging = RIVALS
    yield Rival(constant, NOT_ACCOUNTED, parties.scores(_most_frequent(parties)))
    every = [name for name, _ in task.build_model().named_parameters()]
    yield Rival(alone, NOT_ACCOUNTED, parties.scores(parties.own(task.build_model(), every, RIDGE)))
    pooled = task.build_model()
    whole = parties.data.train.take(np.arange(len(parties.data.train)))
    fit_near(pooled, whole, task.make_loss(), names=every, pull=RIDGE)
    yield Rival(in_one_place, "none", parties.scores([pooled] * parties.count))
    averaged = _federated_average(parties, config)
    yield Rival(averaging, "none", parties.scores([averaged] * parties.count))


class _Constant(nn.Module):
    """A constant guess: the scores are the logarithms of the class frequencies."""

    def __init__(self, counts: npt.NDArray[np.int64]) -> None:
        super().__init__()
        self.scores = torch.from_numpy(np.log((counts + 1) / (counts.sum() + len(counts))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores.expand(len(x), -1)


def _most_frequent(parties: Parties) -> Models:
    classes = parties.data.num_classes
    labels = (parties.train(each).y.astype(np.int64, copy=False) for each in range(parties.count))
    return [_Constant(np.bincount(each, minlength=classes)) for each in labels]


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


EVERYWHERE = "all"
HEADINGS = ("accuracy", "AUC", "balanced accuracy"), ("sensitivity", "specificity", "calibration")
BY_PARTY = ("accuracy", "AUC")
"""What is shown by party."""
NOTE = (
    "In percent, with 95 % intervals that follow from the number of test rows alone. The figures come from "
    "these rows without noise: no budget covers them, and by party they tell of that party. Not accounted: "
    "trained on a party's own rows without noise, for its own use. None: without privacy, for comparison."
)
OF_TWO = (
    "Class 1 is '{positive}'. Sensitivity: of its rows; specificity: of the others. Calibration: the mean "
    "predicted probability minus the share of class 1."
)


@dataclass(frozen=True, eq=False)
class Worth:
    """All metrics of all models.

    Attributes:
        title: what was compared.
        positive: what class 1 is called.
        rows: test rows by party, and of all.
        prevalence: share of class 1, by party and of all.
        figures: by model, then by party or `EVERYWHERE`, then by words.
        privacy: by model.
    """

    title: str
    positive: str
    rows: Mapping[str, int]
    prevalence: Mapping[str, float]
    figures: Mapping[str, Mapping[str, Mapping[str, Figure]]]
    privacy: Mapping[str, str]

    @property
    def parties(self) -> list[str]:
        """The parties' names, in order."""
        return [name for name in self.rows if name != EVERYWHERE]

    def tables(self) -> list[Table]:
        """What to print: all test rows, then accuracy and AUC by party."""
        has = self.figures[next(iter(self.figures))][EVERYWHERE]
        overall = [
            Table(
                title=f"{self.title}: all {self.rows[EVERYWHERE]} test rows",
                headings=("model", "privacy", *names),
                rows=[
                    [model, self.privacy[model], *(each[EVERYWHERE][name].text() for name in names)]
                    for model, each in self.figures.items()
                ],
                note=note,
            )
            for names, note in zip(HEADINGS, (NOTE, OF_TWO.format(positive=self.positive)), strict=True)
            if set(names) <= set(has)
        ]
        return [*overall, *map(self._by_party, BY_PARTY)]

    def _by_party(self, name: str) -> Table:
        rows = [
            ["test rows", *(str(self.rows[party]) for party in self.parties)],
            [f"share of {self.positive}", *(f"{100 * self.prevalence[each]:.1f}" for each in self.parties)],
            *(
                [
                    model,
                    *(
                        each[party][name].text() if self.rows[party] >= FEWEST else TOO_FEW
                        for party in self.parties
                    ),
                ]
                for model, each in self.figures.items()
            ),
        ]
        note = f"Of a party with fewer than {FEWEST} test rows nothing is shown."
        return Table(f"{self.title}: {name} by party", ("model", *self.parties), rows, note)

    def to_values(self) -> dict[str, object]:
        """Everything as plain data for JSON; null where a figure is not defined."""
        return {
            "positive": self.positive,
            "rows": dict(self.rows),
            "prevalence": dict(self.prevalence),
            "privacy": dict(self.privacy),
            "figures": {
                model: {
                    party: {
                        name: None if np.isnan(f.value) else [f.value, f.low, f.high]
                        for name, f in own.items()
                    }
                    for party, own in each.items()
                }
                for model, each in self.figures.items()
            },
        }


def worth_of(path: Path, overrides: Sequence[str], pull: float) -> Worth:
    """Compare a finished run's model with what parties could have without it.

    Args:
        path: of the run.
        overrides: of its own settings, such as where its data are now.
        pull: lambda of models that each party fits near the run's.

    Raises:
        LearningError: the model or the data cannot be read.
        ReportError: data whose test rows have no owners, or labels that are numbers.
    """
    config = as_of_run(load(overrides, begun=read_run(path).settings), path)
    parties = Parties.of(task_of(config))
    found = [*rivals(parties, config), *ours(parties, config, path, pull)]
    labels, owners, names = parties.labels(), parties.test_owners, parties.names
    masks = {EVERYWHERE: np.ones(len(labels), dtype=np.bool_)}
    masks |= {name: owners == number for number, name in enumerate(names)}
    columns = parties.data.columns
    return Worth(
        title=f"{config.method.name} on {config.dataset.name}",
        positive=columns.class_names[1] if columns else "class 1",
        rows={name: int(mask.sum()) for name, mask in masks.items()},
        prevalence={name: float(np.mean(labels[mask] == 1)) for name, mask in masks.items() if mask.any()},
        figures={
            each.name: {name: figures_of(each.scores[mask], labels[mask]) for name, mask in masks.items()}
            for each in found
        },
        privacy={each.name: each.privacy for each in found},
    )


def ours(parties: Parties, config: Config, path: Path, pull: float) -> Iterator[Rival]:
    """The run's model, its clients' own models if any, and the model that each party adapts."""
    _, _, model = read_model(path)
    label = METHODS.get(config.method.name).label or config.method.name
    yield Rival(label, _promise(config), parties.scores([model] * parties.count))
    personal = _personal_models(parties, path)
    if personal:
        yield Rival(f"{label}, own models", _promise(config), parties.scores(personal))
    local = names_of(model, config.training.local_parameters or ())
    if local:
        own = parties.own(model, local, pull)
        yield Rival(f"{label}, own {', '.join(local)}", NOT_ACCOUNTED, parties.scores(own))
    every = [name for name, _ in model.named_parameters()]
    near = parties.own(model, every, pull)
    yield Rival(f"{label}, own fit near it", NOT_ACCOUNTED, parties.scores(near))


def _personal_models(parties: Parties, path: Path) -> Sequence[nn.Module]:
    if not (path / PERSONAL_FILE).is_file():
        return []
    vectors = load_file(path / PERSONAL_FILE)[PERSONAL_KEY]
    models = []
    for client in client_of_owner(parties.data, parties.task.num_clients):
        own = parties.task.build_model()
        assign(own, torch.from_numpy(vectors[client].copy()))
        models.append(own)
    return models


def _promise(config: Config) -> str:
    if config.method.name == "fedavg":
        return "none"
    budgets = config.privacy.budgets
    shown = budgets if isinstance(budgets, str) else ", ".join(f"{each:g}" for each in budgets)
    return f"epsilon {shown}, by {config.privacy.unit}"
