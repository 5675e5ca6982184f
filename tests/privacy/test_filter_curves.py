"""Tests of the Renyi curves of mixtures, windows and replaced units, against divergences of the true laws."""

import math

import numpy as np
import pytest
from scipy import special, stats

from gdpfed.audit.accounting import charges_of, composed_epsilon, renyi_curve_of
from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.composition import compose_runs
from gdpfed.privacy.accountants.filter_curves import filter_curve
from gdpfed.privacy.accountants.rdp import FILTER_ORDERS, filter_epsilon
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Event, GaussianMixture, LocalWindows, SampledGaussian

ORDERS = (1.5, 2.5, 2, 3, 5, 8, 16, 32)
RATES = (1e-3, 0.02, 0.2, 0.7, 1.0)
DELTA = 1e-5
NOISES = ("gaussian", "discrete_gaussian")


def window(bound, rate, sigma, steps, windows=1):
    return LocalWindows(
        bound=bound,
        batch_rate=rate,
        noise_multiplier=sigma,
        num_steps=steps * windows,
        window_steps=steps,
    )


def replaced(rate, sigma, noise="gaussian", num_sums=1):
    return SampledGaussian(
        sampling="poisson",
        sampling_rate=rate,
        group_size=100,
        noise_stddev=sigma,
        clipping_norm=1.0,
        adjacency="replace_one",
        noise=noise,
        num_sums=num_sums,
    )


def charged(event, count=1):
    return Charge(event=event, count=count, unit=event.unit or "client")


def log_density(x, moves, weights, sigma):
    parts = [
        math.log(w) + stats.norm.logpdf(x, s, sigma) for s, w in zip(moves, weights, strict=True) if w > 0
    ]
    return np.logaddexp.reduce(parts)


def true_divergence(order, sigma, weights, moves, others):
    """Integrate the Renyi divergence of two mixtures of Gaussians, the larger of both directions."""
    reach = order * max(moves) + 14 * sigma
    x, step = np.linspace(-reach, reach, 60_001, retstep=True)
    one, other = (log_density(x, each, weights, sigma) for each in (moves, others))
    logs = [order * p + (1 - order) * q for p, q in ((one, other), (other, one))]
    return max(float(special.logsumexp(each)) + math.log(step) for each in logs) / (order - 1)


def bounded(event, weights, moves, others, sigma):
    """Return the bound as a multiple of the true divergence, at each order at which both can be told."""
    curve = filter_curve(event)
    orders = [order for order in ORDERS if order in curve]
    true = {order: true_divergence(order, sigma, weights, moves, others) for order in orders}
    assert len(orders) >= len(ORDERS) - 2
    return [curve[order] / value for order, value in true.items() if value > 1e-5]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("sigma", [0.4, 1.0, 4.0, 15.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 25])
@pytest.mark.parametrize("bound", ["convex", "window"])
def test_the_curve_of_a_window_is_never_below_the_divergence_of_its_mixture(bound, steps, sigma, rate):
    event = window(bound, rate, sigma, steps)
    mixture = event.mixture
    moves, weights = mixture.sensitivities, mixture.weights
    shares = bounded(event, weights, moves, (0.0,) * len(moves), sigma)
    assert all(share >= 1 - 1e-6 for share in shares)
    as_mixture = filter_curve(mixture)
    assert filter_curve(event) == pytest.approx(as_mixture, rel=1e-6, abs=1e-12)
    assert filter_curve(window(bound, rate, sigma, steps, 30))[3] == pytest.approx(
        30 * as_mixture[3], rel=1e-6
    )


@pytest.mark.parametrize("rate", [*RATES, 0.4])
@pytest.mark.parametrize("sigma", [0.4, 0.8, 2.0, 6.0, 30.0])
@pytest.mark.parametrize("noise", NOISES)
def test_the_curve_of_a_replaced_unit_is_never_below_the_divergence_of_both_worlds(noise, sigma, rate):
    """One update of norm C, and in its place one that points away from it, is shorter, nothing, or close."""
    for other in (-1.0, -0.5, 0.0, 0.9):
        shares = bounded(replaced(rate, sigma, noise), (1 - rate, rate), (0.0, 1.0), (0.0, other), sigma)
        assert all(share >= 1 - 1e-6 for share in shares)


