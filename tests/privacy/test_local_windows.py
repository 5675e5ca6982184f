"""Tests of windows, which are several local steps that get noise once: their cost and their noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from gdpfed.audit.accounting import charges_of, epsilon_after
from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.calibration import calibrate_windows
from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.accountants.pld import pld_epsilon
from gdpfed.privacy.charges import Charge, event_from_dict
from gdpfed.privacy.events import LocalWindows

DELTA = 1e-5


def window(bound="convex", steps=5, rate=0.05, noise=1.0, windows=1):
    return LocalWindows(
        bound=bound,
        batch_rate=rate,
        noise_multiplier=noise,
        num_steps=steps * windows,
        window_steps=steps,
    )


def hockey_stick(mixture, epsilon):
    """Return delta of one release at epsilon by integration, as the larger value of the two directions."""
    x = np.linspace(-12, 12, 400_001) * mixture.noise_stddev
    there = sum(
        weight * stats.norm.pdf(x, move, mixture.noise_stddev)
        for move, weight in zip(mixture.sensitivities, mixture.weights, strict=True)
    )
    without = stats.norm.pdf(x, 0, mixture.noise_stddev)
    step = x[1] - x[0]
    both = [
        np.maximum(one - math.exp(epsilon) * other, 0).sum() * step
        for one, other in [(there, without), (without, there)]
    ]
    return max(both)


@pytest.mark.parametrize("bound", ["convex", "window"])
def test_a_window_of_one_step_is_a_step(bound):
    """A window of one local step costs as much as one DP-SGD step at the same sampling probability."""
    assert window(bound, steps=1).mixture.sensitivities == (0.0, 1.0)
    assert window(bound, steps=1).mixture.weights == pytest.approx((0.95, 0.05))


def test_a_record_is_met_by_a_binomial_or_first_by_a_geometric():
    convex = window("convex", steps=4, rate=0.3).mixture
    assert convex.sensitivities == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert convex.weights == pytest.approx(stats.binom.pmf(range(5), 4, 0.3))
    clipped = window("window", steps=4, rate=0.3).mixture
    assert clipped.sensitivities == (0.0, 1.0, 0.75, 0.5, 0.25)
    assert clipped.weights == pytest.approx([0.7**4, 0.3, 0.3 * 0.7, 0.3 * 0.49, 0.3 * 0.343])


@pytest.mark.parametrize("bound", ["convex", "window"])
def test_one_release_costs_what_integration_says(bound):
    event = window(bound, steps=2, rate=0.2, noise=1.5)
    epsilon = pld_epsilon(event, 1, 1e-3)
    assert hockey_stick(event.mixture, epsilon) == pytest.approx(1e-3, rel=0.02)


@pytest.mark.parametrize(
    ("event", "releases", "epsilon", "noise"),
    [
        (window("convex"), 800, 1.0, 26.45),
        (window("window"), 800, 1.5, 10.30),
        (window("convex", rate=0.2), 60, 2.0, 15.650),
    ],
)
def test_noise_is_that_of_the_reference(event, releases, epsilon, noise):
    """The noise found by the search agrees with reference values, and spends 99.9 to 100 % of the budget."""
    pld = make_accountant("pld")
    found = calibrate_windows(pld, event, target_epsilon=epsilon, count=releases, delta=DELTA)
    assert found == pytest.approx(noise, rel=1.5e-3)
    assert found >= noise * (1 - 5e-4)
    spent = pld.epsilon(replace(event, noise_multiplier=found), releases, DELTA)
    assert epsilon * (1 - 1e-3) <= spent <= epsilon


def test_local_steps_of_a_convex_model_cost_no_more_noise_than_steps_that_are_summed():
    """A window of five convex steps that is noised once needs the total noise of five noised steps."""
    found = calibrate_windows(make_accountant("pld"), window(), target_epsilon=1.0, count=800, delta=DELTA)
    assert found / math.sqrt(5) == pytest.approx(11.846, rel=3e-3)


@pytest.mark.parametrize("bound", ["convex", "window"])
def test_the_audit_computes_the_same_by_its_own_code(bound):
    event = window(bound, rate=0.2, noise=8.0, windows=4)
    ours = compose([Charge(event=event, count=10, unit="record")], DELTA, schedule="fixed").epsilon
    saved = [{"event": event.to_dict(), "count": 10}]
    assert epsilon_after(charges_of(saved), DELTA) == pytest.approx(ours, rel=5e-3)


def test_only_losses_plan_windows_and_the_filter_of_a_ledger_adds_them_up():
    with pytest.raises(PrivacyError, match="local_windows; use the pld accountant"):
        calibrate_windows(make_accountant("rdp"), window(), target_epsilon=1.0, count=8, delta=DELTA)
    charges = [Charge(event=window(noise=5.0), count=2, unit="record")]
    with pytest.raises(PrivacyError, match="local_windows"):
        compose(charges, DELTA, schedule="fixed", accountant=make_accountant("rdp"))
    alone = compose(charges, DELTA, schedule="fixed").epsilon
    assert alone < compose(charges, DELTA, schedule="adaptive").epsilon < math.inf


def test_an_event_is_read_as_it_was_written():
    event = window("window", noise=3.0, windows=2)
    assert event_from_dict(event.to_dict()) == event
    with pytest.raises(PrivacyError, match="7 steps are not whole windows of 5"):
        replace(event, num_steps=7)
    with pytest.raises(PrivacyError, match="bound"):
        replace(event, bound="smooth")
