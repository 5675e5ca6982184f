"""Tests of correlated noise: the cost of a client's turns, which are the rounds in which it sends."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.composition import compose, compose_against_server
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.charges import Charge, charge_from_dict
from gdpfed.privacy.correlated_noise import (
    CorrelatedGaussian,
    best_taps,
    broken_turn,
    check_taps,
    check_turns,
    densest_turns,
    noise_response,
    power_taps,
    prefix_noise,
    sensitivities,
    sensitivity,
)
from gdpfed.privacy.events import Gaussian

TAPS = [(), (0.695,), (0.611, 0.086), (0.5, 0.2, 0.1), (1.0,)]
DELTA = 1e-5


def strategy(taps, rounds):
    """Return the strategy matrix (I - N)^-1; below its diagonal, N has the weights of subtracted noise."""
    return np.linalg.inv(
        np.eye(rounds) - sum(tap * np.eye(rounds, k=-lag) for lag, tap in enumerate(taps, start=1))
    )


def gram(taps, rounds):
    matrix = strategy(taps, rounds)
    return matrix.T @ matrix


def patterns(rounds, most, apart):
    return [
        turns
        for turns in itertools.combinations(range(rounds), most)
        if all(later - turn >= apart for turn, later in itertools.pairwise(turns))
    ]


def random_taps(generator):
    while True:
        taps = np.sort(generator.uniform(0, 0.6, generator.integers(1, 4)))[::-1]
        try:
            check_taps(tuple(taps.tolist()), 10)
        except PrivacyError:
            continue
        return tuple(taps.tolist())


def event(turns=(0, 5), *, norm=1.0, stddev=2.0, taps=(0.6,), rounds=12, adjacency="zero_out"):
    return CorrelatedGaussian(
        noise_stddev=stddev,
        clipping_norm=norm,
        adjacency=adjacency,
        num_rounds=rounds,
        turns=turns,
        taps=taps,
    )


@pytest.mark.parametrize("taps", TAPS)
def test_response_sens_and_prefix_noise_are_those_of_the_matrices(taps):
    rounds = 9
    matrix = strategy(taps, rounds)
    assert noise_response(taps, rounds) == pytest.approx(matrix[:, 0])
    for turns in [(0,), (3,), (8,), (0, 4, 8), (1, 2, 3, 7)]:
        expected = math.sqrt(gram(taps, rounds)[np.ix_(turns, turns)].sum())
        assert sensitivity(taps, turns, rounds) == pytest.approx(expected)
    rows = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix)
    assert prefix_noise(taps, rounds) == pytest.approx(np.linalg.norm(rows[-1]))
    for most in range(1, rounds + 1):
        pattern = densest_turns(most, rounds // most, rounds)
        assert sensitivities(taps, rounds)[most - 1] == pytest.approx(sensitivity(taps, pattern, rounds))


def test_the_earliest_and_densest_turns_cost_most():
    generator = np.random.default_rng(1)
    for _ in range(60):
        taps, rounds = random_taps(generator), 10
        most, apart = int(generator.integers(1, 4)), int(generator.integers(1, 4))
        cost = gram(taps, rounds)
        worst = max(cost[np.ix_(turns, turns)].sum() for turns in patterns(rounds, most, apart))
        assert sensitivity(taps, densest_turns(most, apart, rounds), rounds) ** 2 == pytest.approx(worst)


def test_corrections_that_are_lost_cost_accuracy_and_never_epsilon():
    """If some subtractions of earlier noise are lost at random, a client's privacy cost does not grow."""
    generator, rounds, shares, largest = np.random.default_rng(2), 10, 4, 0.0
    for _ in range(300):
        taps, covariance = random_taps(generator), np.zeros((rounds, rounds))
        kept = generator.choice([0.0, 0.5, 1.0])
        for t in range(rounds):
            for _ in range(shares):
                vector = np.eye(rounds)[t]
                for lag, tap in enumerate(taps, start=1):
                    if t + lag < rounds and generator.random() < kept:
                        vector[t + lag] = -tap
                covariance += np.outer(vector, vector) / shares
        turns = sorted(generator.choice(rounds, 3, replace=False).tolist())
        moved = np.zeros((rounds, 3))
        moved[turns] = generator.normal(size=(3, 3))
        moved[turns] /= np.linalg.norm(moved[turns], axis=1, keepdims=True)
        if generator.random() < 0.5:
            moved[turns] = [1.0, 0.0, 0.0]
        cost = np.trace(moved.T @ np.linalg.solve(covariance, moved))
        largest = max(largest, cost / sensitivity(taps, tuple(turns), rounds) ** 2)
    assert 0.99 < largest <= 1 + 1e-9


@pytest.mark.parametrize("taps", TAPS)
def test_an_event_is_one_gaussian(taps):
    one = event((1, 6, 9), norm=0.5, stddev=3.0, taps=taps)
    mu = 0.5 / 3.0 * sensitivity(taps, (1, 6, 9), 12)
    assert one.noise_multiplier == pytest.approx(1 / mu)
    for name in ("pld", "rdp"):
        plain = Gaussian(noise_stddev=1 / mu, clipping_norm=1.0)
        epsilon = make_accountant(name).epsilon(one, 1, DELTA)
        assert epsilon == pytest.approx(make_accountant(name).epsilon(plain, 1, DELTA))
    assert make_accountant("pld").epsilon(one, 1, DELTA) == pytest.approx(gaussian_epsilon(1 / mu, DELTA))
    twice = event((1, 6, 9), norm=0.5, stddev=3.0, taps=taps, adjacency="replace_one")
    assert twice.noise_multiplier == pytest.approx(one.noise_multiplier / 2)
    assert charge_from_dict(Charge(event=one, count=1).to_dict()) == Charge(event=one, count=1)


