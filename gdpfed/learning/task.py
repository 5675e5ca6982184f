"""The learning task (data set, model, partition) in a form that is small enough for every message."""

import json
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset, DataSource, Split, load_dataset
from gdpfed.learning.data.client_partition import Partition, client_names, client_of_owner
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.persons import persons_of
from gdpfed.learning.data.text import at_every_position
from gdpfed.learning.labels.classes import NEXT_TOKEN
from gdpfed.learning.models import (
    Given,
    Options,
    build_model,
    count_parameters,
    leave_out,
    scores_every_position,
)
from gdpfed.learning.training.record_losses import make_loss
from gdpfed.learning.weights_file import WeightsFile


@dataclass(frozen=True)
class Task:
    """One learning task (data, model, partition, loss), the same for server and clients.

    Attributes:
        loss: the name of the loss that local training minimises.
        class_weights: one weight for each class or label; empty if all have the same weight.
        form: the shapes and types of examples; None if they must be read from the data set.
        record_shares: the shares of the groups of records, if the data does not name each record's group.
        by_person: whether a training record is a person with all its rows.
        local_parameters: patterns of names of parameters that theta leaves out: training does not change
            them, and each party fits its own afterwards.
    """

    source: DataSource
    model: str
    partition: str
    num_clients: int
    seed: int
    dirichlet_alpha: float | None = None
    model_options: Options = ()
    loss: str = "cross_entropy"
    class_weights: tuple[float, ...] = ()
    form: ExampleForm | None = None
    record_shares: tuple[float, ...] = ()
    shards: int | None = None
    by_person: bool = False
    local_parameters: tuple[str, ...] = ()
    partition_options: tuple[tuple[str, float | str], ...] = ()

    def to_json(self) -> str:
        """Return the task as one line of JSON, which :meth:`from_json` reads."""
        return json.dumps(asdict(self))

    @property
    def owners_file(self) -> str | None:
        """The file that names the data owner of each example; None if the settings name no such file."""
        path = dict(self.partition_options).get("path")
        return None if path is None else str(path)

    @property
    def digest(self) -> str:
        """SHA-256 of all settings of the task (data, model, loss, partition), in hexadecimal."""
        return sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the task that :meth:`to_json` wrote.

        Raises ValueError, TypeError: the text is not a task.
        """
        settings = json.loads(text)
        source = DataSource.from_values(settings.pop("source"))
        options = tuple((str(key), value) for key, value in settings.pop("model_options"))
        weights = tuple(float(weight) for weight in settings.pop("class_weights"))
        form = settings.pop("form")
        if form is not None:
            # The source's encoder is the one whose file a node has checked, so no other file is read.
            form = replace(ExampleForm.from_values(form), encoder=source.file_encoder)
            if form.features != source.features:
                raise ValueError("the examples' form and their source name two transforms of the inputs")
        shares = tuple(map(float, settings.pop("record_shares", ())))
        local = tuple(map(str, settings.pop("local_parameters", ())))
        shared = tuple((str(key), value) for key, value in settings.pop("partition_options", ()))
        return cls(
            source=source,
            model_options=options,
            class_weights=weights,
            form=form,
            record_shares=shares,
            local_parameters=local,
            partition_options=shared,
            **settings,
        )

    def described(self) -> Self:
        """Return the task with the shapes and types of its examples, so that nodes need not load these."""
        return replace(self, form=ExampleForm.of(self.load()))

    def load(self) -> Dataset:
        """Load the task's data set, once in a process."""
        data = load_dataset(self.source)
        if self.at_every_position:
            return at_every_position(data)
        return persons_of(data) if self.by_person else data

    @property
    def at_every_position(self) -> bool:
        """Whether the model learns to predict at every position of a text, not only at the last."""
        return self.loss == NEXT_TOKEN

    @property
    def weights(self) -> WeightsFile | None:
        """The file of weights that the model or its feature transform needs; None if there is none.

        Raises LearningError: the settings of the file are incomplete or wrong.
        """
        return self.source.weights_file

    def _given(self, form: ExampleForm) -> Given:
        return Given(form.vocabulary, None if form.encoder is not None else self.weights)

    @property
    def known_form(self) -> ExampleForm:
        """The shapes and types of the task's examples and labels."""
        return self.form or ExampleForm.of(self.load())

    @property
    def dimension(self) -> int:
        """d, the number of parameters of the task's model, computed without building it.

        Raises LearningError: the model cannot be built.
        """
        form = self.known_form
        return count_parameters(
            self.model,
            form.input_shape,
            form.num_classes,
            self.model_options,
            self.local_parameters,
            self._given(form),
        )

    def build_model(self) -> nn.Module:
        """Build the task's model with its initial parameters.

        Raises LearningError: it cannot be built, or its outputs are for other positions than the loss needs.
        """
        form = self.known_form
        model = build_model(
            self.model,
            form.input_shape,
            form.num_classes,
            seed=self.seed,
            input_dtype=np.dtype(form.input_dtype),
            options=self.model_options,
            given=self._given(form),
            outputs=form.labels.outputs,
        )
        if self.at_every_position != scores_every_position(model):
            loss, scored = (
                ("cross_entropy", "one class") if self.at_every_position else (NEXT_TOKEN, "every position")
            )
            raise LearningError(
                f"dataset.model={self.model} gives scores for {scored} of an example, and "
                f"dataset.loss={self.loss} needs others: set dataset.loss={loss}"
            )
        leave_out(model, self.local_parameters)
        return model

    @property
    def classes_counted(self) -> int:
        """The number of classes if nodes can count right answers; 0 if labels are unknown or not classes."""
        return 0 if self.form is None else self.form.labels.counted

    def make_loss(self) -> Loss:
        """Return the function that computes each record's loss, with class weights.

        Raises LearningError: no loss of that name.
        """
        return make_loss(self.loss, self.known_form.labels, self.class_weights)

    def drawn(self, count: int, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw random inputs and labels, to try out a model and a loss."""
        form, generator = self.known_form, torch.Generator().manual_seed(0)
        shape = (count, rows, *form.input_shape) if self.by_person else (count, *form.input_shape)
        if np.dtype(form.input_dtype).kind == "f":
            x = torch.randn(shape, generator=generator)
        else:
            x = torch.randint(form.num_tokens, shape, generator=generator)
            x[-1] = form.num_tokens - 1
        several = self.by_person or self.at_every_position
        return x, form.labels.drawn(shape[:2] if several else shape[:1], generator)

    def client_data(self, client_id: int) -> Split:
        """Return the examples that one client has; there may be none.

        Raises LearningError: the client does not exist, or the partition does not fit the data.
        """
        return self.load().train.take(self.client_indices(client_id))

    def held_out(self, client_id: int) -> Split:
        """Return a client's test examples.

        In the natural partition, these are the examples of the client's data owner, if test examples have
        owners. Otherwise, every client gets an equal random part of all test examples.

        Raises LearningError: as in :meth:`client_data`.
        """
        data = self.load()
        if self.partition == "natural" and data.test_owners is not None:
            clients = client_of_owner(data, self.num_clients)[data.test_owners]
            return data.test.take(np.flatnonzero(clients == client_id))
        everybody = replace(data, train=data.test, owners=None)
        shared_out = Partition("iid", self.num_clients, self.seed)
        return data.test.take(shared_out.indices(everybody, client_id))

    def check_record_groups(self) -> None:
        """Raise LearningError if the data's number of record groups differs from the number of budgets."""
        declared, wanted = self.load().record_groups, len(self.record_shares)
        if declared and wanted and declared != wanted:
            raise LearningError(
                f"privacy.budgets has {wanted} budgets, and the data declares {declared} groups of records: "
                "give each group one budget, in the order of the values of record_group"
            )

    def largest_part(self) -> int:
        """Return the largest number of examples that a client may have."""
        return self._partition.largest(self.load())

    @property
    def _partition(self) -> Partition:
        return Partition(
            self.partition,
            self.num_clients,
            self.seed,
            self.dirichlet_alpha,
            self.shards,
            self.partition_options,
        )

    def client_indices(self, client_id: int) -> npt.NDArray[np.int64]:
        """Return the positions of a client's examples among the training examples."""
        return self._partition.indices(self.load(), client_id)

    @property
    def client_names(self) -> tuple[str, ...]:
        """The name of every client, by client id; empty if clients have no names."""
        return client_names(self.load(), self.num_clients) if self.partition == "natural" else ()

    def class_counts(self) -> npt.NDArray[np.int64]:
        """Count the examples of each class or label at every client, shape (num_clients, num_classes).

        If labels are numbers, all examples count as one class.
        """
        data = self.load()
        kind, labels = data.labels, data.train.y
        counts = [kind.counts(labels[self.client_indices(client)]) for client in range(self.num_clients)]
        return np.array(counts, dtype=np.int64)


def choose_device(name: str) -> torch.device:
    """Return the device to train on; ``auto`` means CUDA if available.

    On CUDA it also switches TF32 off for convolutions, so that they are computed in float32. Raises
    LearningError: CUDA is asked for and is not available.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise LearningError("run.device=cuda but no CUDA device is visible: use run.device=auto")
    if name == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)
