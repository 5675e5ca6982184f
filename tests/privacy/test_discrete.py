"""Tests of discrete Gaussian noise: the statements that its accounting relies on, against exact sums."""

import math

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import discrete_accountant, make_accountant
from gdpfed.privacy.accountants.calibration import calibrate_noise_multiplier
from gdpfed.privacy.accountants.discrete import (
    DELTA_RESERVE,
    GAUSSIAN_SHARE,
    SMALLEST_VARIANCE,
    TABLE_DISTANCE,
    effective_delta,
    refuse_unaccountable,
    sum_divergence_bound,
)
from gdpfed.privacy.accountants.gaussian import discrete_epsilon_against_server, epsilon_against_server
from gdpfed.privacy.accountants.rdp import POISSON_ORDERS, poisson_renyi
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.validation import require_count, require_positive
from secagg.arithmetic.noise_levels import NAMED_VARIANCES
from testing.noise_law import total_variation_bound

DELTA = 6000**-1.1
SETTING = {"sampling": "poisson", "sampling_rate": 0.02, "group_size": 2000}


def convolution_divergence_bound(fine_stddev: float, factor: int, coarse_stddev: float) -> float:
    """Bound the log ratio of the law of X + m Y to a discrete Gaussian of the same variance, for discrete
    Gaussians X and Y; in the formula a is `fine_stddev`, m is `factor` and b is `coarse_stddev`.

    log((1 + t) / (1 - t)), t = 2.1 exp(-2 pi**2 eta**2), eta**-2 = b**-2 + m**2 a**-2, by Poisson
    summation over Y; eta >= 1. It joins the parts of noise that comes in levels, of which a is the
    sum of the parts that stay, m the multiplier and b what a removable part is m times of.
    """
    for name, stddev in (("fine_stddev", fine_stddev), ("coarse_stddev", coarse_stddev)):
        require_positive(name, stddev)
    eta = (coarse_stddev**-2 + (require_count("factor", factor) / fine_stddev) ** 2) ** -0.5
    if eta < 1:
        raise PrivacyError(
            f"{factor} times a discrete Gaussian of {coarse_stddev} does not blend into one of "
            f"{fine_stddev}: eta is {eta:.3g}; choose a finer part, so that it is at least 1"
        )
    bound = 2 * math.atanh(2.1 * math.exp(-2 * math.pi**2 * eta**2))
    return max(bound, math.ulp(0.0))


def mechanism(sigma, **changes):
    return SampledGaussian(**{**SETTING, "noise_stddev": sigma, "clipping_norm": 1.0, **changes})


def log_law(stddev, points):
    logs = -(points**2) / (2 * stddev**2)
    return logs - logsumexp(logs)


def sampled_renyi(order, stddev, shift, rate, reverse=False):
    """Return the Renyi divergence of a sampled discrete Gaussian in one or two dimensions, by summation."""
    line = np.arange(-int(40 * stddev) - 60, int(40 * stddev) + 61, dtype=float)
    axes = np.meshgrid(*[line] * len(shift), indexing="ij")
    log_p = sum(log_law(stddev, line)[np.searchsorted(line, axis)] for axis in axes)
    log_ratio = sum((2 * x * v - v * v) / (2 * stddev**2) for x, v in zip(axes, shift, strict=True))
    log_mixture = np.logaddexp(math.log1p(-rate), math.log(rate) + log_ratio)
    power = 1 - order if reverse else order
    return float(logsumexp(log_p + power * log_mixture)) / (order - 1)


def gaussian_renyi(order, multiplier, rate):
    """Return the Renyi divergence of a sampled continuous Gaussian at a whole order, by a binomial sum."""
    j = np.arange(order + 1)
    log_choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms = log_choose + (order - j) * math.log1p(-rate) + j * math.log(rate)
    return float(logsumexp(terms + j * (j - 1) / (2 * multiplier**2))) / (order - 1)


CASES = [(1.0, (1,), 0.1), (1.0, (3,), 0.02), (2.0, (3,), 0.5), (0.5, (1,), 0.01), (1.0, (1, -2), 0.2)]


@pytest.mark.parametrize(("stddev", "shift", "rate"), CASES)
@pytest.mark.parametrize("order", [2, 3, 4, 5, 8, 12])
def test_at_whole_orders_the_discrete_divergence_is_the_gaussians(stddev, shift, rate, order):
    exact = sampled_renyi(order, stddev, shift, rate)
    multiplier = stddev / math.hypot(*shift)
    assert exact == pytest.approx(gaussian_renyi(order, multiplier, rate), rel=1e-10)
    accounted = poisson_renyi(multiplier, rate)[POISSON_ORDERS.index(order)]
    assert exact == pytest.approx(accounted, rel=1e-10)
    # Theorem 5 of Mironov, Talwar and Zhang: the other direction is never larger.
    assert sampled_renyi(order, stddev, shift, rate, reverse=True) <= exact * (1 + 1e-12)