def test_runs_add_up_the_squares_of_mu():
    runs = [event((0, 5)), event((2,), norm=0.7), event((0, 4, 8), taps=(0.5, 0.2), stddev=3.0)]
    charges = [Charge(event=each, count=1) for each in runs]
    mu = math.sqrt(sum(each.noise_multiplier**-2 for each in runs))
    assert compose_against_server(charges, DELTA) == pytest.approx(gaussian_epsilon(1 / mu, DELTA))
    pld = make_accountant("pld")
    assert compose(charges, DELTA, schedule="fixed", accountant=pld).epsilon == pytest.approx(
        gaussian_epsilon(1 / mu, DELTA)
    )
    with pytest.raises(PrivacyError, match="theorem1"):
        make_accountant("theorem1").epsilon(runs[0], 1, DELTA)


def test_without_taps_turns_are_gaussians_of_their_own():
    apart = compose_against_server(
        [Charge(event=Gaussian(noise_stddev=2.0, clipping_norm=1.0), count=3)], DELTA
    )
    together = compose_against_server([Charge(event=event((0, 3, 9), taps=()), count=1)], DELTA)
    assert together == pytest.approx(apart)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"turns": ()}, "one or more"),
        ({"turns": (3, 1)}, "in order"),
        ({"turns": (1, 1)}, "each once"),
        ({"turns": (12,)}, "there are 12 rounds"),
        ({"turns": (-1,)}, "at least 0"),
        ({"turns": "01"}, "give a list"),
        ({"taps": (0.2, 0.3)}, "increase"),
        ({"taps": (-0.1,)}, "not negative"),
        ({"taps": (math.inf,)}, "finite"),
        ({"taps": (0.9, 0.9)}, "rises after"),
        ({"taps": (1.1,)}, "rises after"),
        ({"taps": (0.01,) * 17}, "at most 16"),
        ({"taps": (0.01,) * 16, "rounds": 10**6}, "use at most 31250 rounds, or fewer taps"),
    ],
)
def test_odd_events_are_refused(changed, match):
    with pytest.raises(PrivacyError, match=match):
        event(**changed)


def test_discrete_noise_cannot_be_taken_back():
    with pytest.raises(PrivacyError, match="subtracted in parts"):
        CorrelatedGaussian(
            noise_stddev=1.0, clipping_norm=1.0, noise="discrete_gaussian", num_rounds=2, turns=(0,), taps=()
        )


def test_turns_that_do_not_fit_are_refused():
    check_turns(4, 3, 10)
    with pytest.raises(PrivacyError, match="4 turns at least 3 rounds apart do not fit in 9 rounds"):
        check_turns(4, 3, 9)
    for most, apart in [(0, 1), (1, 0)]:
        with pytest.raises(PrivacyError, match="at least 1"):
            check_turns(most, apart, 9)


def test_a_turn_too_many_or_too_close_is_named():
    assert broken_turn(2, 3, [], 0) == broken_turn(2, 3, [1], 4) == ""
    assert "may have 2" in broken_turn(2, 3, [1, 5], 9)
    assert "2 rounds away" in broken_turn(2, 3, [4], 6)
    assert "2 rounds away" in broken_turn(2, 3, [4], 2)
    assert "0 rounds away" in broken_turn(2, 1, [4], 4)


@pytest.mark.parametrize("power", [0.2, 0.5, 0.9])
def test_one_tap_costs_what_its_geometric_series_says(power):
    """With one tap (weight of subtracted noise), sensitivity and noise are those of a geometric series."""
    (tap,), rounds = power_taps(power, 1), 30
    assert sensitivity((tap,), (0,), rounds) ** 2 == pytest.approx(
        (1 - power ** (2 * rounds)) / (1 - power**2)
    )
    assert prefix_noise((tap,), rounds) ** 2 == pytest.approx(1 + (rounds - 1) * (1 - power) ** 2)


@pytest.mark.parametrize("power", [0.2, 0.5, 0.9])
def test_taps_in_closed_form_are_those_of_a_power_of_the_prefix_sum(power):
    """Taps (weights of subtracted noise) in closed form have the response of a power of the prefix sum."""
    rounds, taps = 17, power_taps(power, 16)
    check_taps(taps, 200)
    t = np.arange(rounds)
    of_power, of_rest = (
        np.exp(special.gammaln(t + each) - special.gammaln(each) - special.gammaln(t + 1))
        for each in (power, 1 - power)
    )
    assert noise_response(taps, rounds) == pytest.approx(of_power)
    assert prefix_noise(taps, rounds) == pytest.approx(np.linalg.norm(of_rest))
    if power == 0.5:
        squares = sum((math.comb(2 * each, each) / 4**each) ** 2 for each in range(rounds))
        assert sensitivity(taps, (0,), rounds) ** 2 == pytest.approx(squares)


@pytest.mark.parametrize(("taps", "most_turns"), [(1, 1), (2, 5), (8, 1)])
def test_no_taps_in_closed_form_are_better_than_those_that_are_found(taps, most_turns):
    """Taps (weights of subtracted noise) from the search are at least as good as the best in closed form."""
    rounds = 50
    turns = densest_turns(most_turns, rounds // most_turns, rounds)

    def noise(each):
        return prefix_noise(each, rounds) * sensitivity(tuple(each), turns, rounds)

    best = min(noise(power_taps(power, taps)) for power in np.linspace(0, 1, 51).tolist())
    assert noise(best_taps(noise, taps, rounds)) <= best * 1.0001
