"""Noise in a coordinate of a subnet's mean after one sum, by who adds it."""

import math

from conf.schema import SecAggConfig
from gdpfed.methods.sum_parameters import sum_parameters
from gdpfed.privacy.mechanisms.subnet_sums import Trust
from gdpfed.record_steps import Work


def noise_factor(secagg: SecAggConfig, trust: Trust | None, size: int) -> float:
    """How many times its planned noise the sum of s devices carries, if all of them answer.

    1 where an edge adds it, or a server that sums in clear; sqrt(s) where every device adds all of it;
    sqrt(s / (s - D - c)) where they share it, and up to D may drop out and c collude. Noise for dropouts
    that is taken out again once they have answered (`secagg.noise_levels`) counts for nothing.
    """
    if trust == "trusted":
        return 1.0
    shared = _shared_factor(secagg, size)
    return shared * math.sqrt(size) if trust == "untrusted" else shared


def _shared_factor(secagg: SecAggConfig, size: int) -> float:
    if size < 2 or secagg.mode == "off":
        return 1.0
    parameters = sum_parameters(
        secagg, label="", num_clients=size, dimension=1, clipping_norm=1.0, noise_multiplier=1.0
    )
    dropouts = 0 if parameters.noise_levels else parameters.dropout_tolerance
    return math.sqrt(size / (size - dropouts - parameters.corrupt_tolerance))


def mean_noise(
    *, work: Work, stddev: float, learning_rate: float, size: int, expected_batch: float, steps: int
) -> float:
    """The standard deviation of a coordinate of the mean over `size` devices.

    Args:
        work: what devices compute.
        stddev: of the noise in their sum, or in one step of one device, in units of a gradient.
        learning_rate: eta.
        size: s.
        expected_batch: B, of one device.
        steps: m, of a window.
    """
    if work == "update":
        return stddev / size
    if work == "window_steps":
        return learning_rate * stddev / size
    released = steps if work == "dp_sgd" else 1
    return learning_rate * stddev * math.sqrt(released) / (expected_batch * size)
