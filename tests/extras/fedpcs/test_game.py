"""Tests of FedPCS's game: best responses, mean field, rewards and welfare equal a second computation's."""

import math
import re

import numpy as np
import pytest
from scipy import optimize

from gdpfed.extras.fedpcs.game.best_response import best_responses
from gdpfed.extras.fedpcs.game.mean_field import cohort_of_cap, play, play_under_caps
from gdpfed.extras.fedpcs.game.payoffs import Game, GameError
from gdpfed.extras.fedpcs.game.posted_price import posted_price_budgets, round_welfare, welfare
from gdpfed.extras.fedpcs.game.server_cost import (
    Reaction,
    ServerCost,
    best_reward,
    marginals,
    play_best_rewards,
    reactions,
)
from tests.extras.fedpcs.theorems import adaptive_budget, best_ratio, conditions

ROUNDS = 31


def game_of(seed, *, num_clients=100, cohort_size=20, num_rounds=ROUNDS):
    """Return a game as in the paper: privacy aversions uniform in 0 to 1, first budgets in 0.01 to 12."""
    rng = np.random.default_rng(seed)
    return Game(
        aversions=rng.uniform(0, 1, num_clients),
        first_budgets=rng.uniform(0.01, 12, num_clients),
        cohort_sizes=np.full(num_rounds, cohort_size),
        least=0.01,
        highest=12.0,
    )


def paid(reward, num_rounds=ROUNDS):
    return np.full(num_rounds, float(reward))


@pytest.fixture(scope="module")
def played():
    return play(game_of(0), paid(5))


def utility(game, means, rewards, client, corrections):
    """Return the utility of a client's corrections, computed term by term from equation (14) of the paper."""
    n, c, rho, total = game.num_clients, game.aversions[client], game.first_budgets[client], 0.0
    for t, a in enumerate([*corrections, 0.0]):
        chance = 1 - (1 - rho / (n * means[t])) ** game.cohort_sizes[t]
        total += chance * (rho * rewards[t] - c * rho**2 - (1 - c) * a**2)
        rho = (1 - a) * means[t] + a * rho
    return total


def test_the_derivative_of_a_payoff_is_that_of_finite_differences():
    game = Game(
        aversions=np.full(100, 0.3),
        first_budgets=np.full(100, 3.0),
        cohort_sizes=np.array([20]),
        least=0.01,
        highest=12.0,
    )
    worth, cost = marginals(game, np.full((1, 100), 3.0), np.full((1, 100), 0.4), np.array([2.0]))

    def payoff(rho):
        chance = 1 - (1 - rho / 200) ** 20
        return chance * (5 * rho - 0.3 * rho**2 - 0.7 * 0.4**2)

    differences = (payoff(3 + 1e-5) - payoff(3 - 1e-5)) / 2e-5
    assert 5 * worth[0, 0] + cost[0, 0] == pytest.approx(differences, abs=1e-7)
    assert differences == pytest.approx(1.74935, abs=1e-5)


def test_a_best_response_is_not_worse_than_twenty_random_starts(played):
    game, rng = played.game, np.random.default_rng(1)
    args = (game, played.mean_budgets, played.rewards)
    for client in (4, 60):
        found = played.responses.utilities[client]
        assert found == pytest.approx(utility(*args, client, played.responses.corrections[:-1, client]))
        best = max(
            -optimize.minimize(
                lambda a, client=client: -utility(*args, client, a),
                rng.uniform(0, 1, ROUNDS - 1),
                method="L-BFGS-B",
                bounds=[(0, 1)] * (ROUNDS - 1),
                options={"maxiter": 15},
            ).fun
            for _ in range(20)
        )
        assert found >= best - 2e-3 * abs(best)


def test_sweeping_the_closed_form_ends_in_worse_optima_than_dynamic_programming():
    """In a game, dynamic programming finds over 1.2 times the utility of iterating the paper's Theorem 1."""
    clients = game_of(0)
    budgets = clients.first_budgets.copy()
    aversions = clients.aversions.copy()
    budgets[0], aversions[0] = 4.05, 0.68
    game = Game(
        aversions=aversions,
        first_budgets=budgets,
        cohort_sizes=clients.cohort_sizes,
        least=0.01,
        highest=12.0,
    )
    means, rewards = np.full(ROUNDS, 6.15), paid(5)
    swept = np.zeros((ROUNDS, 100))
    for _ in range(100):
        path = [game.first_budgets]
        for t in range(ROUNDS - 1):
            path.append((1 - swept[t]) * means[t] + swept[t] * path[-1])
        swept = conditions(game, np.stack(path), swept, means, rewards).corrections
    found = best_responses(game, means, rewards).utilities
    by_sweeping = utility(game, means, rewards, 0, swept[:-1, 0])
    assert found[0] > 1.2 * by_sweeping


