import logging
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.gaussian import epsilon_against_server, participations_quantile
from gdpfed.privacy.accountants.pld import pld_epsilon
from gdpfed.privacy.accountants.rdp import (
    POISSON_ORDERS,
    epsilon_of_renyi,
    poisson_renyi,
    rdp_epsilon,
    renyi_curve,
)
from gdpfed.privacy.events import SampledGaussian
from tests.privacy.loss_distribution import least_epsilon

DELTA = 6000**-1.1
BUDGETS = (0.5, 1.5, 3.0)


def paired(*variances):
    return list(zip(BUDGETS, variances, strict=True))


def mechanism(sigma, *, rate=0.02, size=2000, sampling="poisson", adjacency="zero_out", norm=1.0):
    return SampledGaussian(
        sampling=sampling,
        sampling_rate=rate,
        group_size=size,
        noise_stddev=sigma * norm,
        clipping_norm=norm,
        adjacency=adjacency,
    )


@pytest.mark.parametrize(("budget", "variance"), paired(1.63, 0.69, 0.44))
def test_pld_meets_its_published_variances(budget, variance):
    assert make_accountant("pld").epsilon(mechanism(variance**0.5), 50, DELTA) == pytest.approx(
        budget, rel=0.02
    )


@pytest.mark.parametrize(("budget", "variance"), paired(2.25, 0.90, 0.53))
def test_rdp_meets_table_5_for_fmnist(budget, variance):
    epsilon = make_accountant("rdp").epsilon(mechanism(variance**0.5), 50, DELTA)
    assert epsilon == pytest.approx(budget, rel=0.01)


@pytest.mark.parametrize(("budget", "variance"), paired(12.9, 2.50, 1.16))
def test_rdp_meets_table_5_for_svhn(budget, variance):
    epsilon = make_accountant("rdp").epsilon(mechanism(variance**0.5, rate=0.05), 100, DELTA)
    assert epsilon == pytest.approx(budget, rel=0.01)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(("budget", "variance"), paired(18.8, 4.51, 2.55))
def test_fixed_size_reads_noise_against_two_clipping_norms(budget, variance, adjacency):
    fixed = mechanism(variance**0.5, sampling="fixed_size", adjacency=adjacency)
    assert make_accountant("rdp").epsilon(fixed, 50, DELTA) == pytest.approx(budget, rel=0.003)


@pytest.mark.parametrize(("variance", "claimed", "true_at_least"), [(1.13, 1.5, 4.0), (0.64, 3.0, 7.9)])
def test_fixed_size_zero_out_in_units_of_one_clipping_norm_would_be_wrong(variance, claimed, true_at_least):
    """For fixed-size sampling, an attack shows that a sensitivity of one clipping norm is too small."""
    attack = {"drawn": 2.0, "drawn_otherwise": 1.0, "sampling_rate": 0.02}
    found = least_epsilon(noise_stddev=variance**0.5, num_rounds=50, delta=DELTA, **attack)
    assert found > true_at_least > claimed
    fixed = mechanism(variance**0.5, sampling="fixed_size")
    assert make_accountant("rdp").epsilon(fixed, 50, DELTA) > found


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("variance", [18.8, 4.51, 2.55, 0.64])
@pytest.mark.parametrize("otherwise", [0.0, 0.5, 1.0])
def test_no_placement_of_updates_beats_the_fixed_size_bound(variance, adjacency, otherwise):
    found = least_epsilon(
        noise_stddev=variance**0.5,
        num_rounds=50,
        delta=DELTA,
        sampling_rate=0.02,
        drawn=2.0,
        drawn_otherwise=otherwise,
    )
    fixed = mechanism(variance**0.5, sampling="fixed_size", adjacency=adjacency)
    assert found <= make_accountant("rdp").epsilon(fixed, 50, DELTA)


@pytest.mark.parametrize(
    ("variance", "rate", "rounds"), [(1.63, 0.02, 50), (0.44, 0.02, 50), (3.0, 0.1, 100)]
)
def test_pld_agrees_with_an_independent_convolution(variance, rate, rounds):
    sigma = variance**0.5
    common = {"noise_stddev": sigma, "sampling_rate": rate, "num_rounds": rounds, "delta": DELTA}
    zero_out = least_epsilon(**common, drawn=1.0, drawn_otherwise=0.0)
    accounted = pld_epsilon(mechanism(sigma, rate=rate), rounds, DELTA)
    assert zero_out <= accounted <= zero_out + rounds * 1e-4 + 1e-3 * accounted
    replaced = least_epsilon(**common, drawn=1.0, drawn_otherwise=-1.0)
    accounted = pld_epsilon(mechanism(sigma, rate=rate, adjacency="replace_one"), rounds, DELTA)
    assert replaced <= accounted <= replaced + rounds * 1e-4 + 1e-3 * accounted


