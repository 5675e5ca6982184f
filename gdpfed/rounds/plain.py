"""Sums without secure aggregation: the server adds noise once to each sum."""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from math import isinf, prod

import numpy as np
import numpy.typing as npt

from gdpfed.child_process import FLOWER_LOGGER
from gdpfed.clients.keyed_noise import KEY_BYTES
from gdpfed.clients.messages import PLAIN
from gdpfed.clients.noise import noise_steps
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.rounding import on_host
from gdpfed.late_import import late_import
from gdpfed.learning.task import choose_device
from gdpfed.learning.training.secret_draws import gaussian_noise, gaussian_of_words, noise_shape
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.noise_streams import SumNoise
from gdpfed.rounds.prepared import PreparedSum
from secagg import ImplausibleSum, SumParameters, check_sum, keystream

logger = logging.getLogger(FLOWER_LOGGER)
# It is for GPUs alone.
choice = late_import("gdpfed.clients.device.choice")


def summed_in_clear(sums: Sequence[PreparedSum], answers: Mapping[int, bytes]) -> dict[str, ClientSum]:
    """Add up clients' unmasked answers to sums, with the server's noise; return the sums by name.

    The server sees whose update is none within its bound, leaves it out, and adds the noise of the whole sum.
    """
    owner = {client_id: each for each in sums for client_id in each.clients}
    totals = {each.name: np.zeros(each.parameters.dimension, np.uint32) for each in sums}
    arrived: dict[str, list[int]] = {name: [] for name in totals}
    for client_id, data in answers.items():
        asked = owner[client_id]
        encoding, norm = asked.parameters.encoding(len(asked.clients)), asked.part(client_id).clipping_norm
        own = encoding if isinf(norm) else encoding.clipped_to(norm)
        # None is an update of another length, or with values that are too large.
        update = None
        if len(data) == 4 * encoding.dimension:
            residues = np.frombuffer(data, dtype="<u4").astype(np.uint32)
            update = residues if own.is_encoded(residues) else None
        if update is None:
            logger.warning("client %d left in stage %s: no update within its bound", client_id, PLAIN)
        else:
            totals[asked.name] += update
            arrived[asked.name].append(client_id)
    noised = {}
    for each in sums:
        noise = sum_noise_steps(each.order, each.parameters, each.beside.noise)
        total = totals[each.name] + noise.astype(np.uint32)
        noised[each.name] = plain_sum(each.name, each.parameters, total, arrived[each.name])
    return noised


def plain_sum(
    name: str, parameters: SumParameters, total: npt.NDArray[np.uint32], members: Sequence[int]
) -> ClientSum:
    """Decode a sum of unmasked updates under the same bounds and dropout limits as for masked sums.

    ``members`` are the clients whose residues are in it.
    """
    num_updates = len(members)
    need = parameters.num_clients - parameters.dropout_tolerance
    if num_updates < need:
        return ClientSum(name, None, 0, f"{num_updates} updates arrived, {need} are needed")
    encoding = parameters.encoding(parameters.num_clients)
    decoded = encoding.decode(total)
    try:
        check_sum(encoding, num_updates, 0, decoded)
    except ImplausibleSum as error:
        return ClientSum(name, None, 0, str(error))
    return ClientSum(name, decoded, num_updates, upload_bytes=4.0, members=tuple(members))


def sum_noise_steps(
    order: TrainingOrder, parameters: SumParameters, stream: SumNoise | None = None
) -> npt.NDArray[np.int64]:
    """Draw the noise of a sum of unmasked updates, in integer steps: int64[d].

    Whoever adds it knows that it is there, so it has standard deviation C sigma whoever drops out or
    colludes: n - D - c shares of variance C^2 sigma^2 / (n - D - c). Gaussian noise is drawn in one go and
    rounded once. The sum of discrete Gaussians has no sampler of its own: every share is drawn.

    In a ``stream`` of sums, what is new has that standard deviation, and parts of earlier sums' are taken
    back, drawn again from their keys, in real numbers before the one rounding.
    """
    if parameters.noise_multiplier == 0:
        return np.zeros(parameters.dimension, dtype=np.int64)
    if order.noise == "discrete_gaussian":
        total = np.zeros(parameters.dimension, dtype=np.int64)
        shares = parameters.num_clients - parameters.dropout_tolerance - parameters.corrupt_tolerance
        for _ in range(shares):
            total += noise_steps(order, parameters, parameters.num_clients)
        return total
    encoding, dimension = parameters.encoding(parameters.num_clients), parameters.dimension
    stddev, device = parameters.noise_stddev, choose_device(order.device)
    # What may be taken back is drawn by any device from its key, so by bits that a CPU computes.
    bits = choice.device_bits(device) if stream is None and device.type != "cpu" else None
    if bits is not None:
        noise = gaussian_of_words(bits(prod(noise_shape(dimension))), dimension, stddev)
    else:
        keys = SumNoise(os.urandom(KEY_BYTES)) if stream is None else stream
        draw = partial(gaussian_noise, dimension, stddev * keys.new_share, device=device)
        noise = draw(random_bytes=keystream(keys.key))
        for each, tap in keys.taken_back:
            noise -= tap * draw(random_bytes=keystream(each.key))
    return on_host(noise.div_(encoding.grid).round_().long())
