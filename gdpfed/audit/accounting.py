"""Epsilon from the numbers of a plan, straight on dp-accounting.

Poisson sampling is accounted with privacy loss distributions, fixed-size sampling with Renyi divergences
under replace_one, where dp-accounting reads the noise in units of the distance of two updates, 2 C.
Discrete Gaussian noise counts as continuous noise of `DISCRETE_SHARE` of its standard deviation at a
delta smaller by `DISCRETE_DELTA`; docs/secagg.md has the proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dp_accounting as dp
import numpy as np
from dp_accounting.pld import privacy_loss_distribution

DISCRETE_SHARE = math.sqrt(1 - 3**2 / (40**2 * (1 + 12**2)))
DISCRETE_DELTA = 1e-8
DISCRETE_MOST_EPSILON = 30.0
# Each grid of losses gives an upper bound; a finer one is tighter, by far less than one per cent.
GRIDS = (1e-3, 1e-4, 1e-5)
REFINED_BELOW = 1.01
POISSON_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
# Fractional orders of sampling without replacement are slow.
FIXED_SIZE_ORDERS = (1.25, 1.5, 1.75, 2.5, 3.5, *range(2, 33), *range(36, 64, 4), 96, 128, 256, 512, 1024)

_RELATIONS = {
    "zero_out": dp.NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": dp.NeighboringRelation.REPLACE_ONE,
}


@dataclass(frozen=True)
class SampledSums:
    """Rounds of one group, in the numbers that its plan states.

    `noise_multiplier` is the standard deviation of the sum's noise in units of the clipping norm.
    """

    sampling: str
    sampling_rate: float
    group_size: int
    adjacency: str
    noise: str
    noise_multiplier: float

    @property
    def charged_multiplier(self) -> float:
        """What the noise counts for as continuous Gaussian noise."""
        return self.noise_multiplier * (DISCRETE_SHARE if self.noise == "discrete_gaussian" else 1.0)

    @property
    def distance(self) -> float:
        """How far one client moves a sum, in clipping norms."""
        return 1.0 if self.adjacency == "zero_out" else 2.0

    def charged_delta(self, delta: float) -> float:
        """What of delta is left for the continuous law."""
        return delta - DISCRETE_DELTA if self.noise == "discrete_gaussian" else delta


def epsilon_after(sums: SampledSums, rounds: int, delta: float, *, at_most: float = 0.0) -> float:
    """An upper bound on epsilon of so many rounds at delta, refined where it is just above `at_most`."""
    if rounds == 0:
        return 0.0
    if sums.noise_multiplier == 0.0:
        return math.inf
    delta = sums.charged_delta(delta)
    if delta <= 0.0:
        return math.inf
    if sums.sampling == "fixed_size":
        return _bounded(sums, _renyi_epsilon([(sums, rounds)], delta))
    epsilon = math.inf
    for grid in GRIDS:
        epsilon = min(epsilon, _loss_epsilon(sums, rounds, delta, grid))
        if not at_most < epsilon <= at_most * REFINED_BELOW:
            break
    return _bounded(sums, epsilon)


def epsilon_against_server(runs: Sequence[tuple[SampledSums, int]], delta: float) -> float:
    """Epsilon at delta of sums that a client is known to be part of: (what they are, how many)."""
    taken = [(sums, count) for sums, count in runs if count]
    if not taken:
        return 0.0
    if any(sums.noise_multiplier == 0.0 for sums, _ in taken):
        return math.inf
    delta = min(sums.charged_delta(delta) for sums, _ in taken)
    inverse = math.fsum(count * (sums.distance / sums.charged_multiplier) ** 2 for sums, count in taken)
    return float(dp.get_epsilon_gaussian(inverse**-0.5, delta))


def composed_epsilon(runs: Sequence[tuple[SampledSums, int]], delta: float, *, at_most: float) -> float:
    """Epsilon at delta of several trainings together: (what each is, its rounds).

    One alone is accounted as by `epsilon_after`. Several are Renyi sums, one for each neighbouring
    relation that dp-accounting accounts them under, at equal parts of delta, and these figures add up;
    inf with poisson sampling under replace_one among them, for which there is no Renyi bound.
    """
    if len(runs) == 1:
        ((sums, rounds),) = runs
        return epsilon_after(sums, rounds, delta, at_most=at_most)
    if any(sums.noise_multiplier == 0.0 or _has_no_renyi_bound(sums) for sums, _ in runs):
        return math.inf
    delta = min((sums.charged_delta(delta) for sums, _ in runs), default=delta)
    kinds = [[run for run in runs if run[0].sampling == kind] for kind in ("poisson", "fixed_size")]
    parts = [kind for kind in kinds if kind]
    return math.fsum(_renyi_epsilon(part, delta / len(parts)) for part in parts)


def _has_no_renyi_bound(sums: SampledSums) -> bool:
    return sums.sampling == "poisson" and sums.adjacency == "replace_one"


def _bounded(sums: SampledSums, epsilon: float) -> float:
    discrete = sums.noise == "discrete_gaussian"
    return math.inf if discrete and epsilon > DISCRETE_MOST_EPSILON else epsilon


def _loss_epsilon(sums: SampledSums, rounds: int, delta: float, grid: float) -> float:
    if sums.sampling_rate == 1.0:
        sigma = sums.charged_multiplier / sums.distance
        return float(dp.get_epsilon_gaussian(sigma / math.sqrt(rounds), delta))
    one_round = _one_round(sums.charged_multiplier, sums.sampling_rate, sums.adjacency, grid)
    return float(one_round.self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=16)
def _one_round(sigma: float, rate: float, adjacency: str, grid: float) -> Any:
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma,
        value_discretization_interval=grid,
        sampling_prob=rate,
        neighboring_relation=_RELATIONS[adjacency],
    )


def _renyi_epsilon(runs: Sequence[tuple[SampledSums, int]], delta: float) -> float:
    """Renyi divergences at every order, added over the rounds of all runs of one kind of sampling."""
    whole_only = any(sums.noise == "discrete_gaussian" for sums, _ in runs)
    orders = FIXED_SIZE_ORDERS if runs[0][0].sampling == "fixed_size" else POISSON_ORDERS
    total = np.sum([rounds * np.asarray(_one_round_renyi(sums, orders)) for sums, rounds in runs], axis=0)
    curve = [
        (order, value) for order, value in zip(orders, total, strict=True) if not whole_only or order % 1 == 0
    ]
    epsilon, _ = dp.rdp.compute_epsilon(*zip(*curve, strict=True), delta)
    return float(epsilon)


@lru_cache(maxsize=64)
def _one_round_renyi(sums: SampledSums, orders: tuple[float, ...]) -> tuple[float, ...]:
    """One round's divergences, which dp-accounting would compute anew for every round."""
    fixed = sums.sampling == "fixed_size"
    relation = dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.REPLACE_SPECIAL
    accountant = dp.rdp.RdpAccountant(orders, neighboring_relation=relation)
    accountant.compose(_event(sums))
    return tuple(float(value) for value in accountant._rdp)


def _event(sums: SampledSums) -> Any:
    if sums.sampling == "poisson":
        return dp.PoissonSampledDpEvent(sums.sampling_rate, dp.GaussianDpEvent(sums.noise_multiplier))
    cohort = round(sums.sampling_rate * sums.group_size)
    # Where a client is not drawn another stands in, so that even zero_out moves the sum by 2 C.
    moved = sums.distance if cohort == sums.group_size else 2.0
    return dp.SampledWithoutReplacementDpEvent(
        sums.group_size, cohort, dp.GaussianDpEvent(sums.noise_multiplier / moved)
    )
