"""The public parameters of one sum, from the configuration and the cohort's size."""

from math import ceil, floor

from conf.schema import SecAggConfig
from secagg import (
    EncodingError,
    SumParameters,
    modulus_bits_for,
    sparse_degree,
    threshold_for,
)

FULL_BITS = 32


def sum_parameters(
    secagg: SecAggConfig,
    *,
    label: str,
    num_clients: int,
    dimension: int,
    clipping_norm: float,
    noise_multiplier: float,
) -> SumParameters:
    """The parameters of a sum over ``num_clients`` clients.

    Fractions become counts: ceil(corrupt_tolerance n) corrupt members, and floor(dropout_tolerance n)
    dropouts, but never so many that too few would be left to unmask. On a sparse graph the dropouts are
    those that its bounds were made for, ceil(dropout_tolerance n).
    """
    n = num_clients
    corrupt = ceil(secagg.corrupt_tolerance * n)
    neighbours, threshold, graph_corrupt = _graph(secagg, n, corrupt)
    if neighbours:
        dropouts = ceil(secagg.dropout_tolerance * n)
    else:
        dropouts = max(0, min(floor(secagg.dropout_tolerance * n), n - 1 - threshold))
    levels = min(secagg.noise_levels, dropouts) if noise_multiplier > 0 else 0
    return SumParameters(
        label=label,
        num_clients=n,
        threshold=threshold,
        dropout_tolerance=dropouts,
        corrupt_tolerance=corrupt,
        dimension=dimension,
        clipping_norm=clipping_norm,
        noise_multiplier=noise_multiplier,
        suite=secagg.suite,
        num_neighbours=neighbours,
        graph_corrupt=graph_corrupt,
        noise_levels=0 if secagg.mode == "off" else levels,
        modulus_bits=_modulus_bits(secagg, n, noise_multiplier, dropouts, corrupt, levels),
        mode=secagg.mode,
    )


def _graph(secagg: SecAggConfig, num_clients: int, corrupt: int) -> tuple[int, int, int]:
    """k, t, and how many corrupt members a sparse graph withstands; k = 0 is the complete graph.

    A large cohort that no sparse graph serves gets the complete one: it protects more and costs more.
    """
    if num_clients == 1:
        # An update that is read alone: nothing is masked, and nothing shared.
        return 0, 1, 0
    if secagg.mode == "curious" and num_clients >= secagg.complete_below:
        fraction = max(secagg.corrupt_tolerance, secagg.sparse_corrupt_fraction)
        try:
            degree, threshold = sparse_degree(num_clients, fraction, secagg.dropout_tolerance)
        except ValueError:
            pass
        else:
            return degree, threshold, ceil(fraction * num_clients)
    return 0, threshold_for(num_clients, secagg.threshold, corrupt=corrupt, mode=secagg.mode), 0


def _modulus_bits(
    secagg: SecAggConfig,
    num_clients: int,
    noise_multiplier: float,
    dropouts: int,
    corrupt: int,
    levels: int,
) -> int:
    """The configured bits, or the fewest that hold the finest noise; 32 where there is no noise or mask."""
    if secagg.mode == "off" or noise_multiplier == 0:
        return FULL_BITS
    if secagg.modulus_bits is not None:
        return secagg.modulus_bits
    try:
        return modulus_bits_for(
            num_clients=num_clients,
            noise_multiplier=noise_multiplier,
            dropout_tolerance=dropouts,
            corrupt_tolerance=corrupt,
            most_noise_levels=levels,
        )
    except EncodingError:
        return FULL_BITS
