"""Tests of the bound for fixed-size sampling, against dp-accounting and against sums with 600 digits."""

import math
from decimal import Decimal, localcontext

import dp_accounting as dp
import pytest

from gdpfed.privacy.accountants.rdp import FIXED_SIZE_ORDERS, _log_even_moments, without_replacement_renyi


@pytest.mark.parametrize(
    ("sigma", "cohort", "group"), [(0.4, 1, 50), (0.71, 5, 50), (1.5, 100, 200), (12.0, 20, 2000)]
)
def test_agrees_with_the_library(sigma, cohort, group):
    theirs = dp.rdp.RdpAccountant(FIXED_SIZE_ORDERS, neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp.SampledWithoutReplacementDpEvent(group, cohort, dp.GaussianDpEvent(sigma)))
    ours = without_replacement_renyi(sigma, cohort, group, FIXED_SIZE_ORDERS)
    assert ours == pytest.approx(tuple(theirs._rdp), rel=1e-9)


def log_moment(sigma, order):
    """Return the logarithm of E[(P/Q - 1)^order] for two Gaussians at distance 1, with 600 digits."""
    with localcontext() as context:
        context.prec = 600
        half = 1 / (2 * Decimal(sigma) ** 2)
        total = sum(
            (-1) ** (order - j) * math.comb(order, j) * (j * (j - 1) * half).exp() for j in range(order + 1)
        )
        return float(total.ln())


@pytest.mark.parametrize("sigma", [0.7, 100.0])
def test_moments_lose_no_digits(sigma):
    logs = _log_even_moments(sigma, 256)
    for order in (2, 32, 100):
        assert logs[order // 2] == pytest.approx(log_moment(sigma, order), rel=1e-12, abs=1e-9)


def test_a_cohort_of_everybody_is_a_plain_gaussian():
    assert without_replacement_renyi(2.0, 9, 9, (2, 3.5)) == (0.25, 0.4375)


def test_practically_no_noise_takes_no_longer():
    assert min(without_replacement_renyi(1e-6, 1, 9, FIXED_SIZE_ORDERS)) > 1e10
