"""Check a run's rounds: log against ledger, epsilons against costs, clipping norms against the plan."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from gdpfed.audit.known_noise import check_known_noise
from gdpfed.audit.rules import AuditRule, Cohorts, GroupAudit, or_infinite, rule_of
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import ROUNDING, SAME_FIGURE
from gdpfed.audit.unseen_objects import is_of_package
from gdpfed.runs.file_formats import MODEL_FILE

FIGURES = "spent_epsilon", "epsilon_against_server"
"""What a round of the log states for each group."""
MOST_CLIENTS = 2**31
"""A log that counts this many clients or more in one group is damaged."""


def check_rounds(files: RunFiles) -> Iterator[str]:
    """Compare the log of rounds, the ledger and the plan; yield a line for each contradiction."""
    charged, num_rounds = files.ledger["charged_rounds"], files.plan["num_rounds"]
    if not 0 <= charged <= num_rounds:
        yield f"the ledger has {charged} charged rounds, the plan {num_rounds}"
    numbers = [record["round"] for record in files.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"rounds.jsonl has rounds {numbers}, not 1 to {len(numbers)} in order"
    if not charged - 1 <= len(numbers) <= charged:
        yield (
            f"rounds.jsonl has {len(numbers)} rounds, the ledger {charged}: a round is charged before it "
            "runs, so the ledger has as many or one more"
        )
    elif len(numbers) < charged and MODEL_FILE in (files.seal or ()):
        yield f"rounds.jsonl has {len(numbers)} rounds of {charged}, and the run has released its model"
    rule = rule_of(files)
    yield from _check_cohorts(files, rule)
    yield from _check_participations(files, rule)
    for record in files.rounds:
        if (accuracy := record.get("accuracy")) is not None and not 0 <= accuracy <= 1:
            yield f"round {record['round']} has an accuracy of {accuracy}, which is no part of 1"
        yield from _check_sums(files, record, rule)
        yield from check_known_noise(files, record)
    yield from check_norms(files)


def _check_cohorts(files: RunFiles, rule: AuditRule) -> Iterator[str]:
    sizes = np.asarray([record["cohort_sizes"] for record in files.rounds], dtype=np.int64)
    if sizes.size == 0:
        return
    groups = files.plan["groups"]
    if sizes.shape[1:] != (len(groups),):
        yield f"rounds.jsonl has cohorts of {sizes.shape[1:]} groups, the plan has {len(groups)}"
        return
    for record in files.rounds:
        # Nothing, or of each group a number of clients that sent zeros.
        filled = record.get("filled") or []
        if not (
            isinstance(filled, list)
            and len(filled) in (0, len(groups))
            and all(type(each) is int and 0 <= each < MOST_CLIENTS for each in filled)
        ):
            yield f"round {record['round']} says {record['filled']!r} of how many clients of each group fill"
            return
    everybody = [group["clients"] for group in groups]
    reachable = [record.get("reachable") or everybody for record in files.rounds]
    cohorts = Cohorts(
        sizes=sizes,
        reachable=np.asarray([row[: len(groups)] for row in reachable], dtype=np.int64),
        drawn=np.asarray(["round" not in record["failures"] for record in files.rounds], dtype=np.bool_),
        filled=np.asarray(
            [record.get("filled") or [0] * len(groups) for record in files.rounds],
            dtype=np.int64,
        ),
    )
    for index, population in enumerate(everybody):
        there = cohorts.reachable[:, index]
        if np.any(there > population):
            yield f"rounds.jsonl has {there.max()} clients in reach, group {index} has {population}"
        yield from rule.check_cohorts(index, cohorts)


def _check_participations(files: RunFiles, rule: AuditRule) -> Iterator[str]:
    ledger, charged = files.ledger["participations"], files.ledger["charged_rounds"]
    if len(ledger) != len(files.clients):
        yield f"the ledger has {len(ledger)} groups of clients, assignment.json {len(files.clients)}"
        return
    for index, counts in enumerate(ledger):
        ids = np.asarray([int(client) for client in counts], dtype=np.int64)
        for stranger in np.setdiff1d(ids, files.members(index))[:1]:
            yield f"the ledger counts client {stranger} in group {index}, which it is not in"
        for client in counts:
            if client != str(int(client)):
                yield f"the ledger names client {int(client)} {client!r}, and its only name is its number"
        for client, count in counts.items():
            if not 1 <= count <= charged:
                yield f"the ledger counts client {client} in {count} of {charged} charged rounds"
                break
        yield from rule.check_participations(index)
        asked = sum(record["cohort_sizes"][index] for record in files.rounds)
        total = sum(counts.values())
        # The cohort of a round that was charged and has not ended is in the ledger alone.
        most = asked + (len(ids) if charged > len(files.rounds) else 0)
        if not asked <= total <= most:
            yield (
                f"the ledger counts {total} participations in group {index}, rounds.jsonl {asked}: one of "
                "them was changed"
            )


def _check_sums(files: RunFiles, record: dict[str, Any], rule: AuditRule) -> Iterator[str]:
    """Check that a round's sums have no more clients than were asked, and include every group asked."""
    plan = files.plan
    asked, answered = sum(record["cohort_sizes"]) * plan["sums_per_round"], sum(record["survivors"])
    if answered > asked:
        yield f"round {record['round']} has sums over {answered} clients, of {asked} that were asked"
    released = sum(there > 0 for there in record["survivors"])
    if released + len(record["failures"]) > len(record["survivors"]) > 0:
        yield (
            f"round {record['round']} names {len(record['failures'])} failures beside {released} sums that "
            f"came, of {len(record['survivors'])}"
        )
    if not plan["private"]:
        return
    in_sums = {index for groups in record["groups_in_sums"] for index in groups}
    for index, size in enumerate(record["cohort_sizes"]):
        if size and in_sums and index not in in_sums:
            whose = f"{size} clients of group {index}"
            yield f"round {record['round']} asked {whose}, which is in none of its sums"
    yield from _check_noise(files, record, rule)


