"""Labels that are times to an event; models predict the hazard of each interval.

A model has one output z_j an interval. Its hazard h_j = sigmoid(z_j) is the probability of the event in
interval j for one who survived the intervals before, so the survival at the end of interval j is
S_j = prod_(i<=j) (1 - h_i) (Singer and Willett, Journal of Educational Statistics 18, 1993).
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.data.times_to_event import interval_of
from gdpfed.learning.labels import LabelKind, Labels

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = late_import("torch")
    functional = late_import("torch.nn.functional")

HALF = 0.5


class Times(LabelKind):
    """Labels of survival data: a position among J time intervals, and 1 for an event or 0 for censoring.

    Labels have shape (N, 2), as `gdpfed.learning.data.times_to_event` says; outputs are shape (N, J).
    """

    name, dtype = "times_to_event", "float32"
    loss, metric = "discrete_hazard", "concordance"
    shown_as = ("median", "survival")
    unlearnt_words = (
        "(ends of intervals): no training row has its event there, so their hazard is learnt as next to none "
        "unless nodes have data of their own. Declare longer intervals"
    )

    @property
    def words(self) -> str:
        return f"times to an event, in {self.num_classes} intervals"

    @property
    def outputs(self) -> tuple[int, ...]:
        return (self.num_classes,)

    def unfit(self, y: Labels) -> npt.NDArray[np.bool_]:
        place, event = y[..., 0], y[..., 1]
        # Not the other way round: a NaN is in no range.
        fit: npt.NDArray[np.bool_] = (
            (place >= 0) & (place <= self.num_classes) & ((event == 0) | (event == 1))
        )
        return ~fit

    def counts(self, y: Labels) -> npt.NDArray[np.int64]:
        """Count the events in each interval."""
        rows = y.reshape(-1, 2)
        positions = rows[rows[:, 1] == 1, 0].astype(np.float32)
        return np.bincount(interval_of(positions), minlength=self.num_classes).astype(np.int64)

    def unlearnt(self, train: Labels, test: Labels) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self.counts(train) == 0)

    def drawn(self, leading: tuple[int, ...], generator: "torch.Generator") -> "torch.Tensor":
        places = self.num_classes * torch.rand(leading, generator=generator)
        events = torch.randint(2, leading, generator=generator)
        return torch.stack([places, events.to(places.dtype)], dim=-1)

    def probabilities(self, outputs: "torch.Tensor") -> "torch.Tensor":
        """Return survival at the end of every interval, shape (N, J)."""
        return torch.exp(-functional.softplus(outputs).cumsum(dim=1))

    def answers(
        self, probabilities: npt.NDArray[np.float32], names: npt.NDArray[np.object_]
    ) -> npt.NDArray[np.float64]:
        """Return median survival times, float64[N], by interpolation of survival at the intervals' ends.

        In the unit of the ends that `names` hold, or in intervals without them; NaN where more than half
        survive the horizon.
        """
        named = [float(name) for name in names] or [*range(1, self.num_classes + 1)]
        ends = np.array([0.0, *named])
        survival = np.concatenate([np.ones((len(probabilities), 1)), probabilities], axis=1)
        reached = survival <= HALF
        last = np.maximum(reached.argmax(axis=1), 1)
        rows = np.arange(len(survival))
        before, after = survival[rows, last - 1], survival[rows, last]
        part = (before - HALF) / np.where(reached.any(axis=1), before - after, 1.0)
        found = ends[last - 1] + part * (ends[last] - ends[last - 1])
        return np.where(reached.any(axis=1), found, np.nan)