def test_the_closed_form_agrees_at_an_interior_optimum(played):
    game, args = played.game, (played.game, played.mean_budgets, played.rewards)
    client = 56
    start = played.responses.corrections[:-1, client]
    polished = optimize.minimize(
        lambda a: -utility(*args, client, a),
        start,
        method="L-BFGS-B",
        bounds=[(0, 1)] * (ROUNDS - 1),
        options={"ftol": 1e-15, "gtol": 1e-9, "maxfun": 100_000},
    ).x
    budgets, corrections = played.budgets.copy(), played.responses.corrections.copy()
    corrections[:-1, client] = polished
    for t in range(ROUNDS - 1):
        mean = played.mean_budgets[t]
        budgets[t + 1, client] = (1 - polished[t]) * mean + polished[t] * budgets[t, client]
    closed = conditions(game, budgets, corrections, played.mean_budgets, played.rewards).corrections[
        :-1, client
    ]
    inner = (
        (polished > 0.05)
        & (polished < 0.95)
        & (np.abs(budgets[:-1, client] - played.mean_budgets[:-1]) > 0.5)
    )
    assert inner.sum() >= 3
    assert closed[inner] == pytest.approx(polished[inner], abs=0.02)
    assert start[inner] == pytest.approx(polished[inner], abs=2 / 60)


@pytest.mark.parametrize("seed", [0, 1])
def test_budgets_are_averaged_and_sampling_becomes_nearly_uniform(seed):
    game = game_of(seed)
    result = play(game, paid(5))
    spread = result.draw_probabilities.std(axis=1) / result.draw_probabilities.mean(axis=1)
    assert result.converged
    assert 5 <= result.num_iterations <= 10
    assert np.diff(result.budgets.max(axis=1)).max() <= 1e-12
    assert spread[0] == pytest.approx(0.55, abs=0.02)
    assert spread[1] < spread[0] / 2
    assert np.abs(result.budgets.mean(axis=1) - result.mean_budgets).max() < 5e-3
    assert result.mean_budgets[-1] == pytest.approx(6.3, abs=0.1)


def test_low_rewards_lower_the_mean_and_high_ones_raise_it():
    low, high = (play(game_of(0, num_clients=30, cohort_size=6, num_rounds=12), paid(r, 12)) for r in (1, 20))
    assert low.mean_budgets[-1] < 0.8 * low.mean_budgets[0]
    assert high.mean_budgets[-1] > 1.2 * high.mean_budgets[0]
    assert low.converged
    assert high.converged


def test_equal_clients_stay_where_they_are():
    game = Game(
        aversions=np.full(5, 0.5),
        first_budgets=np.full(5, 2.0),
        cohort_sizes=np.full(4, 2),
        least=0.1,
        highest=3.0,
    )
    result = play(game, paid(5, 4))
    assert result.converged
    assert np.all(result.budgets == 2.0)


def test_many_clients_share_values_by_aversion():
    game = game_of(3, num_clients=300)
    means, rewards = np.full(ROUNDS, 6.0), paid(5)
    shared = best_responses(game, means, rewards)
    for client in range(0, 300, 37):
        own = utility(game, means, rewards, client, shared.corrections[:-1, client])
        assert shared.utilities[client] == pytest.approx(own)
    start = shared.corrections[:-1, 7]
    best = optimize.minimize(
        lambda a: -utility(game, means, rewards, 7, a),
        start,
        method="L-BFGS-B",
        bounds=[(0, 1)] * (ROUNDS - 1),
    )
    assert shared.utilities[7] >= -best.fun - 1e-2 * abs(best.fun)


def test_welfare_of_the_papers_setting(played):
    five, twenty = (round_welfare(played.game, played.budgets[-1], reward) for reward in (5.0, 20.0))
    one = round_welfare(played.game, played.budgets[-1], 1.0)
    assert five.unclipped == pytest.approx(5316, abs=1)
    assert five.attainable == pytest.approx(1794, abs=1)
    assert five.at_highest == pytest.approx(-1895, abs=1)
    assert one.at_highest == pytest.approx(-6695, abs=1)
    assert (twenty.at_highest, twenty.attainable) == pytest.approx((16105, 16143), abs=1)
    assert one.played <= 0 < five.played <= five.attainable


def test_a_posted_price_is_answered_by_what_is_best_for_oneself_and_for_all():
    game, rng = game_of(2), np.random.default_rng(0)
    answers = posted_price_budgets(game, 5.0)
    best = welfare(answers, game.aversions, 5.0)
    for _ in range(50):
        others = rng.uniform(game.least, game.highest, game.num_clients)
        assert welfare(others, game.aversions, 5.0) <= best


def test_the_best_reward_is_where_the_cost_is_least():
    rng = np.random.default_rng(0)
    cost = ServerCost(weight=0.5, scale=1e6, shares=np.full(20, 0.05), examples=np.full(20, 10.0))
    reaction = Reaction(
        slopes=rng.uniform(0.5, 2, 20),
        offsets=rng.uniform(0.2, 1, 20),
        lowest=np.full(20, 1e-9),
        highest=np.full(20, 1e9),
    )
    chances = rng.uniform(0.1, 0.9, 20)
    reward = best_reward(cost, 3, chances, reaction)
    found = optimize.minimize_scalar(
        lambda r: cost.of_round(3, chances, reaction.budgets(r)[0], r), bounds=(0, 100), method="bounded"
    )
    assert 0 < reward == pytest.approx(found.x, abs=1e-3)