def test_at_fractional_orders_it_can_be_larger():
    """At order 1.5, the divergence of a discrete Gaussian exceeds that of a continuous one by over 1 %."""
    discrete = sampled_renyi(1.5, 0.5, (1,), 0.01)
    x, step = np.linspace(-20, 20, 400_001, retstep=True)
    log_mixture = np.logaddexp(math.log(0.99), math.log(0.01) + 4 * x - 2)
    continuous = math.log(np.sum(norm.pdf(x, scale=0.5) * np.exp(1.5 * log_mixture)) * step) / 0.5
    assert discrete == pytest.approx(2.674e-3, rel=1e-3)
    assert discrete > 1.01 * continuous


def test_only_whole_orders_enter_the_rdp_accountant():
    reduced = DELTA - DELTA_RESERVE
    for sigma, rounds in ((1.5, 50), (0.7, 50), (1.0, 100)):
        best = min(
            rounds * gaussian_renyi(order, sigma, 0.02)
            + math.log1p(-1 / order)
            - math.log(reduced * order) / (order - 1)
            for order in range(2, 64)
        )
        found = discrete_accountant("rdp").epsilon(mechanism(sigma), rounds, DELTA)
        assert found == pytest.approx(best, rel=1e-6)
        assert found >= make_accountant("rdp").epsilon(mechanism(sigma), rounds, reduced)


@pytest.mark.parametrize(("stddev", "smoothing"), [(3.0, 0.7), (3.0, 1.0), (5.0, 1.2)])
def test_a_continuous_gaussian_rounded_at_random_is_a_discrete_one(stddev, smoothing):
    """A continuous Gaussian that is rounded at random is a discrete Gaussian, up to the proved bound."""
    x, step = np.linspace(-60, 60, 24_001, retstep=True)
    y = np.arange(-90, 91)
    weights = np.exp(-((y[:, None] - x) ** 2) / (2 * smoothing**2))
    chosen = weights / weights.sum(axis=0)
    masses = chosen @ norm.pdf(x, scale=math.sqrt(stddev**2 - smoothing**2)) * step
    seen = np.abs(y) < 6 * stddev
    gap = np.abs(np.log(masses[seen]) - log_law(stddev, y)[seen]).max()
    bound = 4.2 * math.exp(-2 * math.pi**2 * smoothing**2)
    assert gap < bound + 1e-12
    assert bound > 1e-4 or gap < 1e-7


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("name", ["rdp", "pld"])
def test_accounted_epsilon_holds_for_the_discrete_law_itself(rate, name):
    """For one round at the smallest allowed noise, exact delta at the accounted epsilon is below 1e-5."""
    stddev = math.sqrt(SMALLEST_VARIANCE)
    x = np.arange(-12_000, 12_001, dtype=float)
    log_p = log_law(stddev, x)
    for shift in (300, 482):
        mixture = np.log(rate * np.exp(log_law(stddev, x - shift)) + (1 - rate) * np.exp(log_p))
        epsilon = discrete_accountant(name).epsilon(mechanism(stddev / shift, sampling_rate=rate), 1, 1e-5)
        for one, other in ((mixture, log_p), (log_p, mixture)):
            exact_delta = np.clip(np.exp(one) - np.exp(epsilon + other), 0, None).sum()
            assert exact_delta <= 1e-5 - DELTA_RESERVE


def test_sampler_meets_what_the_accounting_assumes_of_it():
    assert min(NAMED_VARIANCES.values()) == SMALLEST_VARIANCE
    assert all(total_variation_bound(name) <= TABLE_DISTANCE for name in NAMED_VARIANCES)
    assert 1 - 2e-5 < GAUSSIAN_SHARE < 1 - 1.9e-5


