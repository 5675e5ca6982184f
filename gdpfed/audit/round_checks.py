"""Check that the log of rounds agrees with the ledger, and that its cohorts are plausible."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gdpfed.audit.norm_checks import check_norms
from gdpfed.audit.rules import ROUNDING, AuditRule, Cohorts, rule_of
from gdpfed.audit.run_files import RunFiles


def check_rounds(files: RunFiles) -> Iterator[str]:
    """Record, ledger and plan: a line for every contradiction."""
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
    rule = rule_of(files)
    yield from _check_cohorts(files, rule)
    yield from _check_participations(files, rule)
    for record in files.rounds:
        yield from _check_sums(files, record, rule)
    yield from check_norms(files)


def _check_cohorts(files: RunFiles, rule: AuditRule) -> Iterator[str]:
    sizes = np.asarray([record["cohort_sizes"] for record in files.rounds], dtype=np.int64)
    if sizes.size == 0:
        return
    groups = files.plan["groups"]
    if sizes.shape[1:] != (len(groups),):
        yield f"rounds.jsonl has cohorts of {sizes.shape[1:]} groups, the plan has {len(groups)}"
        return
    everybody = [each["clients"] for each in groups]
    reachable = [record.get("reachable") or everybody for record in files.rounds]
    cohorts = Cohorts(
        sizes=sizes,
        reachable=np.asarray([row[: len(groups)] for row in reachable], dtype=np.int64),
        drawn=np.asarray(["round" not in record["failures"] for record in files.rounds]),
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
    """One round's sums: no more clients than were asked, no less noise than was planned."""
    plan = files.plan
    asked, answered = sum(record["cohort_sizes"]) * plan["sums_per_round"], sum(record["survivors"])
    if answered > asked:
        yield f"round {record['round']} has sums over {answered} clients, of {asked} that were asked"
    if not plan["private"]:
        return
    planned = [
        rule.planned_noise(index, record["round"], size)
        for index, (_, size) in enumerate(zip(plan["groups"], record["cohort_sizes"], strict=True))
    ]
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
