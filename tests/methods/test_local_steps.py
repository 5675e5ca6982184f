"""Tests of ALI-DPFL's rules for the number of local steps, and of the bound on the loss behind them."""

import numpy as np
import pytest

from gdpfed.methods.ali_dpfl import Convergence, loss_bound, steps_as_printed, steps_of_bound


def known(mu, smoothness, sigma, dimension, batch, **changes):
    values = {
        "smoothness": smoothness,
        "strong_convexity": mu,
        "heterogeneity": 0.5,
        "initial_distance": 100.0,
        "clipping_norm": 1.0,
        "step_noise": sigma**2 * dimension / batch**2,
        "noise_share": 0.1,
    }
    return Convergence(**(values | changes))


@pytest.mark.parametrize(
    ("mu", "smoothness", "sigma", "dimension", "num_rounds", "most", "tau"),
    [
        (0.5, 1.0, 0.0, 650, 20, None, 4),
        (0.5, 1.0, 1.0, 650, 20, None, 3),
        (0.1, 0.6, 1.0, 650, 20, None, 1),
        (1.0, 4.0, 0.5, 100, 50, None, 10),
        (1.0, 4.0, 0.5, 100, 50, 200, 4),
    ],
)
def test_the_corrected_bound_chooses_as_the_reference(
    mu, smoothness, sigma, dimension, num_rounds, most, tau
):
    chosen = steps_of_bound(
        known(mu, smoothness, sigma, dimension, 50),
        num_rounds=num_rounds,
        most_local_steps=50,
        steps_allowed=most,
    )
    assert chosen == tau


def test_the_printed_rule_is_far_off_where_the_corrected_one_says_one():
    at = known(0.001, 1.0, 2.14, 4010, 50, heterogeneity=0.0)
    assert steps_as_printed(at, 0.5) == pytest.approx(489, abs=1)
    assert steps_of_bound(at, num_rounds=20, most_local_steps=50) == 1


@pytest.mark.parametrize("rule", ["printed", "bound"])
def test_more_noise_never_means_more_steps(rule):
    """By ALI-DPFL's printed rule and by its corrected bound, more noise never leads to more local steps."""
    taus = [
        steps_as_printed(at, 0.5)
        if rule == "printed"
        else steps_of_bound(at, num_rounds=20, most_local_steps=50)
        for sigma in (0.0, 0.5, 1.0, 2.0, 4.0)
        if (at := known(0.5, 1.0, sigma, 650, 50))
    ]
    assert taus == sorted(taus, reverse=True)


def test_the_bound_falls_with_steps_and_rises_with_drift():
    at = known(0.5, 1.0, 1.0, 650, 50)
    assert loss_bound(at, 4, 400) < loss_bound(at, 4, 80)
    assert loss_bound(at, 8, 80) > loss_bound(at, 4, 80)


def test_one_step_never_breaks_the_inequality_that_the_bound_follows_from():
    """On random quadratic losses, one step satisfies the inequality from which ALI-DPFL's bound follows.

    E||v' - w*||^2 <= (1 - eta mu) ||w' - w*||^2 + 2 S + 2 eta^2 G^2 + 2 eta^2 L Gamma + eta^2 noise.
    Random quadratics; S = sum p_i ||w_i - w'||^2 and G^2 bounds the gradients at the clients' models.
    """
    rng = np.random.default_rng(0)
    least = np.inf
    for _ in range(1000):
        clients, dimension = rng.integers(2, 6), rng.integers(1, 8)
        shares = rng.dirichlet(np.ones(clients))
        roots = rng.normal(size=(clients, dimension, dimension))
        curvatures = roots @ roots.transpose(0, 2, 1) + 0.05 * np.eye(int(dimension))
        centres = rng.normal(size=(clients, dimension))
        mean = np.tensordot(shares, curvatures, 1)
        best = np.linalg.solve(mean, np.einsum("i,ijk,ik->j", shares, curvatures, centres))
        values = np.linalg.eigvalsh(curvatures)
        mu, smoothness = values.min(), values.max()
        gamma = 0.5 * np.einsum("i,ij,ijk,ik->", shares, best - centres, curvatures, best - centres)
        eta = rng.uniform(0.05, 1.0) / smoothness
        ours = rng.normal(size=dimension) + rng.uniform(0, 1) * rng.normal(size=(clients, dimension))
        middle = shares @ ours
        gradients = np.einsum("ijk,ik->ij", curvatures, ours - centres)
        drift = shares @ np.square(ours - middle).sum(axis=1)
        largest = np.square(gradients).sum(axis=1).max()
        noise = rng.uniform(0, 2)
        after = np.square(middle - eta * shares @ gradients - best).sum() + eta**2 * noise
        bound = (
            (1 - eta * mu) * np.square(middle - best).sum()
            + 2 * drift
            + 2 * eta**2 * largest
            + 2 * eta**2 * smoothness * gamma
            + eta**2 * noise
        )
        least = min(least, (bound - after) / bound)
    assert least >= 0
