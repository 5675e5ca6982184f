"""The noise of a whole sum without masks, drawn at once."""

import os
from math import sqrt

import numpy as np
import numpy.typing as npt

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.update import noise_steps
from gdpfed.learning.noise import gaussian_noise
from gdpfed.learning.task import choose_device
from secagg import SumParameters, keystream


def sum_noise_steps(
    order: TrainingOrder, parameters: SumParameters, num_updates: int
) -> npt.NDArray[np.int64]:
    """Draw the noise that ``num_updates`` clients add together, in integer steps, shape (d,).

    Gaussian noise is drawn in one go with the variance of all shares, num_updates C^2 sigma^2 / (n - D - c),
    and rounded once; the clients' own shares, each rounded, have 1/12 of a step squared more each, where a
    share's variance is 481 steps squared or more. The sum of discrete Gaussians has no sampler of its own:
    every client's share is drawn.
    """
    if parameters.noise_multiplier == 0:
        return np.zeros(parameters.dimension, dtype=np.int64)
    if order.noise == "discrete_gaussian":
        total = np.zeros(parameters.dimension, dtype=np.int64)
        for _ in range(num_updates):
            total += noise_steps(order, parameters, parameters.num_clients)
        return total
    noise = gaussian_noise(
        parameters.dimension,
        sqrt(num_updates) * parameters.client_noise_stddev(parameters.num_clients),
        keystream(os.urandom(32)),
        device=choose_device(order.device),
    )
    return np.rint(noise.cpu().numpy() / parameters.encoding(parameters.num_clients).grid).astype(np.int64)