def _check_noise(files: RunFiles, record: dict[str, Any], rule: AuditRule) -> Iterator[str]:
    """Check that a round's sums have the planned noise, and that no group is in more sums than planned."""
    plan = files.plan
    planned = [
        rule.planned_noise(index, record["round"], size)
        for index, (_, size) in enumerate(zip(plan["groups"], record["cohort_sizes"], strict=True))
    ]
    for index, noise in enumerate(planned):
        # Clients with noise of their own may be read one by one.
        often = sum(groups.count(index) for groups in record["groups_in_sums"])
        if noise and often > plan["sums_per_round"]:
            yield (
                f"round {record['round']} has group {index} in {often} sums, of {plan['sums_per_round']} "
                "that its clients pay for"
            )
    sums = zip(record["noise_stddevs"], record["groups_in_sums"], strict=True)
    for number, (carried, groups) in enumerate(sums):
        # A sum over several groups owes each of them its noise.
        need = max((planned[index] for index in groups), default=0.0)
        if carried < need * (1 - ROUNDING) or carried > need * (1 + ROUNDING) > 0:
            yield (
                f"round {record['round']} asked sum {number} for noise of standard deviation {carried:.6g}, "
                f"{'below' if carried < need else 'above'} the plan's {need:.6g}"
            )
        there, most = record["survivors"][number], sum(record["cohort_sizes"][index] for index in groups)
        if there > most:
            yield f"round {record['round']} has {there} clients in sum {number}, of {most} that were asked"


WORKS = {
    "client": ("update", "noised_update", "held_out_rates", "client_statistics"),
    "record": (
        *("dp_sgd", "noised_update", "gradient_sum", "convex_steps", "window_steps"),
        "record_statistics",
    ),
}


def check_figures(files: RunFiles) -> Iterator[str]:
    """Recompute the privacy numbers that plan and rounds state; yield a line for each that differs."""
    plan, rule = files.plan, rule_of(files)
    if rule.noised != plan["private"]:
        said = "private" if plan["private"] else "without a promise"
        noise = "with" if rule.noised else "without"
        yield f"plan.json calls the run {said}, and its charges are {noise} noise"
    for work in plan["works"]:
        known = work in WORKS[plan["unit"]] or (plan["unit"] == "client" and is_of_package(work))
        if plan["private"] and not known:
            yield f"plan.json has the local work {work}, which no plan that protects a {plan['unit']} has"
    # Whole orders for discrete noise, and for rdp where asked or with the paper's rates; else fine ones.
    privacy, orders = files.config["privacy"], "whole"
    if privacy["noise"] != "discrete_gaussian":
        asked, by_paper = privacy["renyi_orders"], privacy["sampling_rates"] == "paper"
        whole = asked == "whole" or (asked == "auto" and by_paper)
        orders = "whole" if whole and privacy["accountant"] == "rdp" else "fine"
    if plan["private"] and plan["renyi_orders"] != orders:
        yield f"plan.json has Renyi orders {plan['renyi_orders']}, the configuration {orders}"
    indices = range(len(plan["groups"]))
    for index in indices if plan["private"] else ():
        yield from rule.check_figures(index)
    yield from _check_lengths(files)
    for index in indices:
        yield from _check_falls(files, index)
        if plan["private"]:
            yield from rule.check_log(index)


