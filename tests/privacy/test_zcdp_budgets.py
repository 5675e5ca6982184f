"""Tests of sampling clients with unequal probabilities, and of the epsilon of a total cost in zCDP."""

import re

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets, epsilon_of_secret_samples, epsilon_of_total
from gdpfed.extras.fedpcs.weighted_draws import capped_probabilities, weighted_draws

DELTA = 1e-5


def chances(seed=0, num_clients=100):
    """Return the clients' drawing probabilities, in proportion to random budgets as in the paper."""
    rng = np.random.default_rng(seed)
    rng.uniform(0, 1, num_clients)
    budgets = rng.uniform(0.01, 12, num_clients)
    return budgets / budgets.sum()


def spending(budgets, **changes):
    rounds, clients = budgets.shape
    usual = {
        "budgets": budgets,
        "draw_probabilities": np.full((rounds, clients), 1 / clients),
        "cohort_sizes": np.full(rounds, 2),
        "draws": "poisson",
        "most_rounds": rounds,
    }
    return ClientBudgets(**(usual | changes))


@pytest.mark.parametrize(
    ("rho", "epsilon"),
    [
        (0.01, 0.4970),
        (0.06, 1.326),
        (0.1, 1.760),
        (0.5, 4.377),
        (1, 6.573),
        (6, 20.13),
        (12, 32.18),
        (72, 122.3),
        (0.035926, 1.0),
        (0.258565, 3.0),
        (0.857429, 6.0),
    ],
)
def test_a_whole_cost_is_one_gaussian(rho, epsilon):
    assert float(f"{epsilon_of_total(rho, DELTA):.4g}") == epsilon


@pytest.mark.parametrize(
    ("rho", "chance", "rounds", "epsilon"),
    [(0.01, 0.2, 30, 1.558), (0.1, 0.2, 30, 6.006), (0.01, 0.2, 80, 2.490), (0.1, 0.5, 80, 16.19)],
)
def test_against_those_who_do_not_know_the_samples_a_mixture_holds(rho, chance, rounds, epsilon):
    found = epsilon_of_secret_samples(np.full(rounds, rho), np.full(rounds, chance), DELTA)
    assert float(f"{found:.4g}") == epsilon


def test_samples_that_are_certain_hide_nothing():
    budgets = np.random.default_rng(0).uniform(0.001, 0.05, 20)
    exact = epsilon_of_total(float(budgets.sum()), DELTA)
    found = epsilon_of_secret_samples(budgets, np.ones(20), DELTA)
    assert exact <= found <= exact * 1.02
    assert epsilon_of_secret_samples(budgets, np.full(20, 1e-8), DELTA) == 0.0


def test_totals_are_those_of_the_most_expensive_rounds_a_client_may_be_asked_in():
    budgets = np.array([[1.0, 4.0], [3.0, 3.0], [2.0, 0.5]])
    assert spending(budgets).worst_totals(2).tolist() == [4.0, 7.0]
    assert spending(budgets, most_rounds=2).worst_totals(3).tolist() == [5.0, 7.0]
    assert spending(budgets).total(1, [0, 2]) == 4.5
    half = spending(budgets, cohort_sizes=np.full(3, 1))
    assert half.expected_totals() == pytest.approx(budgets.sum(axis=0) / 2)


def test_capped_probabilities_sum_to_the_size_and_stay_in_proportion():
    x = np.array([0.5, 0.3, 0.1, 0.06, 0.04])
    found = capped_probabilities(x, 3)
    assert found.sum() == pytest.approx(3)
    assert found[:2].tolist() == [1.0, 1.0]
    assert found[2:] / x[2:] == pytest.approx([5.0, 5.0, 5.0])
    assert capped_probabilities(x, 5).tolist() == [1.0] * 5


@pytest.mark.parametrize("name", ["poisson", "without_replacement", "with_replacement"])
@pytest.mark.parametrize("size", [5, 12])
def test_clients_are_drawn_as_often_as_is_said(name, size):
    """Over 4,000 samples, clients are drawn as often as the stated probabilities say."""
    law, x, samples = weighted_draws(name), chances(num_clients=15), 4000
    generator, counts = np.random.default_rng(1), np.zeros(15)
    for _ in range(samples):
        drawn = law.draw(x, size, generator)
        assert len(np.unique(drawn)) == len(drawn)
        assert name != "without_replacement" or len(drawn) == size
        counts[drawn] += 1
    said = law.inclusion(x, size)
    error = np.sqrt(0.25 / samples + (0.25 / 20_000 if name == "without_replacement" else 0))
    assert np.abs(counts / samples - said).max() < 5 * error


@pytest.mark.parametrize(("size", "total", "paper"), [(20, 17.7, 1.03), (50, 37.1, 1.12), (80, 50.6, 1.33)])
def test_only_true_chances_make_weights_that_sum_to_one(size, total, paper):
    """In sampling without replacement, weights by true inclusion probabilities sum to one on average."""
    x, theta, samples = chances(), np.full(100, 0.01), 1500
    race = weighted_draws("without_replacement")
    inclusion = race.inclusion(x, size)
    assert inclusion.sum() == pytest.approx(size)
    assert weighted_draws("with_replacement").inclusion(x, size).sum() == pytest.approx(total, abs=0.2)
    assert (inclusion * theta / (size * x)).sum() == pytest.approx(paper, abs=0.03)
    generator = np.random.default_rng(2)
    sums = []
    for _ in range(samples):
        drawn = race.draw(x, size, generator)
        sums.append((theta[drawn] / inclusion[drawn]).sum())
    # Clients that are drawn less than once in fifty samples make the tail too heavy for a mean.
    error = np.std(sums) / np.sqrt(samples)
    assert abs(np.mean(sums) - 1) < 3 * error + 0.01


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: weighted_draws("systematic"), "draws=systematic is not known"),
        (lambda: capped_probabilities(np.array([0.5, 0.4]), 1), "the chances of one draw sum to 0.9"),
        (lambda: capped_probabilities(np.array([0.5, 0.5]), 3), "3 clients are to be sampled of 2"),
        (lambda: spending(np.array([[1.0, 0.0]])), "a round's budget is 0"),
        (lambda: spending(np.ones((2, 3)), draw_probabilities=np.ones((1, 3))), "budgets have shape (2, 3)"),
    ],
)
def test_what_cannot_be_drawn_or_spent_is_refused(act, words):
    with pytest.raises(PrivacyError, match=re.escape(words)):
        act()
