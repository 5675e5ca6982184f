"""What clients compute as noised_update: the change of the model, to which the client itself adds noise."""

import torch

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.works import Job, update
from gdpfed.learning.training.local_update import clip
from gdpfed.learning.training.secret_draws import RandomBytes, gaussian_noise
from gdpfed.record_steps import RecordSteps

# Of C: far more than the rounding of float64 in the norm that is clipped to.
SLACK = 1 - 2.0**-30


def work(job: Job) -> torch.Tensor:
    """Return the clipped, noised update, clip(Delta_i, C) + N(0, (C z)^2 I), of a client's training."""
    return with_own_noise(job.order, update.work(job), job.bits(job.client_id))


def without_examples(job: Job) -> torch.Tensor:
    """Return only noise, so that nobody can tell that this client has no usable examples."""
    zeros = torch.zeros(job.encoding.dimension, dtype=torch.float64)
    return with_own_noise(job.order, zeros, job.bits(job.client_id))


def check(order: TrainingOrder, *sum_of: object) -> None:
    """Raise OrderError unless the server asks for exactly one step, with a positive noise multiplier."""
    _noise_in(order)


def with_own_noise(order: TrainingOrder, update: torch.Tensor, random_bytes: RandomBytes) -> torch.Tensor:
    """Clip an update and add noise, clip(Delta, C) + N(0, (C z)^2 I), before weighting.

    An update that is not finite counts as zero. What follows, weighing and rounding to the grid, is
    post-processing. `order`: the client's own; its ``records`` have C and z. `update`: Delta, shape (d,),
    float64. `random_bytes`: the client's secret source of bits. Raises OrderError: an order without noise, or
    with several steps.
    """
    told = _noise_in(order)
    noise = gaussian_noise(
        len(update), told.clipping_norm * told.noise_multiplier, random_bytes, device=update.device
    )
    return clip(update, SLACK * told.clipping_norm) + noise


def _noise_in(order: TrainingOrder) -> RecordSteps:
    """Return the noise parameters for a whole update; raise OrderError if they are missing or invalid."""
    told = order.records
    if told is None or told.noise_multiplier == 0 or told.num_steps != 1:
        raise OrderError(
            f"the server asks for {order.work} and does not state one positive noise_multiplier for the "
            "whole update: state it, or, in a run without privacy, use plain updates"
        )
    return told
