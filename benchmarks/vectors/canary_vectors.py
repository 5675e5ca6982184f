"""Test vectors of audits with canaries: scores from given sums, and bounds on epsilon from given guesses."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from gdpfed.extras.canaries.bounds import (
    Alarms,
    Guesses,
    alarms_of,
    at_least,
    guesses_of,
    one_run_epsilon,
    one_run_p_value,
    refutes,
)
from gdpfed.extras.canaries.canary import Canaries, DiracDirections
from gdpfed.extras.canaries.scores import known_cohorts, likelihood_ratio, under_planned_noise
from gdpfed.extras.canaries.transcript import RevealedSum, Transcript
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.mechanisms.scheduled.planner import make_scheduled_plan
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_stream
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import groups_from_shares

ABOUT = (
    "Canaries: the best score of one from the projections of all sums on it, and what guesses rule out: "
    "p-values, lower bounds on epsilon, shares of true and false alarms."
)

CLIENTS, ROUNDS = 6, 4
PRESENT = (True, False, True, True, False, False)
# Of each canary and round: the projection of the sum, in clipping norms.
SEEN = (
    (1.3, -0.4, 0.2, 0.9),
    (0.1, 0.8, -1.1, 0.3),
    (-0.6, 2.2, 0.4, 0.0),
    (0.7, 0.7, 1.5, -0.9),
    (-1.2, 0.0, 0.3, 0.1),
    (0.2, -0.3, 0.6, 1.8),
)
# In which rounds each canary was asked.
TURNS = ((0, 2), (1, 3), (0, 2), (1, 3), (0, 2), (1, 3))
GUESSES = ((100, 20, 20), (1000, 200, 150), (1000, 1000, 600), (1000, 100, 50), (60, 3, 3))
EPSILONS, DELTA, SIGNIFICANCE = (0.0, 0.5, 1.0, 3.0), 1e-5, 0.05
HITS = ((0, 50), (1, 50), (30, 50), (50, 50), (999, 1000))
ALARMS = ((0.6, 0.01), (0.9, 0.5), (0.2, 0.3), (1e-6, 1e-9))


def canary_cases() -> Iterator[dict[str, Any]]:
    """Yield test cases of privacy audits: scores of canaries first, then bounds on epsilon."""
    for adjacency in ("zero_out", "replace_one"):
        yield _scores_of_turns(adjacency)
        yield _scores_of_samples(adjacency)
    for numbers in GUESSES:
        yield _guesses(Guesses(*numbers))
    yield _thresholds()
    for hits, trials in HITS:
        yield {
            "name": f"Clopper and Pearson: {hits} of {trials}",
            "given": {"hits": hits, "trials": trials, "significance": SIGNIFICANCE},
            "expected": {"at_least": at_least(hits, trials, SIGNIFICANCE)},
        }
    for true, false in ALARMS:
        yield {
            "name": f"alarms: {true:g} true, {false:g} false",
            "given": {"true_share": true, "false_share": false, "delta": DELTA},
            "expected": {"epsilon": Alarms(true, false).epsilon(DELTA)},
        }


def _scores_of_turns(adjacency: Any) -> dict[str, Any]:
    asked = TurnBudget(
        groups=groups_from_shares(CLIENTS, (2.0,)),
        num_rounds=ROUNDS,
        sampling_rate=0.5,
        delta=DELTA,
        clipping_norm=1.0,
        adjacency=adjacency,
    )
    plan = make_scheduled_plan(asked, plan_stream(asked, turns=(2,)))
    transcript = _transcript(plan, adjacency)
    (group,) = plan.groups
    return {
        "name": f"scores of turns, {adjacency}",
        "given": {
            "adjacency": adjacency,
            "taps": list(taps_of(plan.mechanism, 0)),
            "noise_stddev": group.noise_stddev,
            "clipping_norm": group.clipping_norm,
            "turns": [list(each) for each in TURNS],
            "projections": _projections(plan),
        },
        "expected": {"scores": under_planned_noise(transcript, ROUNDS).tolist()},
    }


def _scores_of_samples(adjacency: Any) -> dict[str, Any]:
    plan = make_plan(
        groups=groups_from_shares(CLIENTS, (2.0,)),
        num_rounds=ROUNDS,
        sampling_rate=0.5,
        clipping_norm=1.0,
        delta=DELTA,
        adjacency=adjacency,
    )
    transcript = _transcript(plan, adjacency)
    (group,) = plan.groups
    return {
        "name": f"scores of samples, {adjacency}",
        "given": {
            "adjacency": adjacency,
            "sampling_rate": group.sampling_rate,
            "noise_stddev": group.noise_stddev,
            "clipping_norm": group.clipping_norm,
            "asked": [list(each) for each in TURNS],
            "projections": _projections(plan),
        },
        "expected": {
            "without_knowing_cohorts": likelihood_ratio(transcript, ROUNDS).tolist(),
            "knowing_cohorts": known_cohorts(transcript, ROUNDS, len(TURNS[0])).tolist(),
        },
    }


def _projections(plan: PrivacyPlan) -> list[list[float]]:
    return [[value * plan.groups[0].clipping_norm for value in each] for each in SEEN]


def _transcript(plan: PrivacyPlan, adjacency: Any) -> Transcript:
    """Make the transcript of a run: sums with prescribed projections onto the canaries' directions."""
    canaries = Canaries(
        clients=np.arange(CLIENTS),
        groups=np.zeros(CLIENTS, dtype=np.int64),
        present=np.asarray(PRESENT),
        directions=DiracDirections(np.arange(CLIENTS), CLIENTS),
        adjacency=adjacency,
    )
    transcript = Transcript(plan, canaries, np.zeros(CLIENTS, dtype=np.float32))
    projections = np.asarray(_projections(plan))
    for index in range(ROUNDS):
        transcript.sums.append(_sum(plan, index, projections[:, index]))
    return transcript


