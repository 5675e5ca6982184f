"""Labels that are one of K classes, where K is 2 or more."""

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.labels.kind import LOSSES, METRICS, LabelKind, Labels, Metric, Names, Outputs, Targets

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    functional = late_import("torch.nn.functional")
special = late_import("scipy.special")
stats = late_import("scipy.stats")

BINS = 15
"""The number of bins of confidences in the calibration error."""
DEFAULT, NEXT_TOKEN = "accuracy", "next_token"


class Classes(LabelKind):
    """The kind of labels where each record has one class, stored as the number of the class."""

    name, loss, metric = "classes", "cross_entropy", DEFAULT
    weighed, is_one_class = "class", True

    @property
    def words(self) -> str:
        return f"{self.num_classes} classes"

    def counts(self, y: Labels) -> npt.NDArray[np.int64]:
        held = y.reshape(-1).astype(np.int64)
        return np.bincount(held[held >= 0], minlength=self.num_classes)

    def answers(self, probabilities: npt.NDArray[np.float32], names: npt.NDArray[np.object_]) -> Names:
        answers: Names = names[probabilities.argmax(axis=1)]
        return answers


def next_token(outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Return -log softmax(outputs)[token] in nats: outputs (n, L, tokens) and tokens (n, L) to (n, L).

    It is a loss for labels that are classes. In tests a text has one label, the token after its end; with
    outputs (n, tokens) and tokens (n,), this is the cross-entropy. Training uses the token after every
    position. A text is one record; its loss is the mean over its positions, which `make_loss` computes.
    """
    return functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")


def accuracy(outputs: Outputs, targets: Targets) -> float | None:
    """Return the share of examples, or of positions in texts, where the true class has the largest output."""
    return float(np.mean(outputs.argmax(axis=1) == targets))


def macro_f1(outputs: Outputs, targets: Targets) -> float | None:
    """Return the mean over classes of F1 = 2 TP / (2 TP + FP + FN)."""
    answers = outputs.argmax(axis=1)
    found = [
        2 * np.sum((answers == k) & (targets == k)) / (np.sum(answers == k) + np.sum(targets == k))
        for k in np.union1d(answers, targets)
    ]
    return float(np.mean(found))


def area(scores: npt.NDArray[np.float64], own: npt.NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve of one class against the rest, from scores of shape (N,).

    It is the probability that a record of the class has a larger score than another record; ties count half:
    (sum of ranks - n (n + 1) / 2) / (n m), with n >= 1 records of the class and m >= 1 others (Hanley and
    McNeil, 1982).
    """
    n, m = int(own.sum()), int((~own).sum())
    return float((stats.rankdata(scores)[own].sum() - n * (n + 1) / 2) / (n * m))


def auc(outputs: Outputs, targets: Targets) -> float | None:
    """Return the area under the ROC curve, as a mean over classes, each against the rest.

    Classes without an example are left out; with fewer than two classes it is not defined.
    """
    classes = np.unique(targets)
    if len(classes) < 2:
        return None
    # For two classes, the difference of outputs orders records like the probability, and is not rounded to 1.
    two = outputs.shape[1] == 2
    scores = outputs[:, [0, 1]] - outputs[:, [1, 0]] if two else special.softmax(outputs, axis=1)
    return float(np.mean([area(scores[:, int(k)], targets == k) for k in classes]))


def auc_error(area: float, members: int, others: int) -> float:
    """Return the standard error of an area under the ROC curve (Hanley and McNeil, Radiology 143, 1982)."""
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (members - 1) * (first - area**2) + (others - 1) * (second - area**2)
    return math.sqrt(max(spread, 0.0) / (members * others))


def calibration_error(confidence: npt.NDArray[np.float64], true: npt.NDArray[np.bool_]) -> float:
    """Return the expected calibration error over 15 bins b: sum_b n_b / N |share correct - mean confidence|.

    Source: Guo, Pleiss, Sun, Weinberger, arXiv:1706.04599, equation 3.
    """
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, true, BINS) - np.bincount(bins, confidence, BINS)
    return float(np.abs(gaps).sum() / len(true))


def ece(outputs: Outputs, targets: Targets) -> float | None:
    """Return the expected calibration error of the predicted class; smaller is better."""
    shares = special.softmax(outputs, axis=1)
    right = shares.argmax(axis=1) == targets
    return calibration_error(shares.max(axis=1).reshape(-1), right.reshape(-1))


LOSSES.register(NEXT_TOKEN, next_token)
METRICS.register(DEFAULT, Metric(accuracy, "accuracy"))
METRICS.register("ece", Metric(ece, "calibration error"))
METRICS.register("auc", Metric(auc, "AUC"))
METRICS.register("macro_f1", Metric(macro_f1, "macro F1"))
