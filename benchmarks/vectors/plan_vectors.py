"""Test vectors of privacy plans: budgets, and the noise, sampling rates or schedule planned from them."""

from collections.abc import Iterator, Mapping
from typing import Any

from gdpfed.privacy.correlated_noise import densest_turns, sensitivity
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.mechanisms.scheduled.mechanism import limits_of
from gdpfed.privacy.mechanisms.scheduled.planner import make_scheduled_plan
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_stream
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import groups_from_shares

ABOUT = (
    "Budgets in, noise out. With sampling: the least noise multiplier of each group whose epsilon is within "
    "its budget. With turns: turns, norms and taps as this project chooses them, and what they cost."
)

DELTA = 1e-5
DIGITS = {
    "clients": 360,
    "budgets": [1.0, 3.0, 6.0],
    "rounds": 30,
    "sampling_rate": 0.2,
    "clipping_norm": 0.5,
}
FMNIST = {
    "clients": 6000,
    "budgets": [0.5, 1.5, 3.0],
    "rounds": 50,
    "sampling_rate": 0.02,
    "clipping_norm": 1.5,
}
HOG = {"clients": 600, "budgets": [2.0, 6.0, 12.0], "rounds": 30, "sampling_rate": 0.1, "clipping_norm": 1.0}
SMALL = {"clients": 12, "budgets": [2.0, 8.0], "rounds": 6, "sampling_rate": 1.0, "clipping_norm": 2.0}

SAMPLED: Mapping[str, Mapping[str, Any]] = {
    "digits": DIGITS,
    "fmnist": FMNIST,
    "digits, any other update": DIGITS | {"adjacency": "replace_one"},
    "digits, cohorts of fixed size": DIGITS | {"sampling": "fixed_size", "accountant": "rdp"},
    "digits, discrete noise": DIGITS | {"noise": "discrete_gaussian"},
    "everybody in every round": SMALL,
}
TURNS: Mapping[str, Mapping[str, Any]] = {
    "digits": DIGITS | {"num_taps": 1},
    "digits, plain noise": DIGITS | {"num_taps": 0},
    "digits, two taps": DIGITS | {"num_taps": 2},
    "digits, any other update": DIGITS | {"num_taps": 1, "adjacency": "replace_one"},
    "fmnist": FMNIST | {"num_taps": 1},
    "cifar10 as HOG": HOG | {"num_taps": 1},
    "everybody in every round": SMALL | {"num_taps": 1},
}


def plan_cases() -> Iterator[dict[str, Any]]:
    """Yield a test case for every privacy plan: the settings, and the planned noise and cost."""
    for name, asked in SAMPLED.items():
        yield {"name": f"sampled: {name}", **_sampled(asked)}
    for name, asked in TURNS.items():
        yield {"name": f"turns: {name}", **_with_turns(asked)}


def _sampled(asked: Mapping[str, Any]) -> dict[str, Any]:
    options = {key: asked[key] for key in ("adjacency", "sampling", "noise", "accountant") if key in asked}
    plan = make_plan(
        groups=groups_from_shares(asked["clients"], asked["budgets"]),
        num_rounds=asked["rounds"],
        sampling_rate=asked["sampling_rate"],
        clipping_norm=asked["clipping_norm"],
        delta=DELTA,
        **options,
    )
    law = {"adjacency": plan.adjacency, "sampling": plan.mechanism.sampling, "noise": plan.noise}
    groups = [
        {
            "budget": group.epsilon,
            "clients": len(group.clients),
            "sampling_rate": group.sampling_rate,
            "noise_multiplier": group.noise_multiplier,
            "epsilon": group.epsilon_accounted,
            "participations": group.participations_p99,
            "epsilon_against_server": group.epsilon_against_server,
        }
        for group in plan.groups
    ]
    return {
        "given": _given(asked) | law | {"accountant": plan.accountant},
        "expected": {"groups": groups},
    }


def _with_turns(asked: Mapping[str, Any]) -> dict[str, Any]:
    wanted = TurnBudget(
        groups=groups_from_shares(asked["clients"], asked["budgets"]),
        num_rounds=asked["rounds"],
        sampling_rate=asked["sampling_rate"],
        delta=DELTA,
        clipping_norm=asked["clipping_norm"],
        num_taps=asked["num_taps"],
        adjacency=asked.get("adjacency", "zero_out"),
    )
    stream = plan_stream(wanted)
    plan = make_scheduled_plan(wanted, stream)
    return {
        "given": _given(asked) | {"adjacency": plan.adjacency, "num_taps": asked["num_taps"]},
        "expected": {
            "noise_stddev": plan.groups[0].noise_stddev,
            "relative_noise_of_last_model": stream.noise_per_step,
            "groups": _groups_with_turns(plan),
        },
    }


def _groups_with_turns(plan: PrivacyPlan) -> list[dict[str, Any]]:
    return [
        {
            "budget": group.epsilon,
            "clients": len(group.clients),
            "turns": limits.most_turns,
            "separation": limits.separation,
            "taps": list(limits.taps),
            "clipping_norm": group.clipping_norm,
            "noise_multiplier": group.noise_multiplier,
            "sensitivity": sensitivity(
                limits.taps,
                densest_turns(limits.most_turns, limits.separation, plan.num_rounds),
                plan.num_rounds,
            ),
            "epsilon": group.epsilon_accounted,
        }
        for group, limits in zip(plan.groups, limits_of(plan), strict=True)
    ]


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    numbers = ("budgets", "clients", "rounds", "sampling_rate", "clipping_norm")
    return {"delta": DELTA} | {key: asked[key] for key in numbers}
