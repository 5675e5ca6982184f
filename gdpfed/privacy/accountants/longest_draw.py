"""Checks that continuous noise is large enough for the draws that make it, which have a largest value.

A Gaussian draw of `gdpfed.learning.training.secret_draws` takes the logarithm of a number of 75 random bits,
so none is longer than sqrt(2 75 ln 2) = 10.2 standard deviations. A sum that lies further than that from what
it is without a unit shows the unit, whatever epsilon is. A unit that moves the sum by x standard deviations
does this with a probability of Q(10.2 - x), where Q is the upper tail of the normal distribution: 4e-18 at
x = 1.6, and 1e-7 at x = 5. Discrete noise is cut where `gdpfed.privacy.accountants.discrete` accounts for it.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from gdpfed.errors import PrivacyError
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import (
    DPSGDSteps,
    Event,
    Gaussian,
    GaussianMixture,
    LocalWindows,
    SampledGaussian,
)

LONGEST_DRAW = math.sqrt(2 * 75 * math.log(2))
"""Of a Gaussian draw, in standard deviations."""
SHARE_OF_DELTA = 1e-2
MOST_EPSILON = 30.0
"""A larger epsilon is stated without regard to the longest draw: it allows odds of more than 10^13 to 1."""


def require_drawable(charges: Iterable[Charge], delta: float, epsilon: float) -> None:
    """Raise PrivacyError if sums beyond the longest draw show a unit with more than a hundredth of delta.

    `charges`: of one unit. `delta`: at which `epsilon` is promised; one above `MOST_EPSILON` is not checked.
    """
    chance = math.fsum(charge.count * _chance_beyond(charge.event) for charge in charges)
    if epsilon <= MOST_EPSILON and chance > SHARE_OF_DELTA * delta:
        raise PrivacyError(
            f"noise this weak would show who takes part with probability {chance:.2g}, more than a hundredth "
            f"of delta {delta:g}, since no draw is longer than {LONGEST_DRAW:.1f} standard deviations: "
            "choose smaller budgets (epsilon), more rounds or a larger privacy.delta"
        )


def _chance_beyond(event: Event) -> float:
    """Return the expected number of sums beyond the longest draw in one event with a unit; 0 if discrete."""
    if event.law != "gaussian" or not event.is_noisy:
        return 0.0
    if isinstance(event, LocalWindows):
        return event.num_windows * _chance_beyond(event.mixture)
    if isinstance(event, GaussianMixture):
        moves = zip(event.sensitivities, event.weights, strict=True)
        return math.fsum(weight * _beyond(each / event.noise_stddev) for each, weight in moves)
    if isinstance(event, DPSGDSteps):
        return event.num_releases * event.batch_rate * _beyond(1 / event.noise_multiplier)
    if isinstance(event, Gaussian):
        # In units of how far a unit moves the sum, whatever the adjacency.
        return _beyond(1 / event.noise_multiplier)
    if isinstance(event, AllocatedGaussian):
        # A unit is in one of the block's sums.
        return _chance_beyond(event.for_members())
    if isinstance(event, SampledGaussian):
        one = replace(event, num_sums=1).for_members()
        return event.num_sums * event.sampling_rate * _chance_beyond(one)
    raise TypeError(f"{type(event).__name__} does not say how far a unit moves its sums")


def _beyond(move: float) -> float:
    return math.erfc((LONGEST_DRAW - move) / math.sqrt(2)) / 2
