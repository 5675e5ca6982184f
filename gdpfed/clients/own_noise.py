"""Noise that a client adds to its own update, which then is private by itself, whoever sees it."""

import torch

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.learning.training.gaussian_noise import gaussian_noise
from gdpfed.learning.training.local_update import clip
from gdpfed.learning.training.record_batches import RandomBytes

# Of C: far more than the rounding of float64 in the norm that is clipped to.
SLACK = 1 - 2.0**-30


def with_own_noise(order: TrainingOrder, update: torch.Tensor, random_bytes: RandomBytes) -> torch.Tensor:
    """clip(Delta, C) + N(0, (C z)^2 I), before it is weighed: the Gaussian mechanism on whole clients.

    An update that is not finite counts as zero. What follows, weighing and rounding to the grid, is
    post-processing.

    Args:
        order: the client's own; its ``records`` have C and z.
        update: Delta, shape (d,), float64.
        random_bytes: the client's secret source of bits.

    Raises:
        OrderError: an order without noise, or with several steps.
    """
    told = order.records
    if told is None or told.noise_multiplier == 0 or told.num_steps != 1:
        raise OrderError(
            f"the order's work is {order.work} and it does not say one positive noise_multiplier for the "
            "whole update: without privacy use the work update"
        )
    noise = gaussian_noise(
        len(update), told.clipping_norm * told.noise_multiplier, random_bytes, device=update.device
    )
    return clip(update, SLACK * told.clipping_norm) + noise
