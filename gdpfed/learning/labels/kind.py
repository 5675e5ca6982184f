"""The interface that each kind of labels implements, and the registries of losses and metrics by name.

A loss is a function ``(outputs, targets) -> losses`` of n records. Outputs and targets have shape (n, ...).
Losses have shape (n,), or the targets' shape: one loss for each label of a record, whose mean is the record's
loss. A loss must not couple records: clipping bounds what a record adds to a batch's sum of gradients, but
not how it changes the gradients of other records. A metric is one number, computed from a model's outputs on
all test examples. Other packages add both as entry points of the groups ``gdpfed.losses`` and
``gdpfed.metrics``, or for one process with ``LOSSES.register`` and ``METRICS.register``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.registry import Registry

if TYPE_CHECKING:
    import torch

    from fastgrad.modules import Loss
else:
    torch = late_import("torch")

Labels = npt.NDArray[np.int64] | npt.NDArray[np.float32]
Outputs = npt.NDArray[np.float64]
Targets = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Names = npt.NDArray[np.object_] | npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """One metric of a model, computed from outputs of shape (N, ...) and targets of shape (N, ...).

    `of`: computes the metric; it returns None if the metric is not defined on the targets. `words`: its name
    in print. `percent`: whether it lies in [0, 1] and is shown in percent. `labels`: the kind of labels that
    it is for; if labels are numbers, targets and outputs are in the labels' own unit.
    """

    of: Callable[[Outputs, Targets], float | None]
    words: str
    percent: bool = True
    labels: str = "classes"


@dataclass(frozen=True)
class LabelKind(ABC):
    """One kind of labels: which labels are valid, and what a model must output for them.

    `num_classes`: the number of classes, or of labels in a set; 1 if a label is a number. `shape`: the shape
    of a record's label; () for one value.

    Attributes:
        name: the name of the kind.
        dtype: the data type of a label.
        loss, metric: the names of the usual loss and metric; the metric is used if no metric is chosen.
        weighed: the word for what has a class weight, class or label; empty if class weights have no meaning.
        unlearnt_words: the text of a warning about a class that `unlearnt` finds.
        is_one_class: whether a label is exactly one class.
        shown_as: the headings of predictions and their probabilities in a table.
    """

    name: ClassVar[str]
    dtype: ClassVar[str] = "int64"
    loss: ClassVar[str]
    metric: ClassVar[str]
    weighed: ClassVar[str] = ""
    is_one_class: ClassVar[bool] = False
    shown_as: ClassVar[tuple[str, str]] = ("predicted", "probability")
    unlearnt_words: ClassVar[str] = (
        "is in the test split and in no training example of it: it is not learnt unless nodes have data of "
        "their own, and counts as wrong. Add training examples, or take it out of the test split"
    )

    num_classes: int
    shape: tuple[int, ...] = ()

    @property
    @abstractmethod
    def words(self) -> str:
        """A description of the labels in words, as in ``3 classes``."""

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a model's outputs for one record."""
        return (self.num_classes, *self.shape)

    def unfit(self, y: Labels) -> npt.NDArray[np.bool_]:
        """Return which labels of shape (N, ...) are invalid, shape (N,)."""
        known = (y >= 0) & (y < self.num_classes)
        return np.asarray(~known.all(axis=tuple(range(1, y.ndim))))

    @abstractmethod
    def counts(self, y: Labels) -> npt.NDArray[np.int64]:
        """Count the rows that have each class or label, shape (num_classes,)."""

    def unlearnt(self, train: Labels, test: Labels) -> npt.NDArray[np.int64]:
        """Return the classes or labels that cannot be learnt: by default, those in test data only."""
        return np.flatnonzero((self.counts(train) == 0) & (self.counts(test) > 0))

    def drawn(self, leading: tuple[int, ...], generator: "torch.Generator") -> "torch.Tensor":
        """Draw random labels, shape (*leading, *shape of one label), to try out a model."""
        return torch.randint(self.num_classes, (*leading, *self.shape), generator=generator)

    def factors(self, weights: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """Return the factor by which class weights multiply each label's loss."""
        return weights[targets]

    def probabilities(self, outputs: "torch.Tensor") -> "torch.Tensor | None":
        """Return the probability of each class or label, shaped like the outputs; None for numeric labels."""
        return outputs.softmax(dim=1)

    def answers(self, probabilities: npt.NDArray[np.float32], names: npt.NDArray[np.object_]) -> Names:
        """Return what a model predicts, shape (N, ...); by default, the number of the likeliest class."""
        answers: Names = probabilities.argmax(axis=1)
        return answers

    @property
    def counted(self) -> int:
        """The number of classes K if each label is one class, so nodes can count right answers; else 0."""
        return self.num_classes if self.is_one_class else 0

    def check_weights(self, number: int) -> None:
        """Raise LearningError if class weights are given, but not one for each class or label."""
        wanted = f"give {self.num_classes}, one for each {self.weighed}"
        if not self.weighed:
            wanted = f"labels that are {self.words} have none"
        if number and (not self.weighed or number != self.num_classes):
            raise LearningError(f"dataset.class_weights has {number} numbers: {wanted}")


LABEL_KINDS: Registry[type[LabelKind]] = Registry("kind of labels", "gdpfed.label_kinds", error=LearningError)
# cross_entropy is given as an entry point, so that code without training need not import torch.
LOSSES: Registry["Loss"] = Registry(
    "loss",
    "gdpfed.losses",
    built_in={"cross_entropy": "fastgrad.modules:cross_entropy"},
    error=LearningError,
)
METRICS: Registry[Metric] = Registry("metric", "gdpfed.metrics", error=LearningError)


def labels_of(kind: str, num_classes: int, shape: tuple[int, ...] = ()) -> LabelKind:
    """Return the kind of labels with this name; "" means classes, or numbers if num_classes is 1.

    Raises LearningError: no kind has that name.
    """
    return LABEL_KINDS.get(kind or ("numbers" if num_classes == 1 else "classes"))(num_classes, shape)
