"""Check that the values shown to people, in plan and rounds, follow from the charges."""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from scipy import stats

from gdpfed.audit.accounting import charges_of, epsilon_after, epsilon_against_server, first_rounds
from gdpfed.audit.rules import rule_of
from gdpfed.audit.run_files import RunFiles

# Two upper bounds of one figure on different grids.
AGREES_WITHIN = 0.02
# One figure, computed twice by the same formula; files may have it to nine digits.
SAME_FIGURE = 1e-6
OWN_NOISE = ("dp_sgd", "noised_update")
"""Works whose results are private before they leave a client."""
WORKS = {
    "client": ("update", "noised_update"),
    "record": (*OWN_NOISE, "gradient_sum", "convex_steps", "window_steps"),
}
ORDERS = ("fine", "whole")
QUANTILE = 0.99


def check_figures(files: RunFiles) -> Iterator[str]:
    """One line for every value that differs from its second computation."""
    plan, rule = files.plan, rule_of(files)
    noised = rule.own_budgets or any(
        event.get("noise_stddev") or event.get("noise_multiplier")
        for group in plan["groups"]
        for event in (charge["event"] for charge in group["charges"])
    )
    if noised != plan["private"]:
        said = "private" if plan["private"] else "without a promise"
        yield f"plan.json calls the run {said}, and its charges are {'with' if noised else 'without'} noise"
    for work in plan["works"]:
        if plan["private"] and work not in WORKS[plan["unit"]]:
            yield f"plan.json has the local work {work}, which no plan that protects a {plan['unit']} has"
    orders = files.config["privacy"]["renyi_orders"]
    if (orders != "auto" and plan["renyi_orders"] != orders) or plan["renyi_orders"] not in ORDERS:
        yield f"plan.json has Renyi orders {plan['renyi_orders']}, the configuration {orders}"
    for index, group in enumerate(plan["groups"]):
        if plan["private"] and not rule.own_budgets:
            yield from _check_group(files, index, group)
    yield from _check_rounds(files)


def _check_group(files: RunFiles, index: int, group: Mapping[str, Any]) -> Iterator[str]:
    plan, records = files.plan, group.get("records")
    stated = {"clipping_norm": plan["clipping_norm"], **group}
    for key, value in _exact(files, group).items():
        if stated[key] is None or not math.isclose(stated[key], value, rel_tol=SAME_FIGURE):
            yield f"plan.json has {key} {stated[key]} of group {index}, where {value:.6g} follows"
    if records is not None and not rule_of(files).own_bounds:
        asked = files.config["privacy"]["clipping_norm"]
        if records["clipping_norm"] != asked:
            yield f"group {index} clips gradients to {records['clipping_norm']}, and {asked} was configured"
    accounted = epsilon_after(charges_of(group["charges"]), plan["delta"])
    for key, epsilon in {"epsilon_accounted": accounted, **_against(plan, group)}.items():
        if not _agree(plan, group[key], epsilon, above=key == "epsilon_accounted"):
            yield f"plan.json has {key} {group[key]} of group {index}, where {epsilon:.4g} follows"
    for number, own in enumerate(() if records is None else records["groups"]):
        epsilon = epsilon_after(charges_of(own["charges"]), plan["delta"])
        within = own["epsilon_accounted"] <= own["epsilon"] * (1 + SAME_FIGURE)
        if not within or not _agree(plan, own["epsilon_accounted"], epsilon, above=True):
            yield (
                f"plan.json has epsilon_accounted {own['epsilon_accounted']} of group {index}, records "
                f"{number}, where {epsilon:.4g} follows"
            )


