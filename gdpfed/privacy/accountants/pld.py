"""Epsilon of events by their privacy loss distributions.

Every figure is an upper bound. Under zero_out a unit that is drawn with probability q moves a sum by C or not
at all; under replace_one by C in one run and by -C in the other. Both have the noise multiplier std / C.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, reduce

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


def pld_epsilon(event: Event, count: int, delta: float, *, coarseness: float = 1.0) -> float:
    """Return epsilon at delta of `count` releases of one event.

    A `coarseness` above one widens the grid of losses by that factor, which is faster and looser: good for
    a first search, as calibration does.

    Raises PrivacyError for fixed_size sampling, which has no such bound.
    """
    sigma = sigma_without_sampling(event)
    if sigma is not None:
        return gaussian_epsilon(sigma / math.sqrt(count), delta)
    mixture, times = _mixture_of(event)
    if mixture is not None:
        interval = coarseness * max(_mixture_interval_bounds(mixture))
        return _mixture_epsilon(mixture, interval, count * times, delta)
    sigma, rate, adjacency, steps = poisson_step(event)
    interval = coarseness * _discretization_interval(sigma, rate)
    return _self_composed_epsilon(sigma, rate, adjacency, interval, count * steps, delta)


def composed_pld_epsilon(releases: Sequence[tuple[Event, int]], delta: float) -> float:
    """Return epsilon at delta of several events, each so many times, in any order fixed beforehand.

    All of them are put on one grid: the finest that one of them asks for and that all of them can afford.
    """
    mu = gaussian_parameter(releases)
    if mu is not None:
        return gaussian_epsilon(1 / mu, delta)
    return _composed(releases).epsilon(delta)


def pld_deltas(
    releases: Sequence[tuple[Event, int]], epsilons: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return delta at every epsilon of several events, each so many times, of the larger direction.

    What was composed for an epsilon is not composed again.

    Raises PrivacyError for fixed_size sampling, which has no such bound.
    """
    if len(releases) == 1 and _mixture_of(releases[0][0])[0] is None:
        event, count = releases[0]
        sigma, rate, adjacency, steps = poisson_step(event)
        composed = _self_composed(
            sigma, rate, adjacency, _discretization_interval(sigma, rate), count * steps
        )
    else:
        composed = _composed(releases)
    return composed.delta(epsilons)


def gaussian_parameter(releases: Sequence[tuple[Event, int]]) -> float | None:
    """Return mu of releases that everybody is part of: they are one Gaussian; None where any is sampled."""
    sigmas = [(sigma_without_sampling(event), count) for event, count in releases]
    known = [count / sigma**2 for sigma, count in sigmas if sigma is not None]
    return math.sqrt(math.fsum(known)) if len(known) == len(sigmas) else None


def _composed(releases: Sequence[tuple[Event, int]]) -> BothLosses:
    wishes, least = zip(*(_bounds_of(event) for event, _ in releases), strict=True)
    interval = max(min(wishes), *least)
    parts = (_one_release(event, interval, count) for event, count in releases)
    return reduce(lambda left, right: left.with_losses(right), parts)


def sigma_without_sampling(event: Event) -> float | None:
    """The noise over the distance of neighbours, of a release that everybody is part of; None for others."""
    if isinstance(event, Gaussian):
        return event.noise_multiplier
    if isinstance(event, SampledGaussian) and event.sampling == "poisson" and event.sampling_rate == 1.0:
        return event.noise_multiplier / (1.0 if event.adjacency == "zero_out" else 2.0)
    if isinstance(event, DPSGDSteps) and event.batch_rate == 1.0:
        return event.noise_multiplier / math.sqrt(event.num_steps)
    return None


def poisson_step(event: Event) -> tuple[float, float, Adjacency, int]:
    """Multiplier, rate, adjacency, and how many such steps one release is."""
    if isinstance(event, DPSGDSteps):
        return event.noise_multiplier, event.batch_rate, "zero_out", event.num_steps
    if isinstance(event, SampledGaussian) and event.sampling == "poisson":
        return event.noise_multiplier, event.sampling_rate, event.adjacency, 1
    raise PrivacyError(
        "the pld accountant has no bound for fixed_size sampling; use the rdp accountant, or poisson sampling"
    )


def _mixture_of(event: Event) -> tuple[GaussianMixture | None, int]:
    """The mixture that one release of an event is made of, and how many of it; None for other events."""
    if isinstance(event, LocalWindows):
        return event.mixture, event.num_windows
    return (event, 1) if isinstance(event, GaussianMixture) else (None, 0)


