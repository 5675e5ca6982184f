"""A client's contribution: train, weigh, clip, encode as integers, add noise."""

import os
from functools import lru_cache
from math import inf, isinf
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import InputError
from gdpfed.learning.datasets import Split
from gdpfed.learning.datasets.own import own_split
from gdpfed.learning.local_update import clip, local_update
from gdpfed.learning.noise import gaussian_noise
from gdpfed.learning.task import Task, choose_device
from secagg import ClientSession, Encoding, SumParameters, keystream


class OrderError(InputError):
    """A training order that does not fit what the client agreed to."""


def batch_generator(order: TrainingOrder, client_id: int) -> np.random.Generator:
    """Return the generator that chooses one client's batches in one round."""
    return np.random.default_rng([order.task.seed, client_id, order.round_index])


WORKS = {"update": local_update}
"""What clients compute for a sum, by the name that an order gives it."""

# Where a process outlives a message, as in simulation, the architecture is built once.
_model = lru_cache(maxsize=1)(Task.build_model)


def update_steps(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    encoding: Encoding,
    client_id: int,
    own_data: Path | None = None,
) -> npt.NDArray[np.int64]:
    """One client's contribution in integer steps, shape (d,), without noise: clip(w_i Delta_i, w_i C_i).

    It is clipped to ``clip_bound``, a hair below w_i C_i, so that after rounding to the grid its L2 norm is
    at most w_i C_i: the order's clipping norm, which may not be above the sum's.

    ``own_data`` is the file with this client's own examples; without one its part of the data set.

    Raises:
        EncodingError: the update has a coordinate that would wrap the sum (without clipping only).
        OrderError: a work that there is not, or a weight that is none.
    """
    if order.work not in WORKS:
        raise OrderError(f"the order's work is {order.work!r}; clients compute {', '.join(WORKS)}")
    if not 0.0 < order.weight < inf:
        raise OrderError(f"the order's weight is {order.weight}; it must be positive and finite")
    update = WORKS[order.work](
        _model(order.task),
        theta,
        _examples(order.task, client_id, own_data),
        order.training,
        rng=batch_generator(order, client_id),
        device=choose_device(order.device),
    )
    own = encoding if isinf(order.clipping_norm) else encoding.clipped_to(order.clipping_norm)
    return own.encode(clip(order.weight * update, own.clip_bound).cpu().numpy())


def _examples(task: Task, client_id: int, own_data: Path | None) -> Split:
    if own_data is None:
        return task.client_data(client_id)
    if task.form is None:
        raise OrderError("the order does not say what examples look like, so own data cannot be used")
    return own_split(own_data, task.form)


def noise_steps(
    order: TrainingOrder,
    parameters: SumParameters,
    num_contributors: int,
    session: ClientSession | None = None,
) -> npt.NDArray[np.int64]:
    """One client's share of the noise, C sigma / sqrt(n2 - D - c), in integer steps, shape (d,).

    A rounded Gaussian drawn on the training device, or a discrete one drawn in integers: by the session,
    which can take back its parts, or without one all at once.
    """
    encoding = parameters.encoding(num_contributors)
    if order.noise != "discrete_gaussian" or parameters.noise_multiplier == 0:
        return _rounded_gaussian(parameters, num_contributors, choose_device(order.device))
    if session is not None:
        return session.noise_steps()
    if encoding.levels is None:
        raise OrderError("discrete noise was ordered for a sum that carries none")
    return encoding.levels.draw(0, encoding.dimension, os.urandom(32))


def _rounded_gaussian(
    parameters: SumParameters, num_contributors: int, device: torch.device
) -> npt.NDArray[np.int64]:
    """Gaussian noise from a keystream under a fresh key of the operating system, rounded to the grid."""
    if parameters.noise_levels:
        raise OrderError("noise that is to be taken out again cannot be gaussian, only discrete_gaussian")
    noise = gaussian_noise(
        parameters.dimension,
        parameters.client_noise_stddev(num_contributors),
        keystream(os.urandom(32)),
        device=device,
    )
    return parameters.encoding(num_contributors).encode_noise(noise.cpu().numpy())
