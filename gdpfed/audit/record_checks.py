"""Check runs that protect records: the plan charges all its steps, and each budget admits them.

Batches are drawn on the clients, whose cohorts are not accounted. So what counts is how many steps a record
pays for, at which batch rate, under which noise: X of them are within its budget, and X + 1 are not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gdpfed.audit.accounting import charges_of, epsilon_after
from gdpfed.audit.rules import rule_of
from gdpfed.audit.run_files import RunFiles

ROUNDING = 1e-9
# Two upper bounds of one figure on different grids.
AGREES_WITHIN = 0.02
# What a plan does not look beyond.
MOST_STEPS = 10_000_000


def steps_in(saved: Sequence[Mapping[str, Any]]) -> int:
    """How many steps of DP-SGD the charges of a file are for."""
    return sum(charge["count"] * charge["event"]["num_steps"] for charge in saved)


def epsilon_of_steps(records: Mapping[str, Any], number: int, steps: int, delta: float) -> float:
    """Epsilon at delta of so many steps for a record of one group, by the rate and noise that it states."""
    own = records["groups"][number]
    event = {
        "kind": "dp_sgd_steps",
        "batch_rate": own["batch_rate"],
        "noise_multiplier": records["noise_multiplier"],
        "num_steps": steps,
    }
    if "bound" in records:
        window = {"bound": records["bound"], "window_steps": records["window_steps"]}
        event |= {"kind": "local_windows", **window}
    return epsilon_after(charges_of([{"event": event, "count": 1}]), delta)


def noise_of_sum(plan: Mapping[str, Any], group: Mapping[str, Any]) -> float:
    """The standard deviation that a sum owes the records of a group; 0 where steps have their own noise."""
    if plan["works"] == ["dp_sgd"]:
        return 0.0
    return float(group["records"]["noise_multiplier"] * group["records"]["clipping_norm"])


def check_record_plan(files: RunFiles) -> Iterator[str]:
    """One line for every contradiction in the plan's entries about records."""
    for index, group in enumerate(files.plan["groups"]):
        records = group["records"]
        yield from _check_groups(files, index, group, records)
        yield from _check_allowed(files, index, group, records)
        yield from _check_noise(files, index, group, records)


def _check_groups(
    files: RunFiles, index: int, group: Mapping[str, Any], records: Mapping[str, Any]
) -> Iterator[str]:
    """The charges of every group of records are those of its rate, the noise and the rounds."""
    if records["groups"][0]["charges"] != group["charges"]:
        yield f"the charges of group {index} are not those of its first group of records"
    if not 1 <= records["most_rounds"] <= files.plan["num_rounds"]:
        yield f"group {index} takes part in {records['most_rounds']} of {files.plan['num_rounds']} rounds"
    shape = [(charge["count"], charge["event"]["num_steps"]) for charge in group["charges"]]
    for number, own in enumerate(records["groups"]):
        said = own["batch_rate"], records["noise_multiplier"]
        events = [charge["event"] for charge in own["charges"]]
        if any((each["batch_rate"], each["noise_multiplier"]) != said for each in events):
            yield (
                f"the charges of group {index}, records {number}, are not those of batch rate "
                f"{own['batch_rate']:.6g} and noise multiplier {records['noise_multiplier']:.6g} in plan.json"
            )
        if [(charge["count"], charge["event"]["num_steps"]) for charge in own["charges"]] != shape:
            yield f"group {index}, records {number}, is charged for other steps than the records beside it"
    rounds = sum(count for count, _ in shape)
    if rounds != records["most_rounds"]:
        yield (
            f"the charges of group {index} are for {rounds} rounds, its clients take part in "
            f"{records['most_rounds']}"
        )
    shares = sum(own["share"] for own in records["groups"])
    if abs(shares - 1.0) > ROUNDING:
        yield f"the groups of records of group {index} share out {shares:.6g} of them"
    budgets = files.config["privacy"]["budgets"]
    for number, own in enumerate(records["groups"]):
        if isinstance(budgets, list) and own["epsilon"] not in budgets:
            yield (
                f"plan.json has a budget of {own['epsilon']:g} for group {index}, records {number}, the "
                f"configuration {budgets}"
            )


def _check_allowed(
    files: RunFiles, index: int, group: Mapping[str, Any], records: Mapping[str, Any]
) -> Iterator[str]:
    """X: all budgets admit so many steps, one of them no more, and no more are charged.

    What is charged is held to the budget exactly, and elsewhere.
    """
    allowed, charged, delta = records["steps_allowed"], steps_in(group["charges"]), files.plan["delta"]
    if charged > allowed:
        yield f"group {index} is charged {charged} steps, of {allowed} that its budgets admit"
    numbers = range(len(records["groups"]))
    for number in numbers:
        budget = records["groups"][number]["epsilon"]
        cost = epsilon_of_steps(records, number, allowed, delta)
        if cost > budget * (1 + AGREES_WITHIN):
            yield (
                f"{allowed} steps are said to be within the budget of {budget:g} of group {index}, records "
                f"{number}, but they cost {cost:.4g}"
            )
    # Steps that follow from elsewhere are those that are taken. Another accountant's bound may end earlier
    # than the losses that are accounted here.
    if rule_of(files).own_bounds or files.plan["accountant"] != "pld" or allowed >= MOST_STEPS:
        return
    more = [epsilon_of_steps(records, number, allowed + 1, delta) for number in numbers]
    budgets = [own["epsilon"] for own in records["groups"]]
    if all(cost * (1 + AGREES_WITHIN) <= budget for cost, budget in zip(more, budgets, strict=True)):
        yield f"{allowed} steps are said to be all that group {index} has budgets for, and these admit more"


def _check_noise(
    files: RunFiles, index: int, group: Mapping[str, Any], records: Mapping[str, Any]
) -> Iterator[str]:
    """The noise that the group states for its sum is that of one record: sigma C."""
    norm = group.get("clipping_norm", files.plan["clipping_norm"])
    stated = group["noise_multiplier"] * norm if group["noise_multiplier"] else 0.0
    owed = noise_of_sum(files.plan, group)
    if abs(stated - owed) > ROUNDING * max(owed, 1.0):
        yield (
            f"plan.json states noise of standard deviation {stated:.6g} for the sum of group {index}, where "
            f"{owed:.6g} hides one of its records"
        )
