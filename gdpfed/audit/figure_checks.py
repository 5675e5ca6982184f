"""Check that the values shown to people, in plan and rounds, follow from the charges."""

from collections.abc import Iterator
from itertools import pairwise

from gdpfed.audit.mechanisms.charged_groups import SAME_FIGURE
from gdpfed.audit.rules import GroupAudit, or_infinite, rule_of
from gdpfed.audit.run_files import RunFiles

WORKS = {
    "client": ("update", "noised_update", "held_out_rates"),
    "record": ("dp_sgd", "noised_update", "gradient_sum", "convex_steps", "window_steps"),
}
ORDERS = ("fine", "whole")


def check_figures(files: RunFiles) -> Iterator[str]:
    """One line for every value that differs from its second computation."""
    plan, rule = files.plan, rule_of(files)
    if rule.noised != plan["private"]:
        said = "private" if plan["private"] else "without a promise"
        noise = "with" if rule.noised else "without"
        yield f"plan.json calls the run {said}, and its charges are {noise} noise"
    for work in plan["works"]:
        if plan["private"] and work not in WORKS[plan["unit"]]:
            yield f"plan.json has the local work {work}, which no plan that protects a {plan['unit']} has"
    orders = files.config["privacy"]["renyi_orders"]
    if (orders != "auto" and plan["renyi_orders"] != orders) or plan["renyi_orders"] not in ORDERS:
        yield f"plan.json has Renyi orders {plan['renyi_orders']}, the configuration {orders}"
    indices = range(len(plan["groups"]))
    for index in indices if plan["private"] else ():
        yield from rule.check_figures(index)
    for index in indices:
        yield from _check_falls(files, index)
        if plan["private"]:
            yield from rule.check_log(index)


def _check_falls(files: RunFiles, index: int) -> Iterator[str]:
    """Epsilon never falls from round to round."""
    for key in ("spent_epsilon", "epsilon_against_server"):
        figures = [or_infinite(each[key][index]) for each in files.rounds]
        for number, (before, after) in enumerate(pairwise(figures), start=1):
            if after < before * (1 - SAME_FIGURE):
                fall = f"from {before:.4g} to {after:.4g} in round {number + 1}"
                yield f"{key} of group {index} falls {fall}"


def check_budgets(files: RunFiles, groups: tuple[GroupAudit, ...]) -> Iterator[str]:
    """Every group keeps its budget, and the run has recorded what is computed here."""
    for group in groups:
        if not group.within_budget:
            whose = "" if group.records is None else f", records {group.records.number},"
            yield (
                f"group {group.group}{whose} was planned for a budget of {group.budget:g}, but its "
                f"{files.plan['num_rounds']} rounds cost {group.planned:.4g}"
            )
    for group in groups if files.plan["private"] else ():
        if group.recorded is not None:
            yield from rule_of(files).check_recorded(group)
