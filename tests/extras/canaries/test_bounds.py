"""Tests of lower bounds on epsilon, against another implementation, theory and simulated error rates."""

import json
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from gdpfed.extras.canaries.bounds import (
    NUM_ALARMS,
    NUM_SHARES,
    Alarms,
    Guesses,
    PrivacyCurve,
    alarms_of,
    at_least,
    best_of,
    guesses_of,
    largest_refuted,
    one_run_epsilon,
    one_run_p_value,
    refuted_scale,
    refutes,
    two_gaussians_epsilon,
)

VECTORS = json.loads(Path(__file__).with_name("jax_privacy_vectors.json").read_text())["vectors"]
DELTA = 1e-3


def of_kind(kind):
    return [vector for vector in VECTORS if vector["kind"] == kind]


def guesses(vector):
    return Guesses(vector["m"], vector["n"], vector["v"])


def test_p_values_are_those_of_jax_privacy():
    found = [
        one_run_p_value(guesses(each), each["epsilon"], each["delta"]) for each in of_kind("one_run_p_value")
    ]
    assert len(found) == 32
    assert found == pytest.approx([each["value"] for each in of_kind("one_run_p_value")], rel=1e-9, abs=1e-15)


def test_bounds_of_one_run_are_those_of_jax_privacy():
    vectors = of_kind("one_run_epsilon")
    found = [one_run_epsilon(guesses(each), each["delta"], each["significance"]) for each in vectors]
    assert len(found) == 28
    assert found == pytest.approx([each["value"] for each in vectors], rel=1e-3, abs=1e-3)


def test_refuted_gaussians_are_those_of_jax_privacy():
    def bound(vector):
        def refuted(mu):
            return refutes(guesses(vector), lambda x: float(ndtr(-ndtri(x) - mu)), vector["significance"])

        mu = largest_refuted(refuted, 20.0)
        return PrivacyCurve(*gaussian(mu)).epsilon(vector["delta"], 1.0) if mu else 0.0

    vectors = of_kind("gaussian_one_run_epsilon")
    assert len(vectors) == 28
    assert [bound(each) for each in vectors] == pytest.approx(
        [each["value"] for each in vectors], rel=1e-2, abs=1e-3
    )


def test_counted_alarms_are_those_of_jax_privacy():
    vectors = of_kind("independent_epsilon")
    assert len(vectors) == 12
    for each in vectors:
        true = at_least(each["present_above"], each["n"], each["significance"] / 2)
        false = 1 - at_least(each["n"] - each["absent_above"], each["n"], each["significance"] / 2)
        assert Alarms(true, false).epsilon(each["delta"]) == pytest.approx(each["value"], rel=1e-9)


def gaussian(mu, num_pairs=400):
    """Return epsilons and deltas of a Gaussian mechanism; ``mu`` is its sensitivity divided by its noise."""
    epsilons = np.linspace(0.0, mu * (mu / 2 + 6), num_pairs)
    deltas = norm.cdf(mu / 2 - epsilons / mu) - np.exp(epsilons) * norm.cdf(-mu / 2 - epsilons / mu)
    return tuple(epsilons.tolist()), tuple(deltas.tolist())


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_epsilon_of_a_gaussian_is_that_of_dp_accounting(mu):
    epsilon = dp_accounting.get_epsilon_gaussian(1 / mu, DELTA)
    assert PrivacyCurve(*gaussian(mu)).epsilon(DELTA, 1.0) == pytest.approx(epsilon, rel=5e-3)
    # Half the noise is twice the distance.
    assert PrivacyCurve(*gaussian(mu / 2)).epsilon(DELTA, 2.0) == pytest.approx(epsilon, rel=2e-2)


def test_the_trade_off_of_a_curve_is_that_of_the_gaussian():
    x = np.array([1e-4, 1e-2, 0.2, 0.5, 0.9])
    curve = PrivacyCurve(*gaussian(1.5))
    assert [curve.trade_off(each) for each in x] == pytest.approx(norm.cdf(norm.ppf(1 - x) - 1.5), abs=1e-3)
    assert [curve.separation(each) for each in x] == pytest.approx([1.5] * 5, abs=0.01)


def test_a_single_pair_is_the_four_lines_of_its_definition():
    curve = PrivacyCurve((1.0,), (0.1,))
    for x in (0.0, 0.05, 0.3, 0.6, 0.95):
        assert curve.trade_off(x) == pytest.approx(max(0.0, 0.9 - np.e * x, (0.9 - x) / np.e))


def ideal(generator, mu, count):
    present = generator.random(count) < 0.5
    return generator.standard_normal(count) + mu * present, present


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 6.0])
def test_alarms_about_ideal_scores_show_most_of_what_is_stated(epsilon):
    """For 20,000 canaries with ideal Gaussian scores, the lower bound is 65 % to 100 % of true epsilon."""
    curve = PrivacyCurve(*gaussian(1 / dp_accounting.get_sigma_gaussian(epsilon, DELTA)))
    scores, present = ideal(np.random.default_rng(7), curve.separation(0.5), 20_000)
    scale = max(each.scale(curve) for each in alarms_of(scores, present, 0.05 / (12 * NUM_ALARMS)))
    assert 0.65 * epsilon < curve.epsilon(DELTA, scale) <= epsilon


def test_a_true_claim_is_refuted_as_rarely_as_the_significance_says():
    """At a significance of 20 %, a true claim is refuted in at most 250 of 1,000 trials."""
    generator, curve = np.random.default_rng(11), PrivacyCurve(*gaussian(1.0))
    refuted = 0
    for _ in range(1000):
        scores, present = ideal(generator, 1.0, 200)
        alarms = alarms_of(scores, present, 0.2 / NUM_ALARMS)
        refuted += max(each.scale(curve) for each in alarms) > 1
    assert refuted <= 250


def test_guesses_of_a_true_claim_are_not_refuted_and_of_a_false_one_are():
    generator = np.random.default_rng(13)
    curve = PrivacyCurve(*gaussian(1.0))

    def scale(mu):
        found = guesses_of(*ideal(generator, mu, 4000))
        return best_of(lambda each: refuted_scale(each, curve, 0.05 / NUM_SHARES), found)

    assert 0.4 < scale(1.0) <= 1.0
    assert scale(3.0) > 1.0


def test_guesses_count_the_right_ones():
    scores, present = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0]), np.array([1, 1, 0, 1, 0, 0], dtype=bool)
    found = {(each.num_guesses, each.num_correct) for each in guesses_of(scores, present)}
    assert {(1, 1), (2, 2), (6, 4)} <= found


def test_the_estimate_of_two_gaussians():
    """For scores from two equally wide Gaussians, estimated epsilon is within 10 % of the exact value."""
    generator = np.random.default_rng(17)
    scores, present = ideal(generator, 1.0, 20_000)
    estimate = two_gaussians_epsilon(scores[present], scores[~present], DELTA)
    assert estimate == pytest.approx(dp_accounting.get_epsilon_gaussian(1.0, DELTA), rel=0.1)


@pytest.mark.parametrize("numbers", [(10, 11, 3), (10, 5, 6), (10, 5, -1)])
def test_impossible_counts_are_refused(numbers):
    with pytest.raises(ValueError, match="cannot be"):
        Guesses(*numbers)
