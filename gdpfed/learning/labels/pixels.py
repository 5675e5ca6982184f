"""Labels that are pictures: a class for each pixel, as in segmentation, or for each position of any array."""

import numpy as np
import numpy.typing as npt

from gdpfed.learning.labels.classes import accuracy, ece
from gdpfed.learning.labels.kind import METRICS, LabelKind, Labels, Metric, Outputs, Targets


class Pixels(LabelKind):
    """One of K classes at every position of a record; dimension 1 of a model's outputs has the K scores.

    The loss of a record is the mean over its places, so a large picture counts as much as a small one.
    """

    name, loss, metric = "pixels", "cross_entropy", "mean_iou"
    weighed = "class"

    @property
    def words(self) -> str:
        return f"{self.num_classes} classes at {' x '.join(map(str, self.shape))} places"

    def counts(self, y: Labels) -> npt.NDArray[np.int64]:
        """Count the records that have each class at any position."""
        held = y.reshape(-1, *self.shape).reshape(-1, int(np.prod(self.shape)))
        found = [np.count_nonzero((held == k).any(axis=1)) for k in range(self.num_classes)]
        return np.array(found, dtype=np.int64)


def mean_iou(outputs: Outputs, targets: Targets) -> float | None:
    """Return the mean over classes of TP / (TP + FP + FN), counted over the positions of all examples.

    A class that no place has, and is said to have, is left out.
    """
    answers = outputs.argmax(axis=1)
    classes = np.union1d(answers, targets)
    shares = [
        np.count_nonzero((answers == k) & (targets == k)) / np.count_nonzero((answers == k) | (targets == k))
        for k in classes
    ]
    return float(np.mean(shares))


for _name, _of, _words in (
    ("mean_iou", mean_iou, "mean IoU"),
    ("pixel_accuracy", accuracy, "pixel accuracy"),
    ("pixel_ece", ece, "calibration error of pixels"),
):
    METRICS.register(_name, Metric(_of, _words, labels=Pixels.name))
