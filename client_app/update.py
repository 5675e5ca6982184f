"""From the server's order to the integers that are masked: train, clip, add noise, encode."""

import os
from functools import lru_cache
from math import isinf

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from gdpfed.exchange import ORDER_RECORD, THETA_RECORD
from gdpfed.learning.local_update import clip, local_update
from gdpfed.learning.noise import gaussian_noise
from gdpfed.learning.order import TrainingOrder
from gdpfed.learning.task import Task, choose_device
from secagg import ClientSession, Encoding, RoundParameters, keystream


class OrderError(ValueError):
    """A training order that does not fit what the client agreed to."""


def order_and_model(
    content: RecordDict, parameters: RoundParameters
) -> tuple[TrainingOrder, npt.NDArray[np.float32]]:
    """The order and the model of a message.

    Raises:
        OrderError: records are missing, or the model has another size than the client agreed to.
    """
    order, arrays = content.get(ORDER_RECORD), content.get(THETA_RECORD)
    if not isinstance(order, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise OrderError(f"the message lacks the record {ORDER_RECORD} or {THETA_RECORD}")
    theta = arrays[THETA_RECORD].numpy()
    if theta.dtype != np.float32 or theta.shape != (parameters.dimension,):
        raise OrderError(
            f"the model is {theta.dtype}{list(theta.shape)}, not float32[{parameters.dimension}]"
        )
    return TrainingOrder.from_scalars(dict(order)), theta


# Where a process outlives a message, as in simulation, the architecture is built once.
_model = lru_cache(maxsize=1)(Task.build_model)


def encoded_update(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    parameters: RoundParameters,
    num_contributors: int,
    client_id: int,
    session: ClientSession | None = None,
) -> npt.NDArray[np.uint32]:
    """One client's clipped and noised update as residues, shape (d,).

    The update is clipped to ``clip_bound``, a hair below C_i, so that after rounding to the grid its L2
    norm is at most C_i: the order's clipping norm, which may not be above the sum's. The noise is the
    client's share C sigma / sqrt(n2 - D - c): a rounded Gaussian drawn on the training device, or a
    discrete one drawn in integers by the session.
    """
    device = choose_device(order.device)
    encoding = parameters.encoding(num_contributors)
    update = local_update(
        _model(order.task),
        theta,
        order.task.client_data(client_id),
        order.training,
        rng=np.random.default_rng([order.task.seed, client_id, order.round_index]),
        device=device,
    )
    own = encoding if isinf(order.clipping_norm) else encoding.clipped_to(order.clipping_norm)
    steps = own.encode(clip(update, own.clip_bound).cpu().numpy())
    if order.noise == "discrete_gaussian" and parameters.noise_multiplier > 0:
        noise = _discrete_noise(encoding, session)
    else:
        noise = _rounded_gaussian(parameters, num_contributors, device)
    return encoding.to_residues(steps + noise)


def _discrete_noise(encoding: Encoding, session: ClientSession | None) -> npt.NDArray[np.int64]:
    """The session's own noise, whose parts it can take back; without a session all of it at once."""
    if session is not None:
        return session.noise_steps()
    if encoding.levels is None:
        raise OrderError("discrete noise was ordered for a sum that carries none")
    return encoding.levels.draw(0, encoding.dimension, os.urandom(32))


def _rounded_gaussian(
    parameters: RoundParameters, num_contributors: int, device: torch.device
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
