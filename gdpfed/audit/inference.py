"""Compute bounds on membership inference: an attacker's best true positive rate and best accuracy.

Of Gaussians exactly, of other sums by dp-accounting's privacy losses, of sampling without replacement by
Renyi divergences. docs/privacy.md has the formulas.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import stats

from gdpfed.audit.accounting import (
    DISCRETE_DELTA,
    FIXED_SIZE_ORDERS,
    GRIDS,
    Charges,
    SampledSums,
    losses_of,
    renyi_curve_of,
)

FPR = 0.01
# Losses beyond ln(1 / FPR) bound nothing below 1.
EPSILONS = np.linspace(0.0, -math.log(FPR), 201)
FALSE_POSITIVE_RATES = np.linspace(0.0, 1.0, 501)
HALVINGS = 40

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Inference:
    """Bounds on a membership attack: true positive rate at false positive rate `FPR`, accuracy at even odds.

    `within`: how far apart two computations of either may be, each a bound of its own grid.
    """

    positives: float
    accuracy: float
    within: float = 0.0


NOTHING_TOLD = Inference(FPR, 0.5)


def inference_of(releases: Charges) -> Inference:
    """Bound membership inference from releases whose noise and number were fixed in advance."""
    taken = tuple((sums, count) for sums, count in releases if count)
    return _inference_of(taken) if taken else NOTHING_TOLD


@lru_cache(maxsize=1024)
def _inference_of(taken: tuple[tuple[SampledSums, int], ...]) -> Inference:
    """Bound membership inference from at least one release; results are cached."""
    if any(sums.noise_multiplier == 0.0 for sums, _ in taken):
        return Inference(1.0, 1.0)
    slack = DISCRETE_DELTA if any(sums.noise == "discrete_gaussian" for sums, _ in taken) else 0.0
    if any(sums.sampling == "fixed_size" for sums, _ in taken):
        curve = [(order, value) for order, value in renyi_curve_of(taken, FIXED_SIZE_ORDERS) if order > 1]
        rates = np.append(FALSE_POSITIVE_RATES, FPR)
        most = np.min([_most_positives(order, value, rates) for order, value in curve], axis=0)
        # Between two rates the difference is at most that of their corners.
        variation = float((most[1:-1] - FALSE_POSITIVE_RATES[:-1]).max())
        return _within_one(float(most[-1]) + slack, (1 + variation + slack) / 2, 0.01)
    if all(sums.sampling_rate == 1.0 and not sums.bound for sums, _ in taken):
        moved = math.fsum(count * (sums.distance / sums.charged_multiplier) ** 2 for sums, count in taken)
        return inference_of_gaussian(math.sqrt(moved), slack)
    deltas = np.asarray(losses_of(taken, GRIDS[0]).get_delta_for_epsilon(EPSILONS)) + slack
    positives = np.minimum(np.exp(EPSILONS) * FPR + deltas, 1 - np.exp(-EPSILONS) * (1 - deltas - FPR))
    return _within_one(float(positives.min()), (1 + float(deltas[0])) / 2, 0.002)


def inference_of_gaussian(mu: float, slack: float = 0.0) -> Inference:
    """Bound membership inference from one Gaussian release, whose mean a member moves by mu stddevs."""
    positives = float(stats.norm.cdf(stats.norm.ppf(FPR) + mu)) + slack
    return _within_one(positives, float(stats.norm.cdf(mu / 2)) + slack / 2, 1e-6)


def _most_positives(order: float, divergence: float, rates: Floats) -> Floats:
    """Find for each false positive rate the largest true positive rate that a Renyi divergence allows.

    For rate a, order o and divergence D it is the largest p with p^o a^(1-o) + (1-p)^o (1-a)^(1-o) <=
    e^((o-1) D).
    """
    low, high = rates.copy(), np.ones_like(rates)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_rate, of_rest = (1 - order) * np.log(rates), (1 - order) * np.log1p(-rates)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            sides = order * np.log(middle) + of_rate, order * np.log1p(-middle) + of_rest
            allowed = np.logaddexp(*sides) <= (order - 1) * divergence
            low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return high


def _within_one(positives: float, accuracy: float, within: float) -> Inference:
    return Inference(min(1.0, max(FPR, positives)), min(1.0, max(0.5, accuracy)), within)
