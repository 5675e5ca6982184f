"""``gdpfed compare``: compares a run's model with models that data owners could train without the run."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file
from torch import nn

from conf.load import load
from conf.schema import CLIENTS, Config
from gdpfed.clients.configured import task_of
from gdpfed.errors import ReportError
from gdpfed.learning.adapted_model import fit_near
from gdpfed.learning.data import Dataset, Split
from gdpfed.learning.data.client_partition import client_of_owner
from gdpfed.learning.labels.classes import DEFAULT
from gdpfed.learning.labels.intervals import FEWEST
from gdpfed.learning.model_folder import read_model
from gdpfed.learning.models import assign, flatten, names_of
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import local_update
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.methods import METHODS
from gdpfed.report.chance import UNEVEN
from gdpfed.report.class_figures import AREA, Scores, figures_of, row_terms
from gdpfed.report.finished_run import read_run
from gdpfed.report.worth import EVERYWHERE, MOST_COLUMNS, Judged, Worth
from gdpfed.runs.file_formats import PERSONAL_FILE, PERSONAL_KEY
from gdpfed.runs.paths import as_of_run

RIDGE = 1.0
"""The penalty on parameters of models that are trained alone or on all rows, as scikit-learn's default."""
NOT_ACCOUNTED = "not accounted"
RIVALS = ("most frequent class", "each party alone", "all rows in one place", "fedavg without privacy")
"""What a run is compared with, by name, in the order of :func:`rivals`."""
MOST_KEPT = 32
"""Of seeds and settings, whose rivals are kept for the next run."""
Models = Sequence[nn.Module]


@dataclass(frozen=True, eq=False)
class Rival:
    """A model that a run's model is compared with: one for all parties, or a separate one for each party.

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
    """The table rows of every party, for training and for testing."""

    task: Task
    data: Dataset
    owners: npt.NDArray[np.int64]
    test_owners: npt.NDArray[np.int64]

    @classmethod
    def of(cls, task: Task) -> "Parties":
        """Return a task's table rows by party; rows about the same person are kept as separate rows.

        Raises ReportError: labels that are not classes, or test rows without a party.
        """
        task = replace(task, by_person=False)
        data = task.load()
        name = task.source.name
        if not data.labels.is_one_class:
            raise ReportError(
                f"dataset={name} has {data.labels.words} as labels: only classes can be compared"
            )
        if data.owners is None or data.test_owners is None:
            raise ReportError(
                f"dataset={name} does not name the party of each test row: use data with parties"
            )
        return cls(task, data, data.owners, data.test_owners)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parties."""
        return self.data.owner_names or tuple(f"party {number}" for number in range(self.count))

    @property
    def count(self) -> int:
        """The number of parties."""
        return int(self.owners.max()) + 1

    def train(self, party: int) -> Split:
        """Return the rows that one party trains on."""
        return self.data.train.take(np.flatnonzero(self.owners == party))

    def labels(self) -> npt.NDArray[np.int64]:
        """Return the true classes of all test rows."""
        return np.asarray(self.data.test.y, dtype=np.int64)

    def scores(self, models: Models) -> Scores:
        """Return scores for every test row, computed by the model of the row's party."""
        found = np.zeros((len(self.data.test), self.data.num_classes))
        for party, model in enumerate(models):
            rows = np.flatnonzero(self.test_owners == party)
            with torch.inference_mode():
                x = torch.from_numpy(self.data.test.take(rows).x)
                found[rows] = model.eval()(x).double().numpy()
        return found

    def own(self, model: nn.Module, names: Sequence[str], pull: float) -> Models:
        """Fit some parameters of a model to each party's rows; return one model for each party."""
        models = [deepcopy(model) for _ in range(self.count)]
        for party, each in enumerate(models):
            fit_near(each, self.train(party), self.task.make_loss(), names=names, pull=pull)
        return models


