"""The work window_steps: clipped local steps, with noise added to the sum of all clients' results."""

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_work import RecordJobs, alone, check_window, checked_model, ends_of_windows
from gdpfed.clients.works import Job
from secagg import Encoding


def work(job: Job) -> torch.Tensor:
    """Return the model's change over the learning rate, (theta_i - theta) / eta: shape (d,), float64."""
    return alone(job, updates)


def updates(jobs: RecordJobs) -> torch.Tensor:
    """Return what `work` returns, for several clients computed together: shape (clients, d)."""
    return ends_of_windows(jobs, "step")


def check(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding, client_id: int) -> None:
    """Refuse steps whose effect on the result is not bounded for all possible records."""
    checked_model(order)
    check_window(order, theta, encoding)
