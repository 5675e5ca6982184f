"""The game of method=fedpcs with nodes that keep their preferences secret: announcements and answers."""

import numpy as np
import numpy.typing as npt

from conf.schema import CLIENTS, Config
from gdpfed.errors import ConfigError
from gdpfed.extras.fedpcs.game.announcement import Announcement
from gdpfed.extras.fedpcs.game.mean_field import TOLERANCE, Equilibrium
from gdpfed.extras.fedpcs.game.payoffs import GameError

Floats = npt.NDArray[np.float64]


def plays_with_nodes(config: Config) -> bool:
    """Whether nodes keep their clients' preferences secret, so that the game needs their answers."""
    return getattr(config.method, "types", None) == CLIENTS


def announcement(config: Config, mean_budgets: Floats) -> Announcement:
    """Make the announcement to nodes: mean budgets, shape (num_rounds,), and public settings.

    Raises GameError: rewards that are not one a round.
    """
    method, num_rounds = config.method, config.run.num_rounds
    size = round(config.privacy.sampling_rate * config.dataset.num_clients)
    rewards = method.reward if isinstance(method.reward, list) else [method.reward] * num_rounds
    # A mean of equal numbers may lie above them by rounding.
    means = np.clip(mean_budgets, method.least_budget, method.highest_budget)
    return Announcement(
        num_clients=config.dataset.num_clients,
        cohort_sizes=(size,) * num_rounds,
        least=float(method.least_budget),
        highest=float(method.highest_budget),
        scale=float(method.budget_scale),
        rewards=tuple(float(reward) for reward in rewards),
        mean_budgets=tuple(means.tolist()),
    )


def answered_announcement(config: Config) -> Announcement | None:
    """Return the announcement (mean budgets, rewards) that nodes answered last; None if nodes do not play."""
    if not plays_with_nodes(config):
        return None
    return announcement(config, answered(config).mean_budgets)


def answered(config: Config) -> Equilibrium:
    """Return the equilibrium of the game that a run's nodes have played.

    Raises ConfigError: they have not, or what they answered is not one path a client and one budget a round.
    """
    method, num_rounds = config.method, config.run.num_rounds
    if method.paths is None or method.announced is None:
        raise ConfigError(
            "method.types=clients lets nodes state their aversions when they join, and a simulation or a "
            "plan has no nodes: leave it out, and give method.aversions or let the method draw "
            "them"
        )
    paths, announced = np.asarray(method.paths, dtype=object), np.asarray(method.announced, dtype=object)
    shape = (config.dataset.num_clients, num_rounds)
    if paths.shape != shape or announced.ndim != 2 or announced.shape[1] != num_rounds:
        raise ConfigError(
            f"method.paths has shape {paths.shape} and method.announced {announced.shape}, for {shape[0]} "
            f"clients and {num_rounds} rounds: leave both out; a run that asks its nodes sets them"
        )
    budgets, means = paths.astype(np.float64).T, announced.astype(np.float64)
    inside = (budgets >= method.least_budget) & (budgets <= method.highest_budget)
    if not inside.all():
        raise GameError(
            f"method.paths has a budget of {budgets[~inside][0]:g}; all must lie from "
            f"method.least_budget={method.least_budget:g} to method.highest_budget={method.highest_budget:g}"
        )
    last = announcement(config, means[-1])
    return Equilibrium(
        rewards=np.asarray(last.rewards),
        cohort_sizes=np.asarray(last.cohort_sizes, dtype=np.int64),
        budgets=budgets,
        announced=means,
        converged=len(means) > 1 and bool(np.abs(means[-1] - means[-2]).max() < TOLERANCE),
    )
