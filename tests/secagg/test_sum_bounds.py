"""Tests of the check of sums: sums that clipped updates and noise cannot give are refused, others pass."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from secagg import ImplausibleSum, check_sum, largest_undetected_push
from secagg.arithmetic.sum_bounds import FALSE_ALARM_BITS, sum_bounds
from testing.secagg_sums import make_parameters

CASES: list[dict[str, Any]] = [
    {"num_clients": 10, "noise_multiplier": 1.0},
    {"num_clients": 10, "noise_multiplier": 0.1, "clipping_norm": 3.0, "modulus_bits": 24},
    {"num_clients": 30, "noise_multiplier": 4.0, "modulus_bits": 20},
    {"num_clients": 30, "noise_multiplier": 1.0, "dropout_tolerance": 6, "noise_levels": 3},
    {"num_clients": 10, "noise_multiplier": 0.0},
]


def summed(parameters, survivors, level, rng, *, signal=1.0, rounded_gaussian=False):
    """Return a noised sum of updates in one direction, of norm ``signal`` times the clipping norm."""
    encoding = parameters.encoding(parameters.num_clients)
    stddev = parameters.client_noise_stddev(parameters.num_clients)
    direction = rng.normal(size=parameters.dimension)
    update = encoding.encode(direction / np.linalg.norm(direction) * encoding.clip_bound * signal)
    total = update * survivors
    for _ in range(survivors if encoding.levels else 0):
        if rounded_gaussian:
            total += encoding.encode_noise(rng.normal(0, stddev, parameters.dimension))
        else:
            for part in range(level + 1):
                total += encoding.levels.draw(part, parameters.dimension, rng.bytes(32))
    return encoding.decode(encoding.to_residues(total))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dimension", [1, 50, 5_000])
def test_honest_sums_pass(case, dimension):
    """Sums of honest clients pass the check, even if all updates are alike and some clients drop out."""
    parameters = make_parameters(**case, dimension=dimension)
    rng, n = np.random.default_rng(dimension), parameters.num_clients
    for dropped in sorted({0, parameters.dropout_tolerance}):
        level = parameters.noise_level(n, dropped)[1]
        for rounded_gaussian in {False, not parameters.noise_levels}:
            total = summed(parameters, n - dropped, level, rng, rounded_gaussian=rounded_gaussian)
            check_sum(parameters.encoding(n), n - dropped, level, total)


@pytest.mark.parametrize("case", CASES)
def test_bounds_are_near_what_sums_reach(case):
    """The bounds on noise in a sum are at most 1.15 times its norm, and 3 times its largest coordinate."""
    parameters = make_parameters(**case, dimension=5_000)
    n, level = parameters.num_clients, level_of_all(parameters)
    bounds, largest = sum_bounds(parameters.encoding(n), n, level), n * parameters.clipping_norm
    noise = summed(parameters, n, level, np.random.default_rng(1), signal=0.0)
    assert np.linalg.norm(noise) == pytest.approx(bounds.noise_norm, rel=0.05)
    assert np.linalg.norm(noise) <= bounds.norm - largest <= 1.15 * np.linalg.norm(noise)
    assert abs(noise).max() <= bounds.coordinate - largest <= 3 * abs(noise).max()


def level_of_all(parameters):
    return parameters.noise_level(parameters.num_clients, 0)[1]


def test_false_alarms_by_the_exact_law_of_gaussian_noise():
    """The exact chance that an honest sum exceeds a bound is at most the stated one."""
    n = 30
    for dimension in (1, 10, 1_000, 100_000, 10_000_000):
        parameters = make_parameters(n, dimension=dimension, clipping_norm=2.0)
        bounds, encoding = sum_bounds(parameters.encoding(n), n, 0), parameters.encoding(n)
        stddev = math.sqrt(n) * encoding.client_noise_stddev
        reach = n * 2.0
        by_norm = stats.chi2.logsf(((bounds.norm - reach) / stddev) ** 2, dimension)
        by_coordinate = math.log(2 * dimension) + stats.norm.logsf((bounds.coordinate - reach) / stddev)
        assert np.logaddexp(by_norm, by_coordinate) < -FALSE_ALARM_BITS * math.log(2)


@pytest.mark.parametrize("case", CASES)
def test_a_member_that_adds_a_billion_steps_is_found(case):
    parameters = make_parameters(**case, dimension=1_000)
    n, rng = parameters.num_clients, np.random.default_rng(0)
    level, encoding = level_of_all(parameters), parameters.encoding(n)
    honest = np.rint(summed(parameters, n, level, rng) / encoding.grid).astype(np.int64)
    pushed = encoding.decode(encoding.to_residues(honest + 10**9))
    with pytest.raises(ImplausibleSum) as caught:
        check_sum(parameters.encoding(n), n, level, pushed)
    assert "\n" not in str(caught.value)
    assert caught.value.value > caught.value.limit


def test_one_coordinate_and_many_are_bounded_apart():
    parameters = make_parameters(10, dimension=10_000)
    bounds = sum_bounds(parameters.encoding(10), 10, 0)
    spike = np.zeros(10_000)
    spike[77] = -1.01 * bounds.coordinate
    with pytest.raises(ImplausibleSum, match=r"coordinate .* is above .*, which no honest"):
        check_sum(parameters.encoding(10), 10, 0, spike)
    check_sum(parameters.encoding(10), 10, 0, spike / 1.02)
    level = np.full(10_000, 1.01 * bounds.norm / 100)
    with pytest.raises(ImplausibleSum, match="norm"):
        check_sum(parameters.encoding(10), 10, 0, level)
    check_sum(parameters.encoding(10), 10, 0, level / 1.02)


def test_norms_by_member_take_the_place_of_n_times_the_largest():
    parameters = make_parameters(10, noise_multiplier=0.0)
    total = np.zeros(parameters.dimension)
    total[0] = 4.0
    check_sum(parameters.encoding(10), 10, 0, total)
    check_sum(parameters.encoding(10), 10, 0, total, norms=4.0)
    with pytest.raises(ImplausibleSum):
        check_sum(parameters.encoding(10), 10, 0, total, norms=3.9)


def test_without_clipping_nothing_is_refused():
    parameters = make_parameters(clipping_norm=math.inf, noise_multiplier=0.0)
    check_sum(parameters.encoding(6), 6, 0, np.full(50, 1e300))


def test_what_a_lone_poisoner_can_still_do():
    """A client that moves a sum of 30 clients by 110 clipping norms is not noticed; with 125 it is."""
    parameters = make_parameters(30, dimension=26_000, dropout_tolerance=0)
    push = largest_undetected_push(parameters.encoding(30))
    assert push == pytest.approx(113.7, abs=0.1)
    rng = np.random.default_rng(5)
    encoding = parameters.encoding(30)
    noise = rng.normal(0, encoding.client_noise_stddev * math.sqrt(30), 26_000)
    direction = np.sign(rng.normal(size=26_000)) / math.sqrt(26_000)
    check_sum(parameters.encoding(30), 30, 0, noise + 0.97 * push * direction)
    with pytest.raises(ImplausibleSum):
        check_sum(parameters.encoding(30), 30, 0, noise + 1.1 * push * direction)