@pytest.mark.parametrize("order", [1.5, 2, 3.7, 8, 32])
def test_renyi_curve_agrees_with_numerical_integration(order):
    rate, sigma = 0.05, 1.3

    def integrand(x):
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * sigma**2))
        return norm.pdf(x, scale=sigma) * ratio**order

    integral = quad(integrand, -15, 40, points=[0, order], epsabs=0, epsrel=1e-11, limit=400)[0]
    curve = poisson_renyi(sigma, rate)[POISSON_ORDERS.index(order)]
    exact = math.log(integral) / (order - 1)
    if order == int(order):
        assert curve == pytest.approx(exact, rel=1e-6)
    else:  # dp-accounting adds up the absolute values of an alternating series
        assert exact <= curve <= 1.2 * exact


@pytest.mark.parametrize("sigma", [0.4, 0.7, 1.3, 4.0, 20.0])
@pytest.mark.parametrize("rate", [1e-7, 0.003, 0.1, 0.6, 1.0])
def test_the_orders_left_out_change_nothing(rate, sigma):
    noised = mechanism(sigma, rate=rate)
    for rounds, delta in ((1, 1e-3), (50, DELTA), (2000, 1e-8)):
        all_orders = {order: rounds * renyi for order, renyi in renyi_curve(noised).items()}
        assert rdp_epsilon(noised, rounds, delta) == epsilon_of_renyi(all_orders, delta)
        whole = {order: renyi for order, renyi in all_orders.items() if order == int(order)}
        found = rdp_epsilon(noised, rounds, delta, keeps=lambda order: order == int(order))
        assert found == epsilon_of_renyi(whole, delta)


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
@pytest.mark.parametrize(("adjacency", "distance"), [("zero_out", 1), ("replace_one", 2)])
def test_full_participation_is_a_plain_gaussian(sampling, adjacency, distance):
    """If all clients take part, epsilon by PLD is that of a Gaussian mechanism, and by RDP not lower."""
    name = "pld" if sampling == "poisson" else "rdp"
    full = mechanism(20.0, rate=1.0, sampling=sampling, adjacency=adjacency)
    epsilon = make_accountant(name).epsilon(full, 30, DELTA)
    mu = distance * math.sqrt(30) / 20
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(DELTA, rel=1e-6) if name == "pld" else delta <= DELTA


@pytest.mark.parametrize("name", ["rdp", "pld"])
def test_tiny_rates_never_round_to_no_cost(name):
    """At a sampling rate of 1e-8 the accountants' epsilon stays above the lower bound of a simple attack."""
    rate, rounds, sigma, delta = 1e-8, 1000, 0.05, 1e-9
    seen, mistaken = rate * rounds * norm.cdf(0.5 / sigma), rounds * norm.cdf(-0.5 / sigma)
    at_least = math.log((0.99 * seen - delta) / mistaken)
    assert at_least > 30
    rare = mechanism(sigma, rate=rate, size=10**9)
    assert make_accountant(name).epsilon(rare, rounds, delta) >= at_least


@pytest.mark.parametrize(("name", "at_most"), [("rdp", 0.6), ("pld", 0.02)])
def test_tiny_rates_cost_little(name, at_most):
    rare = mechanism(1.0, rate=1e-7, size=10**9)
    assert make_accountant(name).epsilon(rare, 100, 1e-9) < at_most


def test_fixed_size_accounts_the_cohort_that_is_drawn():
    rdp = make_accountant("rdp")
    loose, exact = (
        rdp.epsilon(mechanism(2.0, rate=rate, size=10, sampling="fixed_size"), 10, 1e-3)
        for rate in (0.17, 0.2)
    )
    assert loose == exact


def test_only_the_ratio_of_noise_and_norm_counts():
    for name in ("rdp", "pld"):
        one, other = (
            make_accountant(name).epsilon(mechanism(1.2, norm=norm), 10, DELTA) for norm in (1.0, 0.01)
        )
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("name", ["theorem1", "rdp", "pld"])
def test_no_rounds_cost_nothing_and_no_noise_everything(name):
    assert make_accountant(name).epsilon(mechanism(1.0), 0, DELTA) == 0.0
    assert make_accountant(name).epsilon(mechanism(0.0), 1, DELTA) == math.inf


def test_epsilon_grows_with_the_rounds():
    for name in ("rdp", "pld"):
        figures = [make_accountant(name).epsilon(mechanism(1.2), t, DELTA) for t in range(0, 60, 6)]
        assert np.all(np.diff(figures) > 0)


def test_an_order_that_does_not_converge_is_left_out_silently(caplog):
    with caplog.at_level(logging.WARNING):
        poisson_renyi(0.534832, 0.02)
    assert caplog.records == []


