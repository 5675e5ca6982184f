"""Tests of the epsilon estimates that searches use: they are within 0.1 % of dp-accounting's bounds."""

import pytest

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.estimate import estimate_by, estimated_epsilon
from gdpfed.privacy.accountants.pld import pld_epsilon
from gdpfed.privacy.events import DPSGDSteps, SampledGaussian


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(
    ("sigma", "rate", "count", "delta"),
    [
        (0.3, 0.0065, 30, 1e-5),
        (0.7, 0.0065, 1000, 1e-5),
        (1.4, 0.3, 3, 1e-3),
        (4.0, 0.05, 30, 1e-5),
        (20.0, 0.9, 1000, 1e-5),
    ],
)
def test_it_is_the_bound_within_a_thousandth(adjacency, sigma, rate, count, delta):
    event = SampledGaussian(
        sampling="poisson",
        sampling_rate=rate,
        group_size=100,
        noise_stddev=sigma,
        clipping_norm=1.0,
        adjacency=adjacency,
    )
    assert estimated_epsilon(event, count, delta) == pytest.approx(pld_epsilon(event, count, delta), rel=1e-3)


@pytest.mark.parametrize(("batch_rate", "num_steps"), [(0.02, 600), (1.0, 3)])
def test_steps_of_one_release_count_each(batch_rate, num_steps):
    event = DPSGDSteps(batch_rate=batch_rate, noise_multiplier=2.0, num_steps=num_steps)
    assert estimated_epsilon(event, 2, 1e-5) == pytest.approx(pld_epsilon(event, 2, 1e-5), rel=1e-3)


def test_what_is_within_delta_by_itself_costs_nothing():
    event = DPSGDSteps(batch_rate=1e-4, noise_multiplier=1.0, num_steps=1)
    assert estimated_epsilon(event, 1, 1e-3) == 0.0


def test_only_the_slow_accountant_is_replaced():
    rdp = make_accountant("rdp")
    assert estimate_by(rdp) == rdp.epsilon
    assert estimate_by(make_accountant("pld")) is estimated_epsilon


def test_fixed_size_sampling_has_no_estimate():
    event = SampledGaussian(
        sampling="fixed_size", sampling_rate=0.1, group_size=100, noise_stddev=1.0, clipping_norm=1.0
    )
    with pytest.raises(PrivacyError, match="fixed_size"):
        estimated_epsilon(event, 1, 1e-5)


@pytest.mark.parametrize(("sigma", "delta"), [(0.0233, 0.065), (0.0233, 0.03), (0.0233, 1e-3)])
def test_noise_that_is_a_small_part_of_an_update_has_an_estimate(sigma, delta):
    event = SampledGaussian(
        sampling="poisson", sampling_rate=0.0369, group_size=4, noise_stddev=sigma, clipping_norm=1.0
    )
    assert estimated_epsilon(event, 1, delta) == pytest.approx(pld_epsilon(event, 1, delta), rel=5e-3)