@dataclass(frozen=True)
class Averaging:
    """Settings for FedAvg without privacy, to train a model to compare with."""

    num_rounds: int
    local_steps: int
    batch_size: int
    learning_rate: float
    learning_rate_decay: float
    momentum: float
    seed: int

    @classmethod
    def of(cls, config: Config) -> "Averaging":
        """Take the settings for FedAvg without privacy from a run's configuration."""
        values, own = asdict(config.dataset), [each.name for each in fields(cls) if each.name != "seed"]
        return cls(**{name: values[name] for name in own}, seed=config.run.seed)


@lru_cache(maxsize=MOST_KEPT)
def rivals(task: Task, averaging: Averaging) -> tuple[Rival, ...]:
    """Train the models to compare with: constant guess, each party alone, pooled rows, and FedAvg.

    It is trained once for all runs that differ in their budgets alone.
    """
    parties = Parties.of(task)
    constant, alone, in_one_place, by_average = RIVALS
    every = [name for name, _ in task.build_model().named_parameters()]
    pooled = task.build_model()
    whole = parties.data.train.take(np.arange(len(parties.data.train)))
    fit_near(pooled, whole, task.make_loss(), names=every, pull=RIDGE)
    averaged = _federated_average(parties, averaging)
    classes = parties.data.num_classes
    labels = (parties.train(each).y.astype(np.int64, copy=False) for each in range(parties.count))
    guesses = [_Constant(np.bincount(label, minlength=classes)) for label in labels]
    return (
        Rival(constant, NOT_ACCOUNTED, parties.scores(guesses)),
        Rival(alone, NOT_ACCOUNTED, parties.scores(parties.own(task.build_model(), every, RIDGE))),
        Rival(in_one_place, "none", parties.scores([pooled] * parties.count)),
        Rival(by_average, "none", parties.scores([averaged] * parties.count)),
    )


