"""A sum without secure aggregation, for both kinds of fleet: the server adds the whole sum's noise, once."""

import os
from collections.abc import Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.update import noise_steps
from gdpfed.learning.noise import gaussian_noise
from gdpfed.learning.task import choose_device
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.prepared import PreparedSum
from secagg import ImplausibleSum, SumParameters, check_sum, keystream


def plain_sum(
    name: str, parameters: SumParameters, total: npt.NDArray[np.uint32], members: Sequence[int]
) -> ClientSum:
    """The sum of residues that arrived without masks: the same encoding, bounds and tolerance of dropouts.

    ``members`` are the clients whose residues are in it.
    """
    num_updates = len(members)
    need = parameters.num_clients - parameters.dropout_tolerance
    if num_updates < need:
        return ClientSum(name, None, 0, f"{num_updates} updates arrived, {need} are needed")
    decoded = parameters.encoding(parameters.num_clients).decode(total)
    try:
        check_sum(parameters, parameters.num_clients, num_updates, 0, decoded)
    except ImplausibleSum as error:
        return ClientSum(name, None, 0, str(error))
    return ClientSum(name, decoded, num_updates, upload_bytes=4.0, members=tuple(members))


def noise_shares(each: PreparedSum, num_updates: int) -> int:
    """How many clients' shares of noise the server adds to a sum in which ``num_updates`` arrived.

    One for each update; of an edge that is trusted n - D, which carry C sigma, whoever has dropped out.
    """
    if each.at_edge:
        return each.parameters.num_clients - each.parameters.dropout_tolerance
    return num_updates


def sum_noise_steps(
    order: TrainingOrder, parameters: SumParameters, num_shares: int
) -> npt.NDArray[np.int64]:
    """Draw the noise that ``num_shares`` clients would add together, in integer steps, shape (d,).

    Gaussian noise is drawn in one go with the variance of all shares, num_shares C^2 sigma^2 / (n - D - c),
    and rounded once; the clients' own shares, each rounded, have 1/12 of a step squared more each, where a
    share's variance is 481 steps squared or more. The sum of discrete Gaussians has no sampler of its own:
    every client's share is drawn.
    """
    if parameters.noise_multiplier == 0:
        return np.zeros(parameters.dimension, dtype=np.int64)
    if order.noise == "discrete_gaussian":
        total = np.zeros(parameters.dimension, dtype=np.int64)
        for _ in range(num_shares):
            total += noise_steps(order, parameters, parameters.num_clients)
        return total
    noise = gaussian_noise(
        parameters.dimension,
        sqrt(num_shares) * parameters.client_noise_stddev(parameters.num_clients),
        keystream(os.urandom(32)),
        device=choose_device(order.device),
    )
    return np.rint(noise.cpu().numpy() / parameters.encoding(parameters.num_clients).grid).astype(np.int64)
