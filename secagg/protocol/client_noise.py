"""The noise of one client in a sum: drawn from its own seeds, or its caller's and checked."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from secagg.crypto.keys import noise_key, noise_seeds
from secagg.protocol.client_state import ClientState
from secagg.sum_errors import LocalProtocolError

NOISE_DOUBT_BITS = 40
"""Noise of a caller's own is refused where noise of the right law is so small once in 2**40 times."""

Steps = NDArray[np.int64]


def noisy_steps(
    state: ClientState, steps: Steps, noise: Steps | Literal["discrete_gaussian"] | None
) -> Steps:
    """The update with this client's noise: int64[d]. `ClientSession.mask` says what may be given.

    Raises:
        LocalProtocolError: another dtype or shape, or noise where other noise or none belongs.
    """
    parameters = state.sum_parameters
    _check_vector(state, "steps", steps)
    if state.corrects:
        if noise is not None:
            raise LocalProtocolError("a member without an update adds no noise: give what it takes back")
        return steps
    if noise is None and parameters.noise_multiplier:
        raise LocalProtocolError(
            f"the sum has noise of multiplier {parameters.noise_multiplier:g}, and none is given: "
            'give noise=..., or noise="discrete_gaussian" for noise of the session\'s own'
        )
    if noise is None or isinstance(noise, str):
        total = draw_noise(state)
        total += steps
        return total
    _check_vector(state, "noise", noise)
    _check_noise(state, noise)
    return steps + noise


def draw_noise(state: ClientState) -> Steps:
    """All parts of this client's noise, added up: int64[d]."""
    parameters, own, levels = state.sum_parameters, state.member, state.encoding().levels
    if levels is None:
        return np.zeros(parameters.dimension, dtype=np.int64)
    seeds = [state.base_noise_seed, *noise_seeds(state.noise_seed, parameters.noise_levels)]
    total = levels.draw(0, parameters.dimension, noise_key(state.sid, seeds[0], own))
    for part in levels.parts_above(0):
        total += levels.draw(part, parameters.dimension, noise_key(state.sid, seeds[part], own))
    return total


def _check_vector(state: ClientState, name: str, vector: Steps) -> None:
    dimension = state.sum_parameters.dimension
    if vector.dtype != np.int64 or vector.shape != (dimension,):
        raise LocalProtocolError(f"{name} are {vector.dtype}{list(vector.shape)}: give int64[{dimension}]")


def _check_noise(state: ClientState, noise: Steps) -> None:
    """Raise LocalProtocolError for noise that the sum's law gives with probability below 2**-40.

    |z|**2 >= s**2 (d - 2 sqrt(d x)) but for exp(-x) (Laurent and Massart, 2000, lemma 1).
    """
    if state.sum_parameters.noise_multiplier == 0 or state.sum_parameters.noise_levels:
        raise LocalProtocolError(
            "noise was given for a sum without noise, or with noise levels: give none, the session "
            "draws what belongs"
        )
    dimension, stddev = len(noise), state.encoding().integer_noise_stddev
    least = dimension - 2 * math.sqrt(dimension * NOISE_DOUBT_BITS * math.log(2))
    given = float(np.dot(noise, noise)) / stddev**2
    if given < least:
        raise LocalProtocolError(
            f"the noise has a standard deviation of {math.sqrt(given / dimension) * stddev:.4g} steps "
            f"where {stddev:.4g} belong: give `client_noise_stddev`, or none and the session draws it"
        )