def test_in_the_papers_units_the_best_reward_is_zero(played):
    shares, examples = np.full(100, 0.01), np.full(100, 600.0)
    for weight in (0.5, 0.999999):
        cost = ServerCost(weight=weight, scale=1.0, shares=shares, examples=examples)
        found = [best_reward(cost, t, np.full(100, 0.2), each) for t, each in enumerate(reactions(played))]
        assert found == [0.0] * ROUNDS


def test_rewards_that_are_best_are_played():
    game = game_of(0, num_clients=20, cohort_size=5, num_rounds=6)
    cost = ServerCost(weight=0.5, scale=1.0, shares=np.full(20, 0.05), examples=np.full(20, 30.0))
    result = play_best_rewards(game, cost, np.full((6, 20), 0.25), paid(5, 6))
    assert result.rewards.tolist() == [0.0] * 6
    assert np.all(np.diff(result.mean_budgets) < 0)


def test_theorem_seven_is_the_least_cost_of_a_cap_that_is_spent_in_full():
    cost = ServerCost(weight=0.3, scale=1e5, shares=np.full(40, 1 / 40), examples=np.full(40, 10.0))
    reaction = Reaction(
        slopes=np.full(40, 0.4), offsets=np.full(40, 0.1), lowest=np.full(40, 1e-9), highest=np.full(40, 50.0)
    )
    best = adaptive_budget(float(cost.noise(2)[0]), 0.3, 0.4)

    def of_budget(rho):
        """Return the cost of a round whose cap is spent in full by equal clients with budget ``rho`` each."""
        return 10 / rho * (0.3 * cost.noise(2)[0] / rho + 0.7 * (rho - 0.1) / 0.4 * rho)

    numeric = optimize.minimize_scalar(of_budget, bounds=(0.11, 20), method="bounded").x
    ratio = best_ratio(cost, 2, reaction, 10.0)
    assert best == pytest.approx(numeric, abs=1e-4)
    assert 0.4 * ratio.reward + 0.1 == pytest.approx(best, abs=1e-3)
    assert ratio.cohort_size == pytest.approx(10 / best, rel=3e-3)
    with pytest.raises(GameError, match="needs a slope above 0"):
        adaptive_budget(1.0, 0.5, 0.0)


def test_fewer_clients_are_sampled_as_caps_fall():
    game = game_of(0, num_clients=40, cohort_size=8, num_rounds=8)
    caps = np.linspace(100, 30, 8)
    result = play_under_caps(game, paid(5, 8), caps, least=2)
    sizes = result.game.cohort_sizes
    # In round 0 budgets lie further apart, so that a sample in proportion to them spends more.
    assert np.all(np.diff(sizes[1:]) < 0)
    spent = sizes * (result.budgets**2).sum(axis=1) / result.budgets.sum(axis=1)
    assert np.all(spent <= caps * (1 + 1e-9))
    assert np.all(spent > caps - 12)
    with pytest.raises(GameError, match="no sample meets a round's cap of 3: 2 clients"):
        cohort_of_cap(result.budgets[0], 3.0, least=2)
    with pytest.raises(GameError, match="3 caps for 8 rounds"):
        play_under_caps(game, paid(5, 8), caps[:3], least=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aversions": np.array([0.5, 1.0])}, "client 1 has an aversion of 1; it must lie in (0, 1)"),
        ({"aversions": np.array([0.5, math.nan])}, "client 1 has an aversion of nan"),
        ({"first_budgets": np.array([0.005, 1.0])}, "client 0 has a first budget of 0.005"),
        ({"first_budgets": np.array([1.0, 13.0])}, "client 1 has a first budget of 13"),
        ({"first_budgets": np.array([1.0])}, "2 aversions and 1 first budgets"),
        ({"cohort_sizes": np.array([1, 3])}, "K = 3 clients are to be sampled of 2"),
        ({"cohort_sizes": np.array([], dtype=int)}, "the game has no round"),
        ({"least": 0.0}, "budgets go from 0 to 12"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused_in_one_line(changes, words):
    usual = {
        "aversions": np.array([0.5, 0.5]),
        "first_budgets": np.array([1.0, 2.0]),
        "cohort_sizes": np.array([1, 1]),
        "least": 0.01,
        "highest": 12.0,
    }
    with pytest.raises(GameError, match=re.escape(words)) as error:
        Game(**(usual | changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rewards", "words"), [(paid(1, 2), "2 rewards for 3 rounds"), (paid(-1, 3), "a reward is -1")]
)
def test_rewards_that_are_none_are_refused(rewards, words):
    with pytest.raises(GameError, match=words):
        play(game_of(0, num_clients=4, cohort_size=2, num_rounds=3), rewards)