def _check_lengths(files: RunFiles) -> Iterator[str]:
    """Check that every round states epsilon of each group, and of no others."""
    num_groups = len(files.plan["groups"])
    for key in FIGURES:
        for record in files.rounds:
            if (stated := len(record[key])) != num_groups:
                yield f"round {record['round']} has {key} of {stated} groups, and there are {num_groups}"
                break


def _check_falls(files: RunFiles, index: int) -> Iterator[str]:
    """Check that epsilon never falls from round to round."""
    for key in FIGURES:
        figures = [or_infinite(each[key][index]) for each in files.rounds]
        for number, (before, after) in enumerate(pairwise(figures), start=1):
            if after < before * (1 - SAME_FIGURE):
                fall = f"from {before:.4g} to {after:.4g} in round {number + 1}"
                yield f"{key} of group {index} falls {fall}"


def check_budgets(files: RunFiles, groups: tuple[GroupAudit, ...]) -> Iterator[str]:
    """Check that each group is within its budget, and that recorded epsilons agree with recomputed ones."""
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


def check_norms(files: RunFiles) -> Iterator[str]:
    """Check that adaptive clipping norms follow from the released fractions of updates within the norm.

    C(1) is the configured norm, and C(t + 1) = C(t) exp(- eta (b(t) - gamma)) with the fraction b(t) that the
    sum of round t released; without one C stays.
    """
    privacy, adaptive = files.config["privacy"], files.plan.get("adaptive_clipping")
    # Older runs, whose norms were all fixed, have no such setting.
    asked = privacy.get("clipping", "fixed")
    if (asked == "adaptive") != (adaptive is not None):
        yield f"the configuration has clipping {asked}, plan.json {'adaptive' if adaptive else 'fixed'}"
    elif adaptive is None:
        for record in files.rounds:
            if any(record.get(key) is not None for key in ("clipping_norm", "fraction_within")):
                yield f"round {record['round']} has a clipping norm of its own, and the run has a fixed one"
    else:
        yield from _check_adaptive_plan(privacy, files.plan, adaptive)
        expected = privacy["clipping_norm"]
        for record in files.rounds:
            recorded, fraction = record.get("clipping_norm"), record.get("fraction_within")
            if recorded is None and "round" in record["failures"]:
                continue
            if recorded is None or not math.isclose(recorded, expected, rel_tol=SAME_FIGURE):
                yield (
                    f"round {record['round']} has clipping norm {recorded}, where {expected:.6g} follows "
                    "from what was released before"
                )
                return
            if fraction is not None:
                rate, quantile = privacy["clipping_learning_rate"], privacy["clipping_quantile"]
                expected *= math.exp(-rate * (fraction - quantile))


def _check_adaptive_plan(
    privacy: dict[str, Any], plan: dict[str, Any], adaptive: dict[str, Any]
) -> Iterator[str]:
    """Check that the plan's adaptive clipping has the configured settings and noise."""
    for key in ("quantile", "learning_rate"):
        if adaptive[key] != privacy[f"clipping_{key}"]:
            yield f"plan.json has a clipping {key} {adaptive[key]}, the configuration another"
    # Contributions B_m and the updates in them, C_m, added up over a round's cohort.
    norms = [group["charges"][0]["event"]["clipping_norm"] for group in plan["groups"]]
    contributed = math.fsum(
        each["expected_cohort_size"] * norm for each, norm in zip(plan["groups"], norms, strict=True)
    )
    updates = contributed * math.sqrt(1 - adaptive["indicator_share"] ** 2)
    mean = math.fsum(group["expected_cohort_size"] for group in plan["groups"])
    stddev = max(group["charges"][0]["event"]["noise_stddev"] for group in plan["groups"])
    noise = stddev / (2 * adaptive["indicator_share"] * contributed)
    if not math.isclose(noise, privacy["clipping_noise"], rel_tol=SAME_FIGURE):
        yield (
            f"plan.json gives the fraction within the norms noise of standard deviation {noise:.4g}, "
            f"the configuration {privacy['clipping_noise']:g}"
        )
    if len(norms) == 1 and not math.isclose(updates / mean, plan["clipping_norm"], rel_tol=SAME_FIGURE):
        yield (
            f"plan.json has updates of norm {updates / mean:.6g}, the configuration {plan['clipping_norm']:g}"
        )
