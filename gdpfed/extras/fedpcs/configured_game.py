"""Makes the game of method=fedpcs from the configuration, and clients' budgets from its equilibrium."""

from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets
from gdpfed.extras.fedpcs.game.mean_field import Equilibrium, SolvedGame, play, play_under_caps
from gdpfed.extras.fedpcs.game.payoffs import Game, GameError
from gdpfed.extras.fedpcs.game.server_cost import ServerCost, play_best_rewards
from gdpfed.extras.fedpcs.released_draws import RULES
from gdpfed.extras.fedpcs.weighted_draws import Draws, capped_probabilities
from gdpfed.methods.record_method import configured_records

Floats = npt.NDArray[np.float64]

FIXED_POINT_STEPS = 30


@dataclass(frozen=True, eq=False, kw_only=True)
class Declared:
    """What is publicly known about clients' data and the model: record counts and dimension.

    Attributes:
        record_counts: D_i, shape (n,); ones where clients are protected, whose sizes are no one's to know.
        dimension: d, the number of parameters.
        distance: how far neighbouring contributions are apart, in bounds of one.
    """

    record_counts: Floats
    dimension: int
    distance: float = 2.0

    @classmethod
    def of(cls, config: Config, *, dimension: int, distance: float) -> Self:
        """Return the publicly known numbers; record counts are all 1 unless the run protects records."""
        if not config.privacy.about_records:
            counts = np.ones(config.dataset.num_clients)
        else:
            counts = configured_records(config)
        return cls(record_counts=counts, dimension=dimension, distance=distance)

    @property
    def shares(self) -> Floats:
        """theta_i = D_i / sum D: each client's share of all records, shape (n,)."""
        return np.asarray(self.record_counts / self.record_counts.sum())


def configured_game(config: Config) -> Game:
    """Make the game; each client's first budget and aversion to privacy cost are configured or random.

    Raises:
        GameError: numbers that are out of range.
        ConfigError: lists that are not one number a client.
    """
    method, n = config.method, config.dataset.num_clients
    rng = np.random.default_rng(config.run.seed if method.seed is None else method.seed)
    drawn = rng.uniform(0, 1, n), rng.uniform(method.least_budget, method.highest_budget, n)
    given: dict[str, Any] = {}
    for key, values in zip(("aversions", "first_budgets"), drawn, strict=True):
        listed = getattr(method, key)
        if listed is not None and len(listed) != n:
            raise ConfigError(
                f"method.{key} has {len(listed)} entries for dataset.num_clients={n}: give each client one"
            )
        given[key] = values if listed is None else np.asarray(listed, dtype=np.float64)
    size = round(config.privacy.sampling_rate * n)
    return Game(
        **given,
        cohort_sizes=np.full(config.run.num_rounds, size, dtype=np.int64),
        least=method.least_budget,
        highest=method.highest_budget,
    )


def played(config: Config, declared: Declared) -> SolvedGame:
    """Play the configured game before training; return its equilibrium.

    Raises GameError, ConfigError: a game that cannot be played.
    """
    method, game = config.method, configured_game(config)
    if method.reward == "best":
        bound = declared.distance / 2 * config.privacy.clipping_norm
        cost = ServerCost(
            weight=method.server_weight,
            scale=method.accuracy_scale or declared.dimension * bound**2,
            shares=declared.shares,
            examples=declared.record_counts,
        )
        start = np.full(game.num_rounds, float(game.highest))
        chances = capped_probabilities(
            game.first_budgets / game.first_budgets.sum(), int(game.cohort_sizes[0])
        )
        return play_best_rewards(game, cost, np.tile(chances, (game.num_rounds, 1)), start)
    listed = method.reward if isinstance(method.reward, list) else [method.reward] * game.num_rounds
    rewards = np.asarray(listed, dtype=np.float64)
    if method.caps is None:
        return play(game, rewards)
    first_cap, last_cap = method.caps
    caps = np.linspace(first_cap, last_cap, game.num_rounds)
    return play_under_caps(game, rewards, caps, least=config.secagg.minimum_cohort)


