"""Tests of the epsilon of one Gaussian release, against dp-accounting."""

import math

import dp_accounting as dp
import pytest

from gdpfed.privacy.accountants.gaussian import gaussian_epsilon, gaussian_sigma


@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12])
@pytest.mark.parametrize("sigma", [0.01, 0.7, 4.0, 1e3])
def test_agrees_with_the_library(sigma, delta):
    epsilon = gaussian_epsilon(sigma, delta)
    assert epsilon == pytest.approx(dp.get_epsilon_gaussian(sigma, delta), rel=1e-10, abs=1e-11)
    if epsilon:
        assert gaussian_sigma(epsilon, delta) == pytest.approx(sigma, rel=1e-8)


def test_ends_of_the_range():
    assert (gaussian_epsilon(0.0, 1e-5), gaussian_sigma(math.inf, 1e-5)) == (math.inf, 0.0)
    assert (gaussian_epsilon(math.inf, 1e-5), gaussian_epsilon(0.0, 1.0)) == (0.0, 0.0)
    assert gaussian_sigma(1e300, 1e-5) < 1e-149
    assert gaussian_sigma(0.0, 1e-9) == pytest.approx(dp.get_sigma_gaussian(0.0, 1e-9), rel=1e-6)