class _Constant(nn.Module):
    """A constant guess, whose scores are the logarithms of class frequencies."""

    def __init__(self, counts: npt.NDArray[np.int64]) -> None:
        super().__init__()
        self.scores = torch.from_numpy(np.log((counts + 1) / (counts.sum() + len(counts))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores.expand(len(x), -1)


def _federated_average(parties: Parties, averaging: Averaging) -> nn.Module:
    """Train a model by FedAvg over all parties, weighted by their numbers of rows."""
    model, loss = parties.task.build_model(), parties.task.make_loss()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    theta, rng, cpu = flatten(model), np.random.default_rng(averaging.seed), torch.device("cpu")
    splits = [parties.train(each) for each in range(parties.count)]
    weights = np.array([len(split) for split in splits]) / sum(map(len, splits))
    rate = averaging.learning_rate
    for _ in range(averaging.num_rounds):
        training = LocalTraining(averaging.local_steps, averaging.batch_size, rate, averaging.momentum)
        updates = [
            local_update(model, theta, split, training, rng=rng, device=cpu, loss=loss).numpy()
            for split in splits
        ]
        theta = (theta + np.tensordot(weights, np.array(updates), axes=1)).astype(np.float32)
        rate *= averaging.learning_rate_decay
    assign(model, torch.from_numpy(theta))
    return model


def worth_of(path: Path, overrides: Sequence[str], pull: float | None) -> Worth:
    """Compare a finished run's model with models that the data owners could train without the run.

    Args:
        path: of the run.
        overrides: of its own settings, such as where its data are now.
        pull: lambda of models that each party fits near the run's; None leaves these out.

    Raises:
        LearningError: the model or the data cannot be read.
        ReportError: data whose test rows have no owners, or labels that are numbers.
    """
    config = as_of_run(load(overrides, begun=read_run(path).settings), path)
    task = task_of(config)
    parties = Parties.of(task)
    found = [
        *rivals(parties.task, Averaging.of(config)),
        *ours(parties, config, path, pull, by_person=task.by_person),
    ]
    labels, owners, names = parties.labels(), parties.test_owners, parties.names
    masks = {EVERYWHERE: np.ones(len(labels), dtype=np.bool_)}
    masks |= {name: owners == number for number, name in enumerate(names)}
    columns, rows = parties.data.columns, {name: int(mask.sum()) for name, mask in masks.items()}
    shown = {name: mask for name, mask in masks.items() if len(names) <= MOST_COLUMNS or rows[name] >= FEWEST}
    # AUC is shown first if it is configured, or if one class dominates.
    first = (config.dataset.metrics or [""])[0]
    by_area = first == "auc" or np.bincount(labels).max(initial=0) >= UNEVEN * len(labels)
    figures = {
        each.name: {name: figures_of(each.scores[mask], labels[mask]) for name, mask in shown.items()}
        for each in found
    }
    judged = {}
    for each in found:
        terms, computed = row_terms(each.scores, labels), figures[each.name][EVERYWHERE]
        judged[each.name] = {name: Judged(np.array([computed[name].value]), terms[name]) for name in terms}
    several = parties.data.num_classes > 2
    named = int(np.bincount(labels, minlength=2).argmax()) if several else 1
    return Worth(
        title=f"{config.method.name} on {config.dataset.name}",
        positive=columns.class_names[named] if columns else f"class {named}",
        rows=rows,
        prevalence={
            name: float(np.mean(labels[mask] == named)) for name, mask in masks.items() if mask.any()
        },
        figures=figures,
        privacy={each.name: each.privacy for each in found},
        several=several,
        leading=AREA if by_area else DEFAULT,
        judged=judged,
        persons=parties.data.test.persons if isinstance(parties.data.test, Split) else None,
    )


def ours(
    parties: Parties, config: Config, path: Path, pull: float | None, *, by_person: bool
) -> Iterator[Rival]:
    """Yield a run's common model and, if any exist, parties' own models and copies fitted to their rows."""
    _, _, model = read_model(path)
    label = METHODS.get(config.method.name).label or config.method.name
    promise = _promise(config, by_person=by_person)
    yield Rival(label, promise, parties.scores([model] * parties.count))
    personal = list[nn.Module]()
    if (path / PERSONAL_FILE).is_file():
        vectors = load_file(path / PERSONAL_FILE)[PERSONAL_KEY]
        for client in client_of_owner(parties.data, parties.task.num_clients):
            model_of_party = parties.task.build_model()
            assign(model_of_party, torch.from_numpy(vectors[client].copy()))
            personal.append(model_of_party)
        del vectors
    if personal:
        yield Rival(f"{label}, own models", promise, parties.scores(personal))
    local = names_of(model, config.training.local_parameters or ())
    if local:
        own = parties.own(model, local, pull or 0.0)
        yield Rival(f"{label}, own {', '.join(local)}", NOT_ACCOUNTED, parties.scores(own))
    if pull is not None:
        every = [name for name, _ in model.named_parameters()]
        near = parties.own(model, every, pull)
        yield Rival(f"{label}, own fit near it", NOT_ACCOUNTED, parties.scores(near))


def _promise(config: Config, *, by_person: bool) -> str:
    """Write the privacy budgets and what they protect in words, as in ``epsilon 1 to 6, by record``."""
    if config.method.name == "fedavg":
        return "none"
    privacy, unit = config.privacy, "person" if by_person else config.privacy.unit
    if privacy.budgets == CLIENTS and (own := privacy.client_budgets):
        offered = [*own.values()] if isinstance(own, Mapping) else own
        ends = sorted({min(offered), max(offered)})
        return f"epsilon {' to '.join(f'{each:g}' for each in ends)}, by {unit}"
    budgets = privacy.budgets
    shown = budgets if isinstance(budgets, str) else ", ".join(f"{each:g}" for each in budgets)
    return f"epsilon {shown}, by {unit}"
