"""Epsilon of events, computed from their privacy loss distributions.

Every figure is an upper bound. Under zero_out a unit that is drawn with probability q moves a sum by C or not
at all; under replace_one by C in one run and by -C in the other. Both have the noise multiplier std / C.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce, singledispatch
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.accountants.losses import BothLosses, losses_of_mixture, losses_of_replacing
from gdpfed.privacy.events import (
    Adjacency,
    DPSGDSteps,
    Event,
    Gaussian,
    GaussianMixture,
    LocalWindows,
    SampledGaussian,
)


@dataclass(frozen=True)
class Step:
    """One Gaussian release: its noise multiplier, sampling rate and adjacency.

    At rate 1 the unit is known to be part of it.
    """

    sigma: float
    rate: float = 1.0
    adjacency: Adjacency = "zero_out"


class OwnLosses(ABC):
    """Base class of releases that compute their own privacy loss distribution."""

    @abstractmethod
    def interval_bounds(self) -> tuple[float, float]:
        """Return two step sizes of the privacy loss grid: an accurate one, and a lower limit for speed."""

    @abstractmethod
    def losses(self, interval: float) -> BothLosses:
        """Return the discretised privacy loss distribution, rounded so that epsilon is never too small."""


OneRelease = Step | GaussianMixture | OwnLosses


@singledispatch
def releases_of(event: Event) -> tuple[OneRelease, int]:
    """Return the single release that an event consists of, and how many times the event repeats it.

    Raises PrivacyError for an event that has no bound by losses.
    """
    raise PrivacyError(f"the pld accountant has no bound for {event.kind}; use the rdp accountant")


@releases_of.register
def _(event: Gaussian) -> tuple[Step, int]:
    return Step(event.noise_multiplier), 1


@releases_of.register
def _(event: SampledGaussian) -> tuple[Step, int]:
    if event.sampling != "poisson":
        raise PrivacyError(
            "the pld accountant has no bound for fixed_size sampling; use the rdp accountant, or poisson "
            "sampling"
        )
    if event.sampling_rate == 1.0:
        return Step(event.for_members().noise_multiplier), 1
    return Step(event.noise_multiplier, event.sampling_rate, event.adjacency), 1


@releases_of.register
def _(event: DPSGDSteps) -> tuple[Step, int]:
    return Step(event.noise_multiplier, event.batch_rate), event.num_releases


@releases_of.register
def _(event: GaussianMixture) -> tuple[GaussianMixture, int]:
    return event, 1


@releases_of.register
def _(event: LocalWindows) -> tuple[GaussianMixture, int]:
    return event.mixture, event.num_windows


def is_known(release: OneRelease) -> TypeGuard[Step]:
    """Whether a release contains the client or record with certainty, so that its epsilon is exact."""
    return isinstance(release, Step) and release.rate == 1.0


def has_losses(event: Event) -> bool:
    """Whether epsilon of an event can be bounded by privacy loss distributions."""
    try:
        releases_of(event)
    except PrivacyError:
        return False
    return True


def pld_epsilon(event: Event, count: int, delta: float, *, coarseness: float = 1.0) -> float:
    """Return epsilon at delta of `count` releases of one event.

    A `coarseness` above one widens the grid of losses by that factor, which is faster and looser: good for a
    first search, as calibration does. Raises PrivacyError for fixed_size sampling, which has no such bound.
    """
    release, times = releases_of(event)
    if is_known(release):
        return gaussian_epsilon(release.sigma / math.sqrt(count * times), delta)
    interval = coarseness * max(_interval_bounds(release))
    return _self_composed_epsilon(release, interval, count * times, delta)


def composed_pld_epsilon(releases: Sequence[tuple[Event, int]], delta: float) -> float:
    """Return epsilon at delta of several events, each repeated, in an order that was fixed in advance.

    All of them are put on one grid: the finest that one of them asks for and that all of them can afford.
    """
    mu = gaussian_parameter(releases)
    if mu is not None:
        return gaussian_epsilon(1 / mu, delta)
    return _composed(releases).epsilon(delta)


def pld_deltas(
    releases: Sequence[tuple[Event, int]], epsilons: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return, for each epsilon of an array, the delta of all these repeated events together.

    What was composed for an epsilon is not composed again. Raises PrivacyError for fixed_size sampling, which
    has no such bound.
    """
    if len(releases) > 1:
        return _composed(releases).delta(epsilons)
    ((event, count),) = releases
    release, times = releases_of(event)
    return _self_composed(release, max(_interval_bounds(release)), count * times).delta(epsilons)