def _exact(files: RunFiles, group: Mapping[str, Any]) -> dict[str, float]:
    """Figures of a group that have one value."""
    plan, events = files.plan, [charge["event"] for charge in group["charges"]]
    exact = {"expected_cohort_size": group["clients"] * group["sampling_rate"]}
    if group["noise_multiplier"] is not None:
        exact["noise_variance_multiplier"] = group["noise_multiplier"] ** 2
    if plan["unit"] == "client":
        exact["clipping_norm"] = events[0]["clipping_norm"]
        rates = {event["sampling_rate"] for event in events}
        if len(rates) == 1:
            exact["participations_p99"] = float(stats.binom.ppf(QUANTILE, plan["num_rounds"], rates.pop()))
    elif not rule_of(files).own_bounds:
        exact["participations_p99"] = group["records"]["most_rounds"]
        exact["epsilon_against_members"] = group["records"]["groups"][0]["epsilon_accounted"]
        exact["epsilon_accounted"] = exact["epsilon_against_members"]
        if group["epsilon_against_server"] is not None:
            exact["epsilon_against_server"] = exact["epsilon_against_members"]
        if not isinstance(files.config["privacy"]["sampling_rates"], list):
            exact["sampling_rate"] = plan["sampling_rate"]
    return exact


def _against(plan: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, float]:
    charges, delta, most = group["charges"], plan["delta"], group["participations_p99"]
    if plan["unit"] == "client":
        least = min((sums for sums, _ in charges_of(charges)), key=lambda sums: sums.noise_multiplier)
        members = epsilon_against_server([(least, most)], delta)
        in_clear = not plan["sums_hidden"]
    else:
        members = epsilon_after(first_rounds(charges, most), delta)
        in_clear = not plan["sums_hidden"] and bool(set(plan["works"]) - set(OWN_NOISE))
    return {
        "epsilon_against_members": members,
        "epsilon_against_server": math.inf if in_clear and most else members,
    }


def _agree(plan: Mapping[str, Any], stated: float | None, computed: float, *, above: bool) -> bool:
    """Whether a value equals the computed one; another accountant's bound may be larger."""
    if stated is None or math.isinf(computed):
        return stated is None and math.isinf(computed)
    above = plan["accountant"] != "pld" and (above or plan["unit"] == "record")
    return computed * (1 - AGREES_WITHIN) <= stated and (above or stated <= computed * (1 + AGREES_WITHIN))


def _check_rounds(files: RunFiles) -> Iterator[str]:
    """Check that spent epsilon never falls, and ends at the planned value."""
    plan = files.plan
    for index, group in enumerate(plan["groups"]):
        for key in ("spent_epsilon", "epsilon_against_server"):
            figures = [math.inf if each[key][index] is None else each[key][index] for each in files.rounds]
            for number, (before, after) in enumerate(pairwise(figures), start=1):
                if after < before * (1 - SAME_FIGURE):
                    fall = f"from {before:.4g} to {after:.4g} in round {number + 1}"
                    yield f"{key} of group {index} falls {fall}"
        if not plan["private"] or rule_of(files).own_budgets:
            continue
        last = [each["spent_epsilon"][index] for each in files.rounds[plan["num_rounds"] - 1 :]]
        if not all(math.isclose(each, group["epsilon_accounted"], rel_tol=SAME_FIGURE) for each in last):
            planned = group["epsilon_accounted"]
            yield f"the last round records epsilon {last[0]} of group {index}, and the plan {planned}"
        yield from _check_against_server(files, index, group)


def _check_against_server(files: RunFiles, index: int, group: Mapping[str, Any]) -> Iterator[str]:
    """Every round's figure is that of a client that took part in some of the rounds so far."""
    plan = files.plan
    for record in files.rounds:
        stated = record["epsilon_against_server"][index]
        costs = (
            _against(plan, {**group, "participations_p99": rounds})["epsilon_against_server"]
            for rounds in range(record["round"], -1, -1)
        )
        if not any(_agree(plan, stated, cost, above=False) for cost in costs):
            yield (
                f"round {record['round']} records epsilon {stated} against the server in group {index}, "
                "which no number of rounds costs"
            )
            return
