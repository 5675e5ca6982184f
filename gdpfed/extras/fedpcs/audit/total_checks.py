"""Checks plans in which clients choose their budgets: each client's total cost, and the rewards earned."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import SAME_FIGURE
from gdpfed.extras.fedpcs.audit.budget_checks import STEPS, epsilon_of, spending_of, worst_totals

Floats = npt.NDArray[np.float64]


def check_totals(files: RunFiles) -> Iterator[str]:
    """Check clients' total costs, budgets and rewards; yield a line for each contradiction.

    What chances a sample without replacement has, and how clients answered a price, is taken as it is said.
    """
    plan, own = files.plan, spending_of(files)
    if "totals" in plan:
        chances = _chances(files, own)
        totals: Mapping[str, Any]
        if STEPS in own:
            expected_steps = own[STEPS]["num_steps"] * chances.sum(axis=0)
            totals = {"most_epsilon": own[STEPS]["epsilons"], "expected_steps": expected_steps}
        else:
            budgets = np.asarray(own["budgets"], dtype=np.float64)
            expected = (chances * budgets).sum(axis=0) + own.get("counts_rho", 0.0)
            most = worst_totals(own, plan["num_rounds"])
            totals = {
                "most_zcdp": most,
                "most_epsilon": [epsilon_of(float(rho), plan["delta"]) for rho in most],
                "expected_zcdp": expected,
                "expected_epsilon": [epsilon_of(float(rho), plan["delta"]) for rho in expected],
            }
        for name, values in totals.items():
            if name in plan["totals"] and not _close(plan["totals"][name], values):
                yield f"plan.json has totals {name} that its budgets do not make"
    if "game" in plan:
        yield from _check_game(files, own)


def _chances(files: RunFiles, own: Mapping[str, Any]) -> Floats:
    """Return each client's probability to be sampled in each round, shape (rounds, n)."""
    said = files.plan["totals"].get("inclusion_probabilities")
    if said is not None:
        return np.asarray(said, dtype=np.float64)
    sizes, clients = np.asarray(own["cohort_sizes"], dtype=np.float64), files.plan["groups"][0]["clients"]
    return np.repeat(sizes[:, None] / clients, clients, axis=1)


def _check_game(files: RunFiles, own: Mapping[str, Any]) -> Iterator[str]:
    """Check that budgets are those of the game's equilibrium, and that rewards follow from the budgets."""
    game, scale = files.plan["game"], files.config["method"].get("budget_scale")
    budgets, rewards = np.asarray(own["budgets"], dtype=np.float64), np.asarray(game["rewards"], dtype=float)
    if not scale:
        return
    played = budgets / scale
    # Where samples follow from something else than budgets, a client spends alike in all rounds.
    by_path = STEPS not in own and files.config["method"].get("client_sampling", "budgets") == "budgets"
    if by_path and not _close(game["paths"], played):
        yield f"plan.json has budgets that are not the paths of its game, in units of {scale:g}"
    if "totals" in files.plan:
        expected = rewards @ (_chances(files, own) * played)
        if not _close(files.plan["totals"].get("expected_payments", expected), expected):
            yield "plan.json has expected payments that its rewards, chances and budgets do not make"
    if files.rewards is None:
        return
    if not _close(files.rewards["rewards"], rewards):
        yield "rewards.json has other rewards than plan.json"
    earned = {
        client: math.fsum(rewards[turn] * played[turn, int(client)] for turn in turns)
        for client, turns in files.ledger["taken"].items()
    }
    said = files.rewards["clients"]
    if files.seal is not None and said.keys() != earned.keys():
        yield "rewards.json has not the clients that took part"
    for client in sorted(said.keys() & earned.keys(), key=int):
        if files.seal is not None and not math.isclose(said[client], earned[client], rel_tol=SAME_FIGURE):
            other = f"which has earned {earned[client]:.6g}"
            yield f"rewards.json has {said[client]:.6g} of client {client}, {other}"
            return


def _close(said: Any, computed: Any) -> bool:
    one, other = np.asarray(said, dtype=np.float64), np.asarray(computed, dtype=np.float64)
    return one.shape == other.shape and np.allclose(one, other, rtol=SAME_FIGURE, atol=1e-12)
