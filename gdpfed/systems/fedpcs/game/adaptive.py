"""How many clients to sample under a cap on a round's budget (Theorem 7, corrected).

A cap B_t is spent in full: under an inequality, as it is stated, cost only rises with K, and the optimum is
to sample nobody.
"""

from dataclasses import replace

import numpy as np

from gdpfed.systems.fedpcs.game.mean_field import SolvedGame, play
from gdpfed.systems.fedpcs.game.payoffs import Floats, Game, GameError

MOST_PLAYS = 20


def spent_in_round(budgets: Floats, cohort_size: float) -> float:
    """K sum rho^2 / sum rho: what K clients spend on average that are sampled in proportion to budgets."""
    return float(cohort_size * (budgets**2).sum() / budgets.sum())


def cohort_of_cap(budgets: Floats, cap: float, *, least: int) -> int:
    """Return the largest K whose expected spending is within the cap, at most all clients.

    Raises GameError: a cap that no sample of `least` clients meets.
    """
    for_one = spent_in_round(budgets, 1)
    size = int(min(len(budgets), np.floor(cap / for_one * (1 + 1e-12))))
    if size < least:
        raise GameError(
            f"no sample meets a round's cap of {cap:g}: {least} clients, the least that are summed, spend "
            f"{least * for_one:.4g} on average; raise the cap or lower the reward"
        )
    return size


def play_under_caps(game: Game, rewards: Floats, caps: Floats, *, least: int) -> SolvedGame:
    """Play with as many clients a round as its cap allows, until their numbers stay; at most twenty times.

    `caps` are B_t, one a round, public. Clients know how many are sampled, so budgets and numbers depend on
    each other. Raises GameError: caps that are not one a round, or one that no sample meets.
    """
    if caps.shape != (game.num_rounds,):
        raise GameError(f"{caps.size} caps for {game.num_rounds} rounds; give one a round")
    played = play(game, rewards)
    for _ in range(MOST_PLAYS):
        pairs = zip(played.budgets, caps.tolist(), strict=True)
        sizes = np.array([cohort_of_cap(budgets, cap, least=least) for budgets, cap in pairs])
        if np.array_equal(sizes, played.game.cohort_sizes):
            break
        played = play(replace(game, cohort_sizes=sizes), rewards, guess=played.mean_budgets)
    return played
