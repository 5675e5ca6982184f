"""What clients compute as convex_steps: local steps on a convex loss; noise enters only the secure sum."""

import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_work import (
    RecordJobs,
    alone,
    check_convex,
    check_convex_steps,
    checked_model,
    ends_of_windows,
)
from gdpfed.clients.works import Job
from gdpfed.clients.works.window_steps import check_grid as check_grid
from gdpfed.learning.models.networks import convex_bounds


def work(job: Job) -> torch.Tensor:
    """Return minus the sum of all steps' gradients, computed from the model's change: shape (d,).

    It is (theta_i - theta) B / eta, in float64, with the expected batch size B.

    A record moves it by C each time that it is met.
    """
    return alone(job, updates)


def updates(jobs: RecordJobs) -> torch.Tensor:
    """Return minus the sum of all steps' gradients, for each of several clients: shape (clients, d)."""
    known = convex_bounds(jobs.gradients.model)
    for order, holder in zip(jobs.orders, jobs.holders, strict=True):
        check_convex_steps(order, len(holder.records), known)
    return ends_of_windows(jobs, "convex")


def check(order: TrainingOrder, *sum_of: object) -> None:
    """Raise an error if the requested local steps have no proven bound on the effect of a single record."""
    model = checked_model(order)
    check_convex(order, convex_bounds(model))
