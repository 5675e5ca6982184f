"""The work convex_steps: a window of steps on a convex loss, of which the sum carries the noise."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_work import (
    alone,
    check_convex,
    check_convex_steps,
    check_window,
    checked_model,
    ends_of_windows,
)
from gdpfed.clients.works import Job
from gdpfed.learning.models.networks import convex_bounds
from gdpfed.learning.training.record_training import RecordGradients, RecordHolder, Take
from secagg import Encoding


def work(job: Job) -> torch.Tensor:
    """Return minus the sum of all gradients on the way, (theta_i - theta) B / eta: shape (d,), float64.

    A record moves it by C each time that it is met.
    """
    return alone(job, updates)


def updates(
    orders: Sequence[TrainingOrder],
    theta: npt.NDArray[np.float32],
    gradients: RecordGradients,
    holders: Sequence[RecordHolder],
    take: Take,
    grid: float,
) -> torch.Tensor:
    """Return the same of several clients, as in `gdpfed.clients.record_work.alone`: shape (clients, d)."""
    known = convex_bounds(gradients.model)
    for order, holder in zip(orders, holders, strict=True):
        check_convex_steps(order, len(holder.records), known)
    return ends_of_windows(orders, theta, gradients, holders, take, grid, bound="convex")


def check(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding, client_id: int) -> None:
    """Refuse a window whose bound does not hold, whatever the records are: OrderError, LearningError."""
    model = checked_model(order)
    check_convex(order, convex_bounds(model))
    check_window(order, theta, encoding)
