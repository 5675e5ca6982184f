"""Labels that are numbers, scaled to [-1, 1]."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.labels.kind import LOSSES, METRICS, LabelKind, Labels, Metric, Outputs, Targets

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = late_import("torch")
    functional = late_import("torch.nn.functional")


class Numbers(LabelKind):
    """A number for every record."""

    name, dtype = "numbers", "float32"
    loss, metric = "squared_error", "mean_absolute_error"

    @property
    def words(self) -> str:
        return "numbers"

    def unfit(self, y: Labels) -> npt.NDArray[np.bool_]:
        # Not the other way round: a NaN is in no range.
        unfit: npt.NDArray[np.bool_] = ~((y >= -1) & (y <= 1))
        return unfit

    def counts(self, y: Labels) -> npt.NDArray[np.int64]:
        return np.array([len(y)], dtype=np.int64)

    def drawn(self, leading: tuple[int, ...], generator: "torch.Generator") -> "torch.Tensor":
        return 2 * torch.rand(leading, generator=generator) - 1

    def probabilities(self, outputs: "torch.Tensor") -> None:
        return None


def squared_error(outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Squared error (output - target)^2 of each record, for a model with one output."""
    return (outputs.squeeze(-1) - targets).square()


def huber(outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Return Huber's loss of each record (1964): e^2 / 2 up to |e| = 1, else |e| - 1/2.

    Targets are scaled to [-1, 1], so 1 is half of their declared range.
    """
    return functional.huber_loss(outputs.squeeze(-1), targets, reduction="none")


def mean_absolute_error(outputs: Outputs, targets: Targets) -> float | None:
    """Mean of |output - target|, in the label's original unit."""
    return float(np.mean(np.abs(outputs[:, 0] - targets)))


def r2(outputs: Outputs, targets: Targets) -> float | None:
    """Return R^2 = 1 - squared errors / squared deviations from the mean; None if all targets are equal."""
    spread = float(np.sum((targets - targets.mean()) ** 2))
    return None if spread == 0 else 1 - float(np.sum((outputs[:, 0] - targets) ** 2)) / spread


LOSSES.register("huber", huber)
LOSSES.register("squared_error", squared_error)
METRICS.register(
    "mean_absolute_error", Metric(mean_absolute_error, "mean absolute error", percent=False, labels="numbers")
)
METRICS.register("r2", Metric(r2, "R²", percent=False, labels="numbers"))