def _sum(plan: PrivacyPlan, index: int, projections: np.ndarray[Any, np.dtype[np.float64]]) -> RevealedSum:
    asked, stddev = np.asarray([index in each for each in TURNS]), plan.groups[0].noise_stddev
    return RevealedSum(
        round_index=index,
        groups=(0,),
        asked=asked,
        projections=projections,
        noise_stddev=np.full(CLIENTS, stddev),
        name="all",
        clients=tuple(np.flatnonzero(asked).tolist()),
        pure_noise=np.full(CLIENTS, np.nan, dtype=np.float32),
        drawn_stddev=stddev,
    )


def _guesses(guesses: Guesses) -> dict[str, Any]:
    """Return a test case: bounds on epsilon from the number of right guesses about canaries' presence."""
    mus = (0.5, 1.0, 2.0)
    right, tried, coins = guesses.num_correct, guesses.num_guesses, guesses.num_canaries
    return {
        "name": f"guesses: {right} of {tried} right, {coins} coins",
        "given": {
            "canaries": guesses.num_canaries,
            "guesses": guesses.num_guesses,
            "correct": guesses.num_correct,
            "epsilons": list(EPSILONS),
            "delta": DELTA,
            "significance": SIGNIFICANCE,
            "mus": list(mus),
        },
        "expected": {
            "p_values_at_delta_0": [one_run_p_value(guesses, each, 0.0) for each in EPSILONS],
            "p_values_at_delta": [one_run_p_value(guesses, each, DELTA) for each in EPSILONS],
            "epsilon": one_run_epsilon(guesses, DELTA, SIGNIFICANCE),
            "gaussian_of_mu_is_refuted": [refutes(guesses, _gaussian(mu), SIGNIFICANCE) for mu in mus],
            "gaussian_epsilons": [gaussian_epsilon(1 / mu, DELTA) for mu in mus],
        },
    }


def _gaussian(mu: float) -> Any:
    """Return the trade-off function of two Gaussians mu apart: Phi(Phi^-1(1 - x) - mu)."""
    return lambda x: float(ndtr(ndtri(1.0 - x) - mu)) if 0.0 < x < 1.0 else 1.0 - x


def _thresholds() -> dict[str, Any]:
    """Return a test case: scores of 40 canaries, expected guesses, and rates of true and false alarms.

    A guess says whether a canary was in a run. The rates are those of true and of false alarms.
    """
    scores = [round(((7 * number) % 41) / 4 - 5 + (number % 2) * 1.5, 6) for number in range(40)]
    present = np.asarray([number % 2 == 1 for number in range(40)])
    found = alarms_of(np.asarray(scores), present, SIGNIFICANCE)
    return {
        "name": "guesses and alarms of forty scores",
        "given": {"scores": scores, "present": present.tolist(), "significance": SIGNIFICANCE},
        "expected": {
            "guesses": _numbers(guesses_of(np.asarray(scores), present)),
            "alarms": [[each.true, each.false] for each in found],
        },
    }


def _numbers(guesses: Sequence[Guesses]) -> list[list[int]]:
    return [[each.num_guesses, each.num_correct] for each in guesses]