@pytest.mark.parametrize("epsilons", [(2.43, 3.64, 4.63, 5.50)])
def test_server_sees_plain_composition(epsilons):
    for participations, epsilon in enumerate(epsilons, start=1):
        found = epsilon_against_server(2.25**0.5, participations, DELTA)
        assert found == pytest.approx(epsilon, abs=0.005)
        mu = math.sqrt(participations / 2.25)
        delta = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
        assert delta == pytest.approx(DELTA, rel=1e-6)


def test_server_view_of_replacement_moves_the_sum_twice_as_far():
    assert epsilon_against_server(2.0, 3, DELTA, "replace_one") == epsilon_against_server(1.0, 3, DELTA)
    assert epsilon_against_server(2.0, 0, DELTA) == 0.0
    assert epsilon_against_server(0.0, 1, DELTA) == math.inf


@pytest.mark.parametrize(("rounds", "rate"), [(50, 0.02), (100, 0.05), (30, 1.0), (10, 1e-9)])
def test_participations_quantile_is_the_smallest_that_is_enough(rounds, rate):
    found = participations_quantile(rounds, rate)

    def at_most(k):
        return sum(math.comb(rounds, j) * rate**j * (1 - rate) ** (rounds - j) for j in range(k + 1))

    assert at_most(found) >= 0.99 - 1e-12
    assert found == 0 or at_most(found - 1) < 0.99


@pytest.mark.parametrize(
    ("name", "sampling", "adjacency", "remedy"),
    [
        ("pld", "fixed_size", "zero_out", "use the rdp accountant, or poisson sampling"),
        ("pld", "fixed_size", "replace_one", "use the rdp accountant, or poisson sampling"),
        ("rdp", "poisson", "replace_one", "use the pld accountant, or zero_out adjacency"),
        ("theorem1", "poisson", "replace_one", "use poisson with zero_out"),
        ("theorem1", "fixed_size", "zero_out", "the rdp accountant for fixed_size"),
    ],
)
def test_combinations_without_valid_accounting_are_refused(name, sampling, adjacency, remedy):
    with pytest.raises(PrivacyError, match=remedy):
        make_accountant(name).epsilon(mechanism(2.0, sampling=sampling, adjacency=adjacency), 5, DELTA)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_accountant("gdp"),
            "accountant=gdp is not known; did you mean rdp. Use pld, rdp or theorem1",
        ),
        (
            lambda: mechanism(1.0, rate=1.2),
            "sampling_rate is 1.2; a rate above 1 would need more than all clients",
        ),
        (lambda: mechanism(1.0, rate=0.0), r"sampling_rate is 0.0; choose a rate in \(0, 1\]"),
        (lambda: mechanism(1.0, sampling="shuffle"), "sampling=shuffle is not known: use"),
        (lambda: mechanism(1.0, adjacency="add"), "adjacency=add is not known: use"),
        (lambda: mechanism(-1.0), "noise_stddev is -1.0"),
        (lambda: mechanism(float("nan")), "noise_stddev is nan"),
        (lambda: mechanism(1.0, norm=0.0), "clipping_norm is 0.0; it must be positive and finite"),
        (lambda: mechanism(1.0, rate=1e-4, sampling="fixed_size"), "of 2000 clients rounds to none"),
        (lambda: make_accountant("pld").epsilon(mechanism(1.0), 5, 1.0), r"delta is 1.0; .*\(0, 1\)"),
        (lambda: make_accountant("pld").epsilon(mechanism(1.0), -1, 0.1), "num_rounds is -1"),
        (lambda: epsilon_against_server(-1.0, 1, 0.1), "noise_multiplier is -1.0"),
        (lambda: epsilon_against_server(1.0, 1.5, 0.1), "participations is 1.5; give a whole number"),
        (lambda: participations_quantile(5, 0.5, 1.0), "probability is 1.0"),
    ],
)
def test_bad_mechanisms_are_told_in_one_line(make, message):
    with pytest.raises(PrivacyError, match=message):
        make()


@pytest.mark.filterwarnings("error")
def test_a_loss_whose_other_mass_is_near_nothing_has_a_figure():
    """Epsilon is finite, without a warning, even if the ratio of two probabilities overflows a float."""
    event = SampledGaussian(
        sampling="poisson", sampling_rate=0.1, group_size=100, noise_stddev=3.0, clipping_norm=1.0
    )
    by_losses, by_orders = (make_accountant(name).epsilon(event, 10**6, 1e-5) for name in ("pld", "rdp"))
    # The limit of many rounds, a Gaussian of mu = q sqrt(T (e^(1/sigma^2) - 1)) = 34.3, has 734.
    assert 700 < by_losses < 734 < by_orders
