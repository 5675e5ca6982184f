"""Several trainings together: at least what each costs, at most what adding them up costs."""

import math

import pytest

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.composition import (
    Charge,
    NoisedSums,
    composed_epsilon,
    composed_epsilon_against_server,
)
from gdpfed.privacy.accountants.server_view import epsilon_against_server
from gdpfed.privacy.events import SampledGaussian

DELTA = 1e-4


def mechanism(sigma=1.5, rate=0.1, *, sampling="poisson", adjacency="zero_out"):
    return SampledGaussian(
        sampling=sampling,
        sampling_rate=rate,
        group_size=100,
        noise_stddev=2 * sigma,
        clipping_norm=2.0,
        adjacency=adjacency,
    )


def test_nothing_costs_nothing_and_no_noise_everything():
    assert composed_epsilon([], DELTA) == 0.0
    assert composed_epsilon([Charge(mechanism(sigma=0), 1)], DELTA) == math.inf
    assert composed_epsilon([Charge(mechanism(), 5), Charge(mechanism(sigma=0), 1)], DELTA) == math.inf


def test_one_training_has_the_least_figure_that_covers_it():
    pld = make_accountant("pld").epsilon(mechanism(), 50, DELTA)
    assert composed_epsilon([Charge(mechanism(), 50)], DELTA) == pld
    assert pld < make_accountant("rdp").epsilon(mechanism(), 50, DELTA)
    fixed = mechanism(4.0, sampling="fixed_size")
    rdp = make_accountant("rdp").epsilon(fixed, 50, DELTA)
    assert composed_epsilon([Charge(fixed, 50)], DELTA) == rdp


def test_a_training_in_two_parts_costs_what_it_costs_in_one():
    parts = [Charge(mechanism(), 20), Charge(mechanism(), 30)]
    whole = make_accountant("rdp").epsilon(mechanism(), 50, DELTA)
    assert composed_epsilon(parts, DELTA) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(
    "second",
    [
        Charge(mechanism(3.0, 0.3), 10),
        Charge(mechanism(6.0, sampling="fixed_size"), 10),
        Charge(mechanism(), 10, "discrete_gaussian"),
        Charge(mechanism(3.0, 1.0), 3),
    ],
)
def test_two_trainings_cost_more_than_each_and_less_than_both_added_up(second):
    first = Charge(mechanism(), 50)
    alone = [composed_epsilon([each], DELTA) for each in (first, second)]
    together = composed_epsilon([first, second], DELTA)
    # The Renyi sum alone is up to a quarter above the loss distribution of one training.
    assert max(alone) < together < 1.25 * sum(alone)
    assert composed_epsilon([second, first], DELTA) == pytest.approx(together, rel=1e-12)
    assert composed_epsilon([first, second, second], DELTA) > together


def test_poisson_under_replace_one_is_accounted_alone_only():
    strict = Charge(mechanism(4.0, adjacency="replace_one"), 10)
    assert 0 < composed_epsilon([strict], DELTA) < math.inf
    with pytest.raises(PrivacyError, match="no bound for poisson sampling under replace_one"):
        composed_epsilon([strict, strict], DELTA)


def test_against_the_server_sums_of_two_trainings_are_one_gaussian():
    sums = [NoisedSums(mechanism(1.5), 3), NoisedSums(mechanism(3.0), 4), NoisedSums(mechanism(9.0), 0)]
    sigma = (3 / 1.5**2 + 4 / 3.0**2) ** -0.5
    assert composed_epsilon_against_server(sums, DELTA) == pytest.approx(
        epsilon_against_server(sigma, 1, DELTA)
    )
    assert composed_epsilon_against_server([], DELTA) == 0.0
    assert composed_epsilon_against_server([NoisedSums(mechanism(0), 1)], DELTA) == math.inf
    doubled = [NoisedSums(mechanism(3.0, adjacency="replace_one"), 4)]
    assert composed_epsilon_against_server(doubled, DELTA) == pytest.approx(
        epsilon_against_server(1.5, 4, DELTA)
    )


def test_discrete_noise_costs_a_hair_more():
    exact = composed_epsilon_against_server([NoisedSums(mechanism(), 3)], DELTA)
    discrete = composed_epsilon_against_server([NoisedSums(mechanism(), 3, "discrete_gaussian")], DELTA)
    assert exact < discrete < exact * (1 + 1e-3)