def _bounds_of(event: Event) -> tuple[float, float]:
    """The grid of losses that an event asks for, and the least that it can afford."""
    mixture, _ = _mixture_of(event)
    if mixture is not None:
        return _mixture_interval_bounds(mixture)
    sigma = sigma_without_sampling(event)
    if sigma is not None:
        return _interval_bounds(sigma, 1.0)
    multiplier, rate, _, _ = poisson_step(event)
    return _interval_bounds(multiplier, rate)


def _one_release(event: Event, interval: float, count: int) -> BothLosses:
    mixture, times = _mixture_of(event)
    if mixture is not None:
        return _one_mixture(mixture, interval).repeated(count * times)
    sigma = sigma_without_sampling(event)
    if sigma is not None:
        return _one_step(sigma, 1.0, "zero_out", interval).repeated(count)
    sigma, rate, adjacency, steps = poisson_step(event)
    return _one_step(sigma, rate, adjacency, interval).repeated(count * steps)


@lru_cache(maxsize=4096)
def _mixture_epsilon(mixture: GaussianMixture, interval: float, count: int, delta: float) -> float:
    return _one_mixture(mixture, interval).repeated(count).epsilon(delta)


@lru_cache(maxsize=64)
def _one_mixture(mixture: GaussianMixture, interval: float) -> BothLosses:
    return losses_of_mixture(mixture.noise_stddev, mixture.sensitivities, mixture.weights, interval)


@lru_cache(maxsize=4096)
def _self_composed_epsilon(
    sigma: float, rate: float, adjacency: Adjacency, interval: float, num_steps: int, delta: float
) -> float:
    return _self_composed(sigma, rate, adjacency, interval, num_steps).epsilon(delta)


@lru_cache(maxsize=16)
def _self_composed(
    sigma: float, rate: float, adjacency: Adjacency, interval: float, num_steps: int
) -> BothLosses:
    return _one_step(sigma, rate, adjacency, interval).repeated(num_steps)


@lru_cache(maxsize=64)
def _one_step(sigma: float, rate: float, adjacency: Adjacency, interval: float) -> BothLosses:
    if adjacency == "replace_one":
        return losses_of_replacing(sigma, rate, interval)
    return losses_of_mixture(sigma, (0.0, 1.0), (1 - rate, rate), interval)


def _discretization_interval(sigma: float, rate: float) -> float:
    wish, least = _interval_bounds(sigma, rate)
    return max(wish, least)


def _interval_bounds(sigma: float, rate: float) -> tuple[float, float]:
    """Return a step h of the loss grid that loosens epsilon by about 2e-4 of itself, and the least in time.

    Rounding is pessimistic, so no step can tighten it. It adds about h^2 / 8 to a step's
    variance chi^2 = q^2 (exp(1/sigma^2) - 1), and so h^2 / (16 chi^2) to epsilon, relatively:
    h = chi / 20. In units of the largest loss that is seen (ten standard deviations of noise), h
    is kept between 1/40,000, for time, and 1/20,000 or 1e-3, as rare large losses dominate chi.
    """
    chi = rate * math.sqrt(math.expm1(min(sigma**-2, 50.0)))
    exponent = 10 / sigma
    largest_loss = math.log1p(rate * math.expm1(exponent)) if exponent < 500 else exponent
    return _from_losses(chi / 20, largest_loss)


def _mixture_interval_bounds(mixture: GaussianMixture) -> tuple[float, float]:
    """As `_interval_bounds`, with chi^2 = sum_kl w_k w_l (exp(s_k s_l / sigma^2) - 1).

    A mixture has more parts than a sampled Gaussian, so h = chi / 12, which is 4e-4 of epsilon, and at most
    3e-3 where losses are small.
    """
    parts = [
        (move / mixture.noise_stddev, weight)
        for move, weight in zip(mixture.sensitivities, mixture.weights, strict=True)
        if move > 0 and weight > 0
    ]
    if not parts:
        return 1.0, 1.0
    square = math.fsum(
        own * other * math.expm1(min(move * further, 50.0)) for move, own in parts for further, other in parts
    )
    largest = max(math.log1p(weight * math.expm1(min(10 * move, 500.0))) for move, weight in parts)
    return _from_losses(math.sqrt(square) / 12, largest, 3e-3)


def _from_losses(wish: float, largest_loss: float, most: float = 1e-3) -> tuple[float, float]:
    return min(wish, max(most, largest_loss / 20_000)), largest_loss / 40_000
