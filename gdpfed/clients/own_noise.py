"""Noise of a client's own: on its update, and on how many records of each class it has."""

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.errors import PrivacyError
from gdpfed.learning.training.local_update import clip
from gdpfed.learning.training.secret_draws import RandomBytes, gaussian_noise

# Of C: far more than the rounding of float64 in the norm that is clipped to.
SLACK = 1 - 2.0**-30


def with_own_noise(order: TrainingOrder, update: torch.Tensor, random_bytes: RandomBytes) -> torch.Tensor:
    """clip(Delta, C) + N(0, (C z)^2 I), before it is weighed: the Gaussian mechanism on whole clients.

    An update that is not finite counts as zero. What follows, weighing and rounding to the grid, is
    post-processing. `order`: the client's own; its ``records`` have C and z. `update`: Delta, shape (d,),
    float64. `random_bytes`: the client's secret source of bits. Raises OrderError: an order without noise, or
    with several steps.
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


GRID = 2.0**-10
"""What is released is a multiple of this, so that its last digits tell nothing."""


def noised_counts(
    counts: npt.NDArray[np.int64], noise_stddev: float, random_bytes: RandomBytes
) -> npt.NDArray[np.float64]:
    """counts + N(0, s^2) in each, rounded, shape (B,).

    One record that is replaced moves two counts by one each, or none: sqrt 2 in norm, so that it costs 1 /
    s^2 zCDP. Values may lie below 0; who uses them clips them, which is post-processing. `counts`: records of
    every class, shape (B,). `noise_stddev`: s, above 0. `random_bytes`: the client's secret source of bits.
    Raises PrivacyError: no noise.
    """
    if not noise_stddev > 0:
        raise PrivacyError(f"class counts are asked for under noise of standard deviation {noise_stddev:g}")
    noise = gaussian_noise(len(counts), noise_stddev, random_bytes, device=torch.device("cpu")).numpy()
    return np.asarray(np.rint((counts + noise) / GRID) * GRID)
