"""What clients compute as held_out_rates: fractions of right and wrong answers on held-out records."""

from math import isinf

import torch

from gdpfed.clients.works import Job
from gdpfed.clients.works.held_out_counts import check as check
from gdpfed.clients.works.held_out_counts import counted


def work(job: Job) -> torch.Tensor:
    """Return the fractions of right and wrong answers, scaled to a norm within the sum's bound."""
    check(job.order, job.theta, job.encoding, job.client_id)
    shares = counted(job, job.held_out(), rates=True)
    bound = min(job.order.smallest_norm, job.encoding.clipping_norm)
    return torch.from_numpy(shares * ((1.0 if isinf(bound) else bound) / job.order.weight))
