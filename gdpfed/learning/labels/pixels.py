"""Labels that are pictures: a class for each pixel, as in segmentation, or for each place of any array."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.labels.classes import calibration_error
from gdpfed.learning.labels.kind import METRICS, LabelKind, Labels, Metric, Outputs, Targets

if TYPE_CHECKING:
    import torch
else:
    torch = late_import("torch")
special = late_import("scipy.special")


class Pixels(LabelKind):
    """One of K classes at every place of a record; a model says K numbers of each, in its second dimension.

    The loss of a record is the mean over its places, so a large picture counts as much as a small one.
    """

    name, loss, metric = "pixels", "cross_entropy", "mean_iou"
    weighed = "class"

    @property
    def words(self) -> str:
        return f"{self.num_classes} classes at {' x '.join(map(str, self.shape))} places"

    @property
    def outputs(self) -> tuple[int, ...]:
        return (self.num_classes, *self.shape)

    def unfit(self, y: Labels) -> npt.NDArray[np.bool_]:
        places = y.reshape(len(y), -1)
        unfit: npt.NDArray[np.bool_] = (places < 0) | (places >= self.num_classes)
        return np.asarray(unfit.any(axis=1))

    def counts(self, y: Labels) -> npt.NDArray[np.int64]:
        """How many records have each class anywhere."""
        held = y.reshape(-1, *self.shape).reshape(-1, int(np.prod(self.shape)))
        found = [np.count_nonzero((held == k).any(axis=1)) for k in range(self.num_classes)]
        return np.array(found, dtype=np.int64)

    def drawn(self, leading: tuple[int, ...], generator: "torch.Generator") -> "torch.Tensor":
        return torch.randint(self.num_classes, (*leading, *self.shape), generator=generator)


def pixel_accuracy(outputs: Outputs, targets: Targets) -> float | None:
    """Share of places, over all examples, whose largest output is that of their class."""
    return float(np.mean(outputs.argmax(axis=1) == targets))


def mean_iou(outputs: Outputs, targets: Targets) -> float | None:
    """Mean over the classes of TP / (TP + FP + FN), counted over the places of all examples.

    A class that no place has, and is said to have, is left out.
    """
    answers = outputs.argmax(axis=1)
    classes = np.union1d(answers, targets)
    shares = [
        np.count_nonzero((answers == k) & (targets == k)) / np.count_nonzero((answers == k) | (targets == k))
        for k in classes
    ]
    return float(np.mean(shares))


def pixel_ece(outputs: Outputs, targets: Targets) -> float | None:
    """Calibration error of the largest softmax output at every place; it is better the smaller."""
    shares = special.softmax(outputs, axis=1)
    right = shares.argmax(axis=1) == targets
    return calibration_error(shares.max(axis=1).reshape(-1), right.reshape(-1))


for _name, _of, _words in (
    ("mean_iou", mean_iou, "mean IoU"),
    ("pixel_accuracy", pixel_accuracy, "pixel accuracy"),
    ("pixel_ece", pixel_ece, "calibration error of pixels"),
):
    METRICS.register(_name, Metric(_of, _words, labels=Pixels.name))