def gaussian_parameter(releases: Sequence[tuple[Event, int]]) -> float | None:
    """Return the Gaussian DP parameter mu of all releases together; None if any of them is sampled."""
    precisions = []
    for event, count in releases:
        release, times = releases_of(event)
        if not is_known(release):
            return None
        precisions.append(count * times / release.sigma**2)
    return math.sqrt(math.fsum(precisions))


def _composed(releases: Sequence[tuple[Event, int]]) -> BothLosses:
    parts = [(*releases_of(event), count) for event, count in releases]
    wishes, least = zip(*(_interval_bounds(release) for release, _, _ in parts), strict=True)
    interval = max(min(wishes), *least)
    composed = (_losses(release, interval).repeated(count * times) for release, times, count in parts)
    return reduce(lambda left, right: left.with_losses(right), composed)


@lru_cache(maxsize=4096)
def _self_composed_epsilon(release: OneRelease, interval: float, count: int, delta: float) -> float:
    return _self_composed(release, interval, count).epsilon(delta)


@lru_cache(maxsize=16)
def _self_composed(release: OneRelease, interval: float, count: int) -> BothLosses:
    return _losses(release, interval).repeated(count)


@lru_cache(maxsize=128)
def _losses(release: OneRelease, interval: float) -> BothLosses:
    """Return the discretised privacy loss distribution of one release."""
    if isinstance(release, OwnLosses):
        return release.losses(interval)
    if isinstance(release, GaussianMixture):
        return losses_of_mixture(release.noise_stddev, release.sensitivities, release.weights, interval)
    if release.adjacency == "replace_one":
        return losses_of_replacing(release.sigma, release.rate, interval)
    return losses_of_mixture(release.sigma, (0.0, 1.0), (1 - release.rate, release.rate), interval)


def _interval_bounds(release: OneRelease) -> tuple[float, float]:
    """Return a privacy loss grid's step that is accurate, and the smallest step that is fast enough."""
    if isinstance(release, OwnLosses):
        return release.interval_bounds()
    if isinstance(release, GaussianMixture):
        parts = [
            (move / release.noise_stddev, weight)
            for move, weight in zip(release.sensitivities, release.weights, strict=True)
            if move > 0 and weight > 0
        ]
        if not parts:
            return 1.0, 1.0
        square = math.fsum(
            own * other * math.expm1(min(move * further, 50.0))
            for move, own in parts
            for further, other in parts
        )
        largest = max(math.log1p(weight * math.expm1(min(10 * move, 500.0))) for move, weight in parts)
        # A mixture has more parts than a sampled Gaussian, so h = chi / 12, which is 4e-4 of epsilon, and at
        # most 3e-3 where losses are small.
        return interval_bounds_of_losses(math.sqrt(square) / 12, largest, 3e-3)
    # Rounding is pessimistic, so no step h can tighten it. It adds about h^2 / 8 to a step's variance chi^2 =
    # q^2 (exp(1/sigma^2) - 1), and so h^2 / (16 chi^2) to epsilon, relatively: 0.02 % where h = chi / 20.
    # In units of the largest loss that is seen (ten standard deviations of noise), h is kept between
    # 1/40,000, for time, and 1/20,000 or 1e-3, as rare large losses dominate chi.
    chi = release.rate * math.sqrt(math.expm1(min(release.sigma**-2, 50.0)))
    exponent = 10 / release.sigma
    largest_loss = math.log1p(release.rate * math.expm1(exponent)) if exponent < 500 else exponent
    return interval_bounds_of_losses(chi / 20, largest_loss)


def interval_bounds_of_losses(wish: float, largest_loss: float, most: float = 1e-3) -> tuple[float, float]:
    """Return two grid steps: `wish`, reduced to a limit if it is above, and the smallest that is fast enough.

    The limit and the smallest step depend on the largest loss.
    """
    return min(wish, max(most, largest_loss / 20_000)), largest_loss / 40_000
