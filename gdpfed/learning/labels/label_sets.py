"""Labels that are sets: a record may have any of K labels, each stored as 1 or 0."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.labels.classes import area, calibration_error
from gdpfed.learning.labels.kind import LOSSES, METRICS, LabelKind, Labels, Metric, Names, Outputs, Targets

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = late_import("torch")
    functional = late_import("torch.nn.functional")
special = late_import("scipy.special")


class LabelSets(LabelKind):
    """K labels for every record, each 1 if the record has it and 0 if not."""

    name, loss, metric = "label_sets", "binary_cross_entropy", "mean_auc"
    weighed = "label"
    unlearnt_words = (
        "is alike in all training examples: nothing is learnt of it unless nodes have data of their own. "
        "Leave it out, or add examples"
    )

    @property
    def words(self) -> str:
        return f"sets of {self.num_classes} labels"

    @property
    def outputs(self) -> tuple[int, ...]:
        return (self.num_classes,)

    def unfit(self, y: Labels) -> npt.NDArray[np.bool_]:
        unfit: npt.NDArray[np.bool_] = ((y != 0) & (y != 1)).any(axis=-1)
        return unfit

    def counts(self, y: Labels) -> npt.NDArray[np.int64]:
        counts: npt.NDArray[np.int64] = (y.reshape(-1, self.num_classes) == 1).sum(axis=0)
        return counts

    def unlearnt(self, train: Labels, test: Labels) -> npt.NDArray[np.int64]:
        rows = train.reshape(-1, self.num_classes)
        present = rows[(rows >= 0).all(axis=1)]
        return np.flatnonzero(np.isin(self.counts(present), (0, len(present))))

    def drawn(self, leading: tuple[int, ...], generator: "torch.Generator") -> "torch.Tensor":
        return torch.randint(2, (*leading, self.num_classes), generator=generator)

    def factors(self, weights: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """Return the factor of each label's loss: the class weight w_k if a record has label k, else 1."""
        return 1 + (weights - 1) * targets

    def probabilities(self, outputs: "torch.Tensor") -> "torch.Tensor":
        return outputs.sigmoid()

    def answers(self, probabilities: npt.NDArray[np.float32], names: npt.NDArray[np.object_]) -> Names:
        return (probabilities > 0.5).astype(np.int64)


def binary_cross_entropy(outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Return each label's binary cross-entropy in nats, from outputs before the sigmoid: (n, K) to (n, K)."""
    wanted = targets.to(outputs.dtype)
    return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")


OfOneLabel = Callable[[npt.NDArray[np.float64], npt.NDArray[np.bool_]], float | None]


def _mean(of: OfOneLabel) -> Callable[[Outputs, Targets], float | None]:
    """Turn a metric of one label into a metric of all: the mean over labels for which it has a value."""

    def mean(outputs: Outputs, targets: Targets) -> float | None:
        each = [of(outputs[:, k], targets[:, k] == 1) for k in range(outputs.shape[1])]
        known = [figure for figure in each if figure is not None]
        return float(np.mean(known)) if known else None

    return mean


def _f1(outputs: npt.NDArray[np.float64], own: npt.NDArray[np.bool_]) -> float | None:
    """Return F1 of one label, 2 TP / (2 TP + FP + FN); None if the label neither occurs nor is predicted."""
    answers = outputs > 0
    both = int(answers.sum() + own.sum())
    return 2 * int((answers & own).sum()) / both if both else None


def micro_f1(outputs: Outputs, targets: Targets) -> float | None:
    """Return the F1 score over all labels together: 2 TP / (2 TP + FP + FN)."""
    return _f1(outputs.reshape(-1), targets.reshape(-1) == 1)


def exact_match(outputs: Outputs, targets: Targets) -> float | None:
    """Return the share of examples for which all labels are right."""
    return float(np.mean(((outputs > 0) == (targets == 1)).all(axis=1)))


def hamming_loss(outputs: Outputs, targets: Targets) -> float | None:
    """Return the share of labels, over all examples, that are wrong; smaller is better."""
    return float(np.mean((outputs > 0) != (targets == 1)))


LOSSES.register("binary_cross_entropy", binary_cross_entropy)
for _name, _of, _words in (
    ("exact_match", exact_match, "exact match"),
    ("hamming_loss", hamming_loss, "Hamming loss"),
    (
        "mean_auc",
        _mean(lambda outputs, own: area(outputs, own) if own.any() and not own.all() else None),
        "mean AUC",
    ),
    (
        "mean_ece",
        _mean(lambda outputs, own: calibration_error(special.expit(outputs), own)),
        "mean calibration error",
    ),
    ("mean_f1", _mean(_f1), "mean F1"),
    ("micro_f1", micro_f1, "micro F1"),
):
    METRICS.register(_name, Metric(_of, _words, labels=LabelSets.name))