@pytest.mark.parametrize(
    ("event", "most"),
    [
        (window("convex", 0.05, 26.45, 5), 1.1),
        (window("window", 0.05, 10.3, 5), 1.3),
        (replaced(0.1, 5.0), 1.1),
        (replaced(0.9, 10.0), 1.1),
    ],
)
def test_at_usual_noise_the_curve_is_close_above_the_true_divergence(event, most):
    if isinstance(event, LocalWindows):
        mixture, sigma = event.mixture, event.noise_multiplier
        moves, weights = mixture.sensitivities, mixture.weights
        others = (0.0,) * len(moves)
    else:
        rate, sigma = event.sampling_rate, event.noise_multiplier
        moves, weights, others = (0.0, 1.0), (1 - rate, rate), (0.0, -1.0)
    true = true_divergence(8, sigma, weights, moves, others)
    assert true < filter_curve(event)[8] < most * true


def test_a_move_whose_chance_is_no_float_any_more_counts():
    """Of 1,000 steps a record may be in 200 with a chance of 1e-585, and then it moves the model by 200."""
    curve = filter_curve(window("convex", 1e-4, 5.0, 1000))
    log_chance = stats.binom.logpmf(200, 1000, 1e-4)
    assert math.exp(log_chance) == 0.0
    for order in (20, 40, 63):
        of_that = log_chance + order * (order - 1) * (200 / 5.0) ** 2 / 2
        assert curve[order] * (order - 1) >= of_that > 0


def test_a_mixture_without_moves_shows_nothing_and_one_of_certain_moves_is_a_gaussian():
    still = GaussianMixture(noise_stddev=2.0, sensitivities=(0.0, 1.0), weights=(1.0, 0.0))
    assert set(filter_curve(still).values()) == {0.0}
    sure = filter_curve(GaussianMixture(noise_stddev=2.0, sensitivities=(3.0,), weights=(1.0,)))
    assert sure == pytest.approx({order: order * (3 / 2) ** 2 / 2 for order in sure})


@pytest.mark.parametrize(
    "event",
    [window("convex", 0.5, 1e-9, 3), window("window", 0.5, 1e-300, 3), replaced(0.5, 1e-9)],
    ids=["convex", "window", "replaced"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_number_at_the_edge_of_floats_is_no_small_divergence(event: Event):
    assert filter_epsilon(filter_curve(event), DELTA, 3.0) > 1e15


@pytest.mark.parametrize(
    "event",
    [
        *(window(bound, rate, 9.0, 6, 4) for bound in ("convex", "window") for rate in (0.001, 0.3, 1.0)),
        *(
            replaced(rate, 4.0, noise)
            for rate in (0.01, 0.5, 1.0)
            for noise in ("gaussian", "discrete_gaussian")
        ),
        replaced(0.2, 4.0, num_sums=3),
    ],
    ids=repr,
)
def test_the_audit_computes_the_same_by_its_own_code(event):
    audited = charges_of([charged(event, 3).to_dict()])
    curve = filter_curve(event)
    for order, value in renyi_curve_of(audited, FILTER_ORDERS):
        assert value == pytest.approx(3 * curve[order], rel=1e-6, abs=1e-11)
    ours = compose_runs([[charged(event, 3)]] * 2, DELTA)
    assert ours.proof == "renyi filter"
    assert composed_epsilon([audited] * 2, DELTA, at_most=0.0) == pytest.approx(ours.epsilon, rel=1e-5)
    assert ours.epsilon > compose_runs([[charged(event, 6)]], DELTA).epsilon


@pytest.mark.parametrize(
    "event", [window("convex", 0.1, 5.0, 5), replaced(0.1, 5.0)], ids=["window", "replaced"]
)
def test_no_run_is_planned_by_it(event):
    with pytest.raises(PrivacyError, match="use the pld accountant"):
        make_accountant("rdp").epsilon(event, 1, DELTA)
