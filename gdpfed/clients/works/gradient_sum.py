"""What clients compute as gradient_sum: the sum of a batch's clipped gradients, before noise is added."""

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_work import UNITS_A_GRID_STEP, RecordJobs, alone, record_bound
from gdpfed.clients.works import Job
from gdpfed.clients.works.dp_sgd import check as check
from gdpfed.learning.training.record_training import exact_sums
from secagg import Encoding


def work(job: Job) -> torch.Tensor:
    """Return minus the sum of a batch's clipped gradients, without noise: shape (d,), float64."""
    return alone(job, updates)


def updates(jobs: RecordJobs) -> torch.Tensor:
    """Return minus the sum of a batch's clipped gradients, for each of several clients: shape (clients, d).

    The sum is in integers, and encoding it cannot take it further than C from the sum without one of the
    records (`record_bound`). Raises OrderError: the grid is too coarse for C.
    """
    unit = jobs.grid / UNITS_A_GRID_STEP
    sums = exact_sums(jobs.gradients, jobs.theta, jobs.holders, jobs.take, bounds=jobs.bounds, unit=unit)
    return torch.from_numpy(-sums * unit).to(jobs.gradients.device)


def check_grid(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding) -> None:
    """Raise OrderError if rounding to the sum's grid takes too much of a record's bound."""
    record_bound(order, len(theta), encoding.grid)
