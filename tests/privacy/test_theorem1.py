import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.calibration import calibrate_noise_multiplier
from gdpfed.privacy.accountants.theorem1 import check_theorem1, theorem1_variance
from gdpfed.privacy.events import SampledGaussian

DELTA = 6000**-1.1
# A setting in which both conditions hold: many clients, few of them drawn, many rounds.
HOLDS: dict[str, Any] = {"sampling_rate": 1e-3, "num_rounds": 400_000, "delta": 1e-5}


def calibrate(epsilon, *, sampling_rate, num_rounds, delta, clipping_norm=1.0):
    return calibrate_noise_multiplier(
        make_accountant("theorem1"),
        mechanism(1.0, sampling_rate, clipping_norm=clipping_norm),
        target_epsilon=epsilon,
        num_rounds=num_rounds,
        delta=delta,
    )


def mechanism(sigma, rate, sampling="poisson", clipping_norm=1.0):
    return SampledGaussian(
        sampling=sampling,
        sampling_rate=rate,
        group_size=10**6,
        noise_stddev=sigma * clipping_norm,
        clipping_norm=clipping_norm,
    )


def test_formula_at_fmnist_gives_0_34_for_epsilon_3():
    variance = theorem1_variance(sampling_rate=0.02, num_rounds=50, epsilon=3.0, delta=DELTA)
    assert variance == pytest.approx(0.344, abs=0.001)
    true_epsilon = make_accountant("pld").epsilon(mechanism(variance**0.5, 0.02), 50, DELTA)
    assert true_epsilon == pytest.approx(4.2, abs=0.1)


def test_calibration_is_the_formula_where_it_holds():
    sigma = calibrate(4.0, **HOLDS)
    assert sigma**2 == pytest.approx(theorem1_variance(epsilon=4.0, **HOLDS), rel=1e-6)
    accounted = make_accountant("theorem1").epsilon(mechanism(sigma, 1e-3), 400_000, 1e-5)
    assert 4.0 * (1 - 1e-6) < accounted <= 4.0


@settings(max_examples=150, deadline=None)
@given(st.floats(-5, -3), st.floats(3, 60), st.floats(1, 20), st.floats(-8, -4), st.integers(1, 100))
def test_what_theorem1_accounts_is_never_below_the_renyi_accountant(
    log_rate, variance, epsilon, log_delta, percent
):
    rate, delta = 10**log_rate, 10**log_delta
    one_round = theorem1_variance(sampling_rate=rate, num_rounds=1, epsilon=epsilon, delta=delta)
    rounds = max(1, round(variance / one_round))
    try:
        sigma = calibrate(epsilon, sampling_rate=rate, num_rounds=rounds, delta=delta)
    except PrivacyError:
        assume(False)
    noised = mechanism(sigma, rate)
    early = max(1, rounds * percent // 100)
    accounted = make_accountant("theorem1").epsilon(noised, early, delta)
    assert make_accountant("rdp").epsilon(noised, early, delta) <= accounted <= epsilon


def test_first_rounds_of_a_training_have_a_growing_figure():
    noised = mechanism(calibrate(4.0, **HOLDS), 1e-3)
    rounds = (1, 10, 100, 1000, 10_000, 30_000, 60_000, 400_000)
    figures = [make_accountant("theorem1").epsilon(noised, t, 1e-5) for t in rounds]
    assert figures == sorted(figures)
    assert figures[-1] <= 4.0


@pytest.mark.parametrize(
    ("epsilon", "message"),
    [
        (3.0, r"theorem1 needs sigma\^2 >= 0.7, but epsilon 3 .* gives sigma\^2 = 0.3444"),
        (1.5, r"theorem1 needs alpha <= .* = 1.397, but epsilon 1.5 gives alpha = 13.76"),
        (0.5, r"but epsilon 0.5 gives alpha = 39.28; use the rdp or pld accountant"),
    ],
)
def test_fmnist_is_refused_naming_the_condition(epsilon, message):
    with pytest.raises(PrivacyError, match=message):
        calibrate(epsilon, sampling_rate=0.02, num_rounds=50, delta=DELTA)


def test_a_clipping_norm_above_one_does_not_loosen_the_condition():
    variance = theorem1_variance(sampling_rate=0.02, num_rounds=50, epsilon=1.5, delta=DELTA)
    for clipping_norm in (1.0, 10.0):
        with pytest.raises(PrivacyError, match="alpha"):
            check_theorem1(
                noise_variance_multiplier=variance,
                sampling_rate=0.02,
                epsilon=1.5,
                delta=DELTA,
                clipping_norm=clipping_norm,
            )


def test_a_clipping_norm_below_one_tightens_it_as_printed():
    calibrate(4.0, **HOLDS)
    with pytest.raises(PrivacyError, match="alpha"):
        calibrate(4.0, clipping_norm=0.5, **HOLDS)


def test_too_little_noise_and_too_high_rates_have_no_figure():
    theorem1 = make_accountant("theorem1")
    with pytest.raises(PrivacyError, match=r"sigma\^2 >= 0.7, got 0.25"):
        theorem1.epsilon(mechanism(0.5, 1e-3), 1, DELTA)
    with pytest.raises(PrivacyError, match="holds for no order"):
        theorem1.epsilon(mechanism(3.0, 0.5), 1, DELTA)


def test_order_condition_is_the_one_in_the_message():
    """The check of the GDPFed paper's Theorem 1 accepts a variance exactly if the order condition holds."""
    rate, epsilon, delta = 1e-3, 4.0, 1e-5
    alpha = 1 + 2 * math.log(1 / delta) / epsilon

    def holds(variance):
        return alpha <= 2 / 3 * variance * math.log(1 / (rate * alpha * (1 + variance))) + 1

    outcomes = set()
    for variance in (0.8, 1.5, 3.0, 4.0, 20.0, 60.0, 140.0, 200.0):
        try:
            check_theorem1(
                noise_variance_multiplier=variance, sampling_rate=rate, epsilon=epsilon, delta=delta
            )
            accepted = True
        except PrivacyError:
            accepted = False
        assert accepted == holds(variance)
        outcomes.add(accepted)
    assert outcomes == {True, False}
