"""Epsilon against those who know the cohorts: the server, and members of the same sums."""

import math
from functools import lru_cache
from typing import get_args

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.discrete import GAUSSIAN_SHARE, MOST_EPSILON, effective_delta
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.events import Adjacency, NoiseLaw
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_delta,
    require_number,
    require_rate,
)

stats = late_import("scipy.stats")


@lru_cache(maxsize=4096)
def epsilon_against_server(
    noise_multiplier: float,
    participations: int,
    delta: float,
    adjacency: Adjacency = "zero_out",
) -> float:
    """Return the exact epsilon of K noised sums that a client is known to be part of.

    K Gaussians of noise multiplier sigma compose to one of sigma / sqrt(K), whose epsilon is
    exact (Balle and Wang, arXiv:1805.06530, Theorem 8). `noise_multiplier` is std / C; under
    replace_one a sum moves by 2 C. No amplification by sampling. It holds where the server sees
    sums only, not single updates. K = 0 costs nothing; no noise gives inf.
    """
    require_count("participations", participations, at_least=0)
    require_delta(delta)
    require_choice("adjacency", adjacency, get_args(Adjacency))
    if require_number("noise_multiplier", noise_multiplier) < 0:
        raise PrivacyError(f"noise_multiplier is {noise_multiplier}; it must not be negative")
    if participations == 0:
        return 0.0
    distance = 1.0 if adjacency == "zero_out" else 2.0
    sigma = noise_multiplier / distance / math.sqrt(participations)
    return gaussian_epsilon(sigma, delta)


def discrete_epsilon_against_server(
    noise_multiplier: float, participations: int, delta: float, adjacency: Adjacency = "zero_out"
) -> float:
    """`epsilon_against_server` for discrete noise: of `GAUSSIAN_SHARE` of it, at the reduced delta."""
    reduced = effective_delta(delta, num_rounds=max(1, participations))
    charged = noise_multiplier * GAUSSIAN_SHARE
    epsilon = epsilon_against_server(charged, participations, reduced, adjacency)
    return epsilon if epsilon <= MOST_EPSILON else math.inf


def server_epsilon(
    noise: NoiseLaw, noise_multiplier: float, participations: int, delta: float, adjacency: Adjacency
) -> float:
    """Return epsilon against the server of K noised sums that a client is known to be part of."""
    bound = discrete_epsilon_against_server if noise == "discrete_gaussian" else epsilon_against_server
    return bound(noise_multiplier, participations, delta, adjacency)


def participations_quantile(num_rounds: int, sampling_rate: float, probability: float = 0.99) -> int:
    """Return the smallest K that Binomial(num_rounds, sampling_rate) exceeds no more often.

    With probability 0.99 it is the number of rounds that 99 of 100 clients stay within.
    """
    require_count("num_rounds", num_rounds)
    require_rate("sampling_rate", sampling_rate)
    if not 0.0 < require_number("probability", probability) < 1.0:
        raise PrivacyError(f"probability is {probability}; it must lie in (0, 1)")
    return int(stats.binom.ppf(probability, num_rounds, sampling_rate))
