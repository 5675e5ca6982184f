"""The work gradient_sum: a batch's clipped gradients, for a sum that carries the noise."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_work import UNITS_A_GRID_STEP, alone, checked_model, record_bound
from gdpfed.clients.works import Job
from gdpfed.learning.training.record_training import RecordGradients, RecordHolder, Take, exact_sums
from secagg import Encoding


def work(job: Job) -> torch.Tensor:
    """Return minus the sum of a batch's clipped gradients, without noise: shape (d,), float64."""
    return alone(job, updates)


def updates(
    orders: Sequence[TrainingOrder],
    theta: npt.NDArray[np.float32],
    gradients: RecordGradients,
    holders: Sequence[RecordHolder],
    take: Take,
    grid: float,
) -> torch.Tensor:
    """Return the same of several clients, as in `gdpfed.clients.record_work.alone`: shape (clients, d).

    The sum is in integers, and encoding it cannot take it further than C from the sum without one of the
    records (`record_bound`). Raises OrderError: the grid is too coarse for C.
    """
    bounds = [record_bound(order, theta.shape[-1], grid) for order in orders]
    unit = grid / UNITS_A_GRID_STEP
    sums = exact_sums(gradients, theta, holders, take, bounds=bounds, unit=unit)
    return torch.from_numpy(-sums * unit).to(gradients.device)


def check(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding, client_id: int) -> None:
    """Refuse a step that is none, a grid too coarse for C, and a model that couples records."""
    checked_model(order)
    record_bound(order, len(theta), encoding.grid)
