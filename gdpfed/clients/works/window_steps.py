"""What clients compute as window_steps: clipped local steps; noise is added once, to the sum over clients."""

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_work import RecordJobs, alone, check_window, ends_of_windows
from gdpfed.clients.works import Job
from gdpfed.clients.works.dp_sgd import check as check
from secagg import Encoding


def work(job: Job) -> torch.Tensor:
    """Return the model's change divided by the learning rate, (theta_i - theta) / eta, float64[d]."""
    return alone(job, updates)


def updates(jobs: RecordJobs) -> torch.Tensor:
    """Return each client's model change divided by the learning rate: shape (clients, d)."""
    return ends_of_windows(jobs, "step")


def check_grid(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding) -> None:
    """Raise OrderError if rounding is too coarse for the bound on the effect of a single record."""
    check_window(order, theta, encoding)
