"""Tests of privacy loss distributions, against those of dp-accounting and against numerical integrals."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as library
from scipy import stats

from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.accountants.losses import Losses, losses_of_mixture, losses_of_replacing
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps

DELTAS = (1e-3, 1e-5, 1e-8)


def agrees(ours, theirs, count=1):
    """Check that our privacy losses agree with dp-accounting's, up to the rounding of `count` releases."""
    lost = count * 2.0**-52
    for delta in DELTAS:
        least, most = (theirs.get_epsilon_for_delta(delta - each) for each in (0.0, lost))
        assert least * (1 - 3e-7) - 1e-9 <= ours.epsilon(delta) <= most * (1 + 3e-7) + 1e-9
    epsilons = np.linspace(0, theirs.get_epsilon_for_delta(DELTAS[-1]), 7)
    np.testing.assert_allclose(
        ours.delta(epsilons), theirs.get_delta_for_epsilon(epsilons), rtol=1e-4, atol=1e-13 + lost
    )


@pytest.mark.parametrize(
    ("sigma", "rate", "count", "interval"),
    [
        (1.0, 0.02, 50, 1e-3),
        (4.0, 0.1, 100, 1e-3),
        (0.3, 0.5, 10, 5e-3),
        (0.1, 0.01, 2, 2e-2),
        (20.0, 1e-3, 2000, 1e-5),
        (1.0, 1.0, 3, 5e-3),
        (1.5, 1e-7, 1, 1e-5),
    ],
)
def test_sampled_gaussians_agree_with_the_library(sigma, rate, count, interval):
    common = {"sampling_prob": rate, "value_discretization_interval": interval}
    ours = losses_of_mixture(sigma, (0.0, 1.0), (1 - rate, rate), interval).repeated(count)
    agrees(ours, library.from_gaussian_mechanism(sigma, **common).self_compose(count), count)
    replaced = NeighboringRelation.REPLACE_ONE
    theirs = library.from_gaussian_mechanism(sigma, **common, neighboring_relation=replaced)
    agrees(losses_of_replacing(sigma, rate, interval).repeated(count), theirs.self_compose(count), count)


@pytest.mark.parametrize(
    ("steps", "rate", "sigma", "count", "interval"), [(5, 0.05, 1.5, 20, 4e-3), (3, 0.3, 0.5, 2, 3e-2)]
)
def test_mixtures_agree_with_the_library(steps, rate, sigma, count, interval):
    moves = np.arange(steps + 1.0)
    weights = stats.binom.pmf(moves, steps, rate)
    weights /= weights.sum()
    theirs = library.from_mixture_gaussian_mechanism(
        sigma, moves.tolist(), weights.tolist(), value_discretization_interval=interval
    )
    agrees(
        losses_of_mixture(sigma, moves.tolist(), weights.tolist(), interval).repeated(count),
        theirs.self_compose(count),
    )


def test_different_releases_together_agree_with_the_library():
    rates, sigmas, interval = (0.1, 1.0), (1.0, 3.0), 2e-3
    ours = [
        losses_of_mixture(sigma, (0.0, 1.0), (1 - rate, rate), interval)
        for sigma, rate in zip(sigmas, rates, strict=True)
    ]
    theirs = [
        library.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=interval)
        for sigma, rate in zip(sigmas, rates, strict=True)
    ]
    agrees(ours[0].with_losses(ours[1]), theirs[0].compose(theirs[1]))
    alone = losses_of_replacing(2.0, 0.3, interval)
    both = alone.with_losses(ours[0])
    agrees_alone = [alone.directions[0].with_losses(each) for each in ours[0].directions]
    assert both.epsilon(1e-5) == max(each.epsilon(1e-5) for each in agrees_alone)


def test_a_mixture_is_what_the_integral_says():
    """The computed delta of a Gaussian mixture agrees with a numerical integration of delta's definition."""
    sigma, moves, weights = 0.8, (0.0, 0.4, 1.0), (0.7, 0.2, 0.1)
    x = np.linspace(-12, 13, 400_001)
    still = stats.norm.pdf(x, scale=sigma)
    moved = sum(w * stats.norm.pdf(x, loc=s, scale=sigma) for s, w in zip(moves, weights, strict=True))
    ours = losses_of_mixture(sigma, moves, weights, 1e-4)
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
    for direction, (upper, lower) in zip(ours.directions, [(moved, still), (still, moved)], strict=True):
        exact = [np.trapezoid(np.maximum(upper - math.exp(epsilon) * lower, 0), x) for epsilon in epsilons]
        found = direction.delta(epsilons)
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-9)
        assert np.all(found >= np.asarray(exact) - 1e-9)


@pytest.mark.parametrize("sigma", [0.02, 1e3])
def test_extreme_noise_makes_no_warning(sigma):
    interval = 1.0 if sigma < 1 else 1e-6
    for losses in (
        losses_of_mixture(sigma, (0.0, 1.0), (0.9, 0.1), interval),
        losses_of_replacing(sigma, 0.1, interval),
    ):
        assert 0 <= losses.repeated(2).epsilon(1e-6) < 1e4
        assert losses.repeated(2).delta(np.array([0.0, 1.0])).shape == (2,)


def test_noise_far_above_every_move_ends_too():
    """Where the noise is far above every sensitivity, the computation ends and epsilon is near zero."""
    losses = losses_of_mixture(1e9, (0.0, 1.0, 2.0), (0.8, 0.1, 0.1), 1e-12)
    assert 0 <= losses.epsilon(1e-6) < 1e-6


def test_without_a_move_nothing_is_lost():
    assert losses_of_mixture(1.0, (0.0, 2.0), (1.0, 0.0), 1e-3).repeated(5).epsilon(1e-9) < 1e-12


def test_an_infinite_loss_above_delta_has_no_epsilon():
    losses = Losses(1e-2, -1, np.array([0.4, 0.3, 0.2]), 0.1)
    assert losses.epsilon(0.05) == math.inf
    # delta(0) = 0.1 + 0.2 (1 - e^-0.01).
    assert losses.epsilon(0.1 + 0.2 * -math.expm1(-0.01) + 1e-12) == 0.0
    assert losses.delta(np.array([0.0, 1.0])) == pytest.approx([0.1 + 0.2 * -math.expm1(-0.01), 0.1])


def test_rounding_in_many_releases_never_makes_epsilon_too_small():
    """Rounding in four million steps does not put epsilon below that of an equivalent Gaussian release."""
    count, mu = 4 * 10**6, 0.5
    event = DPSGDSteps(batch_rate=1 - 1e-15, noise_multiplier=math.sqrt(count) / mu, num_steps=count)
    found = compose([Charge(event=event, count=1, unit="record")], 1e-12, schedule="fixed")
    assert found.epsilon >= gaussian_epsilon(1 / mu, 1e-12) * (1 - 1e-4)
