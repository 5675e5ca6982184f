"""Test that states which clients keep between rounds cost no epsilon: two rounds, integrated numerically."""

import numpy as np
import pytest
from scipy.stats import norm

from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.events import SampledGaussian

RATE, SIGMA = 0.3, 0.8
RELEASES = np.linspace(-7.0, 8.0, 1201)

# What the client sends in its second round, by whether it was drawn in the first and what was released.
BY_DRAW = {
    "nothing kept": lambda drawn, released: np.ones_like(released),
    "by the draw": lambda drawn, released: np.full_like(released, 1.0 if drawn else -1.0),
    "by both": lambda drawn, released: np.where((released > 0.5) == drawn, 1.0, -1.0),
    "against both": lambda drawn, released: np.where((released > 0.5) == drawn, -1.0, 1.0),
    "half of it": lambda drawn, released: np.full_like(released, 1.0 if drawn else 0.5),
}


def densities(sent):
    """Return the joint densities of two releases, shape (k, k), for a run with the client and one without."""
    first, second = RELEASES[:, None], RELEASES[None, :]
    without = norm.pdf(first, scale=SIGMA) * norm.pdf(second, scale=SIGMA)
    present = np.zeros_like(without)
    for drawn, chance in ((True, RATE), (False, 1 - RATE)):
        value = sent(drawn, RELEASES)[:, None]
        then = RATE * norm.pdf(second, value, SIGMA) + (1 - RATE) * norm.pdf(second, scale=SIGMA)
        present += chance * norm.pdf(first, float(drawn), SIGMA) * then
    return present, without


def delta_of(p, q, epsilon):
    """Return delta at epsilon: the integral of the positive part of p - e^epsilon q."""
    step = RELEASES[1] - RELEASES[0]
    return float(np.maximum(p - np.exp(epsilon) * q, 0).sum() * step**2)


@pytest.mark.parametrize("kind", BY_DRAW)
@pytest.mark.parametrize("delta", [1e-1, 1e-2, 1e-3])
def test_two_rounds_cost_at_most_what_two_events_do(kind, delta):
    event = SampledGaussian(
        sampling="poisson", sampling_rate=RATE, group_size=100, noise_stddev=SIGMA, clipping_norm=1.0
    )
    epsilon = make_accountant("pld").epsilon(event, 2, delta)
    p, q = densities(BY_DRAW[kind])
    found = max(delta_of(p, q, epsilon), delta_of(q, p, epsilon))
    assert found <= delta * 1.001
    if kind == "nothing kept":
        # So the integral is fine enough to tell.
        assert found == pytest.approx(delta, rel=0.02)
