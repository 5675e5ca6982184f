"""What clients compute as held_out_rates: fractions of right and wrong answers on held-out records."""

from math import isinf

import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.works import Job
from gdpfed.clients.works.held_out_counts import check_classes, counted, dimension_of_counts


def work(job: Job) -> torch.Tensor:
    """Return the fractions of right and wrong answers, scaled to a norm within the sum's bound."""
    check_classes(job.order)
    shares = counted(job, job.held_out(), rates=True)
    bound = min(job.order.smallest_norm, job.encoding.clipping_norm)
    return torch.from_numpy(shares * ((1.0 if isinf(bound) else bound) / job.order.weight))


def check(order: TrainingOrder, *sum_of: object) -> None:
    """Raise OrderError if the number of classes is missing."""
    check_classes(order)


def model_dimension(order: TrainingOrder, dimension: int) -> int:
    """Return the number of model parameters; raise OrderError if sums of rates have another `dimension`."""
    return dimension_of_counts(order, dimension, rates=True)