@pytest.mark.parametrize("stddev", [0.5, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("num_clients", [2, 3, 6])
def test_sums_of_discrete_gaussians_stay_within_their_bound(stddev, num_clients):
    x = np.arange(-40, 41)
    one = np.exp(log_law(stddev, x))
    total = np.array([1.0])
    for _ in range(num_clients):
        total = np.convolve(total, one)
    points = np.arange(len(total)) - len(total) // 2
    seen = np.abs(points) < 5 * stddev * math.sqrt(num_clients)
    gap = np.abs(np.log(total[seen]) - log_law(stddev * math.sqrt(num_clients), points)[seen]).max()
    tau = 10 * sum(math.exp(-2 * (math.pi * stddev) ** 2 * k / (k + 1)) for k in range(1, num_clients))
    assert gap <= tau
    assert sum_divergence_bound(num_clients, stddev, 7) == pytest.approx(7 * tau, rel=1e-12)


def test_bound_for_sums_vanishes_at_our_noise():
    """The divergence bound for sums of discrete Gaussians is practically zero at the noise of our sums."""
    assert sum_divergence_bound(1, 481.7, 100) == 0.0
    for stddev in NAMED_VARIANCES:
        assert 0.0 < sum_divergence_bound(1000, stddev, 11_200_000) <= 5e-324
    assert -((math.pi * 481.66) ** 2) / math.log(2) < -3_000_000


@pytest.mark.parametrize(("fine", "factor", "coarse"), [(4.0, 3, 4.0), (5.0, 2, 1.5), (9.0, 7, 3.0)])
def test_parts_on_a_coarser_lattice_join_within_their_bound(fine, factor, coarse):
    x = np.arange(-400, 401)
    spread = np.zeros(800 * factor + 1)
    spread[::factor] = np.exp(log_law(coarse, x))
    joined = np.convolve(np.exp(log_law(fine, x)), spread)
    points = np.arange(len(joined)) - len(joined) // 2
    stddev = math.hypot(fine, factor * coarse)
    seen = np.abs(points) < 5 * stddev
    gap = np.abs(np.log(joined[seen]) - log_law(stddev, points)[seen]).max()
    assert gap < convolution_divergence_bound(fine, factor, coarse) + 1e-11


def test_delta_reserve_covers_the_largest_training():
    assert effective_delta(DELTA) == DELTA - 1e-8
    assert effective_delta(DELTA, epsilon=3.0, num_clients=300, dimension=11_200_000, num_rounds=50) == (
        DELTA - 1e-8
    )
    with pytest.raises(
        PrivacyError, match=r"costs .* of delta, more than the 1e-08 set aside, at epsilon 45"
    ):
        effective_delta(DELTA, epsilon=45.0)
    with pytest.raises(PrivacyError, match="costs"):
        effective_delta(DELTA, num_rounds=10**6)
    with pytest.raises(PrivacyError, match=r"delta is 1e-08, of which .* sets 1e-08 aside; choose a larger"):
        effective_delta(1e-8)


@pytest.mark.parametrize("name", ["rdp", "pld"])
@pytest.mark.parametrize("target", [0.5, 12.0])
def test_calibrated_noise_meets_the_target_from_below(name, target):
    accountant = discrete_accountant(name)
    unit, common = mechanism(1.0), {"target_epsilon": target, "num_rounds": 50}
    sigma = calibrate_noise_multiplier(accountant, unit, delta=DELTA, **common)
    assert target * (1 - 1e-3) < accountant.epsilon(mechanism(sigma), 50, DELTA) <= target
    continuous = calibrate_noise_multiplier(
        make_accountant(name), unit, delta=effective_delta(DELTA), **common
    )
    assert sigma >= continuous * (1 - 1e-3)
    if name == "pld":
        assert sigma == pytest.approx(continuous, rel=1e-3)


def test_fixed_size_sampling_is_accounted_against_two_clipping_norms():
    fixed = mechanism(4.51**0.5, sampling="fixed_size")
    assert discrete_accountant("rdp").epsilon(fixed, 50, DELTA) == pytest.approx(1.5, rel=0.003)


def test_against_the_server_the_discrete_noise_counts_a_little_less():
    for participations in (1, 4):
        discrete = discrete_epsilon_against_server(1.3, participations, DELTA)
        continuous = epsilon_against_server(1.3, participations, DELTA)
        assert continuous < discrete < continuous * (1 + 1e-4)
    assert discrete_epsilon_against_server(1.3, 0, DELTA) == 0.0
    assert discrete_epsilon_against_server(0.01, 4, DELTA) == math.inf


def test_no_noise_has_no_epsilon_and_no_rounds_cost_nothing():
    for name in ("rdp", "pld"):
        assert discrete_accountant(name).epsilon(mechanism(0.0), 5, DELTA) == math.inf
        assert discrete_accountant(name).epsilon(mechanism(1.0), 0, DELTA) == 0.0
    assert discrete_accountant("pld").epsilon(mechanism(0.05), 50, DELTA) == math.inf


def test_what_has_no_proof_is_refused():
    with pytest.raises(PrivacyError, match=r"theorem1 is proved for continuous .* use the rdp or pld"):
        discrete_accountant("theorem1")
    with pytest.raises(PrivacyError, match="accountant=prv is not known: use"):
        discrete_accountant("prv")
    with pytest.raises(PrivacyError, match="poisson sampling under replace_one"):
        discrete_accountant("rdp").epsilon(mechanism(1.0, adjacency="replace_one"), 5, DELTA)
    with pytest.raises(PrivacyError, match="no bound for fixed_size sampling"):
        discrete_accountant("pld").epsilon(mechanism(1.0, sampling="fixed_size"), 5, DELTA)
    with pytest.raises(PrivacyError, match="epsilon is 31; discrete_gaussian noise is accounted up to 30"):
        refuse_unaccountable("discrete_gaussian", 31.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sum_divergence_bound(0, 481.7, 1), "num_clients is 0; it must be at least 1"),
        (lambda: sum_divergence_bound(3, 0.4, 1), "integer_stddev is 0.4; .* at least 0.5"),
        (lambda: sum_divergence_bound(3, 481.7, 0), "dimension is 0; it must be at least 1"),
        (lambda: convolution_divergence_bound(4.0, 9, 4.0), "does not blend .* choose a finer part"),
        (lambda: convolution_divergence_bound(0.0, 9, 4.0), "fine_stddev is 0.0; it must be positive"),
        (lambda: effective_delta(1.5), "delta is 1.5"),
        (lambda: effective_delta(DELTA, dimension=0), "dimension is 0"),
    ],
)
def test_wrong_numbers_are_named(call, message):
    with pytest.raises(PrivacyError, match=message):
        call()