def spending_of(config: Config, found: Equilibrium, declared: Declared) -> ClientBudgets:
    """Return how clients are sampled, and each client's budget in each round, at the game's equilibrium.

    Under spending=equal every client's expected total is that of the game, in equal parts by round. Where
    samples follow from what clients have released, it is that if all chances are K / n. Raises ConfigError:
    class counts that cost a client all that it spends in the game.
    """
    method, scale = config.method, config.method.budget_scale
    budgets = found.budgets
    draws = cast("Draws", method.draws)
    most = method.max_participations or len(budgets)
    common: dict[str, Any] = {"cohort_sizes": found.cohort_sizes, "draws": draws, "most_rounds": most}
    own = ClientBudgets(budgets=scale * budgets, draw_probabilities=found.draw_probabilities, **common)
    if method.client_sampling == "budgets":
        return own
    first = np.tile(budgets[0], (len(budgets), 1))
    uniform = np.full_like(budgets, 1 / budgets.shape[1])
    if method.client_sampling == "unbiased":
        return _least_noise_budgets(config, own, declared, common)
    if method.client_sampling in RULES:
        rule, counts_rho = method.client_sampling, method.counts_rho or 0.0
        # Fed-CBS draws K clients one after the other, DELTA each on its own.
        draws = "without_replacement" if rule == "fed_cbs" else "poisson"
        common |= {"rule": rule, "counts_rho": counts_rho, "draws": draws}
        totals = own.expected_totals()
        client = int(totals.argmin())
        if method.spending == "equal" and counts_rho >= totals[client]:
            raise ConfigError(
                f"method.counts_rho={counts_rho:g} is no less than the {totals[client]:.4g} zCDP that client "
                f"{client} spends in the game, from which method.spending=equal subtracts it: lower it, or "
                "raise method.budget_scale"
            )
    by_first = method.client_sampling == "first_budgets"
    chances = first / first.sum(axis=1, keepdims=True) if by_first else uniform
    if method.spending == "equal":
        return _equal(own, chances, common)
    least = method.spending == "paper" and method.client_sampling == "random"
    levels = np.full_like(budgets, method.least_budget) if least else first
    return ClientBudgets(budgets=scale * levels, draw_probabilities=chances, **common)


def _equal(own: ClientBudgets, chances: Floats, common: dict[str, Any]) -> ClientBudgets:
    """Return budgets that stay equal over the rounds; each client's expected total cost is that of the game.

    Each client spends the same in every round: a single round of very little would be one of very much noise.
    """
    drawn = ClientBudgets(budgets=own.budgets, draw_probabilities=chances, **common)
    level = (own.expected_totals() - drawn.counts_rho) / drawn.inclusions().sum(axis=0)
    return ClientBudgets(budgets=np.tile(level, (len(own.budgets), 1)), draw_probabilities=chances, **common)


def _least_noise_budgets(
    config: Config, own: ClientBudgets, declared: Declared, common: dict[str, Any]
) -> ClientBudgets:
    """Return budgets with the draw probabilities that give the least noise under unbiased weights.

    These probabilities are proportional to share_i sqrt(C^2 + d sigma_i^2).
    """
    norm, budgets = config.privacy.clipping_norm, own.budgets
    for _ in range(FIXED_POINT_STEPS):
        bound = declared.distance * norm / declared.record_counts
        noise = declared.dimension * bound**2 / (2 * budgets)
        chances = declared.shares * np.sqrt(norm**2 + noise)
        chances = chances / chances.sum(axis=1, keepdims=True)
        if config.method.spending != "equal":
            break
        budgets = _equal(own, chances, common).budgets
    return ClientBudgets(budgets=budgets, draw_probabilities=chances, **common)


def check_rewards(config: Config) -> None:
    """Raise GameError if a list of rewards does not have one reward for each round."""
    reward = config.method.reward
    if isinstance(reward, list) and len(reward) != config.run.num_rounds:
        raise GameError(
            f"method.reward has {len(reward)} entries for run.num_rounds={config.run.num_rounds}: give one "
            "for each round, or one number for all"
        )
