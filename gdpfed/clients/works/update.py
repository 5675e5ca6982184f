"""What clients compute as update: the change of the model by local training."""

import numpy as np
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.order_checks import built_model
from gdpfed.clients.works import Job
from gdpfed.learning.training.local_update import local_update


def work(job: Job) -> torch.Tensor:
    """Return Delta_i, the change of the model by local training: shape (d,), float64."""
    order, added = job.order, job.added
    return local_update(
        built_model(order.task),
        job.theta,
        job.examples(),
        order.training,
        rng=batch_generator(order, job.client_id),
        device=job.device,
        loss=order.task.make_loss(),
        added=None if added is None else torch.from_numpy(added).to(job.device),
    )


def batch_generator(order: TrainingOrder, client_id: int) -> np.random.Generator:
    """Return the random generator that draws one client's batches in a round."""
    window = [order.window] if order.window else []
    return np.random.default_rng([order.task.seed, client_id, order.round_index, *window])
