"""Closed forms of mu-Gaussian differential privacy, by which tests check what this project accounts for."""

import math

from scipy.optimize import brentq
from scipy.stats import norm


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return the delta of a mu-GDP mechanism at epsilon (arXiv:1905.02383, Corollary 2.13)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu at which a mu-GDP mechanism is (epsilon, delta)-DP."""
    return float(brentq(lambda mu: delta_of_mu(mu, epsilon) - delta, 1e-3, 20.0, xtol=1e-13))
