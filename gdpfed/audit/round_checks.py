"""Check that the log of rounds agrees with the ledger, and that its cohorts are plausible."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from gdpfed.audit.norm_checks import check_norms
from gdpfed.audit.plan_checks import ROUNDING
from gdpfed.audit.record_checks import noise_of_sum
from gdpfed.audit.rules import AuditRule, rule_of
from gdpfed.audit.run_files import RunFiles

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# An honest run draws a cohort this unlikely, or all its cohorts together, less than once in a million runs.
UNLIKELY = 1e-6


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
    yield from _check_cohorts(files)
    yield from _check_participations(files)
    rule = rule_of(files)
    for record in files.rounds:
        yield from _check_sums(files, record, rule)
    yield from check_norms(files)


def _check_cohorts(files: RunFiles) -> Iterator[str]:
    sizes = np.asarray([record["cohort_sizes"] for record in files.rounds], dtype=np.int64)
    if sizes.size == 0:
        return
    # Of how many the cohort of an interrupted round was drawn is forgotten.
    drawn = np.asarray(["round" not in record["failures"] for record in files.rounds])
    groups = files.plan["groups"]
    if sizes.shape[1:] != (len(groups),):
        yield f"rounds.jsonl has cohorts of {sizes.shape[1:]} groups, the plan has {len(groups)}"
        return
    for index, group in enumerate(groups):
        population, there = group["clients"], _reachable(files, index)
        if np.any(there > population):
            yield f"rounds.jsonl has {there.max()} clients in reach, group {index} has {population}"
        if _any_cohort_will_do(files):
            for at in np.flatnonzero(drawn & (sizes[:, index] > there))[:1]:
                yield (
                    f"round {at + 1} has a cohort of {sizes[at, index]} in group {index}, of {there[at]} "
                    "clients in reach"
                )
            continue
        rates = np.asarray([_event(group, number)["sampling_rate"] for number in range(1, len(sizes) + 1)])
        for rate in np.unique(rates):
            yield from _check_rate(files, index, float(rate), rates == rate, sizes, drawn, there)


def _any_cohort_will_do(files: RunFiles) -> bool:
    """Whether who is drawn hides nothing, and clients stop once their records or budgets are spent."""
    return bool(files.plan["unit"] == "record") or rule_of(files).own_budgets


def _check_rate(
    files: RunFiles, index: int, rate: float, at_rate: Flags, sizes: Counts, drawn: Flags, there: Counts
) -> Iterator[str]:
    """The cohorts of one group in the rounds of one rate."""
    population = files.plan["groups"][index]["clients"]
    if files.plan["sampling"] == "fixed_size":
        wrong = np.flatnonzero(at_rate & (sizes[:, index] != round(rate * population)))
    else:
        counted = drawn & at_rate
        chance = np.where(counted, _two_sided(sizes[:, index], there, rate), 1.0)
        wrong = np.flatnonzero(chance < UNLIKELY / sizes.size)
        total, trials = int(sizes[counted, index].sum()), there[counted].sum()
        if _two_sided(np.asarray([total]), trials, rate)[0] < UNLIKELY / len(files.plan["groups"]):
            yield (
                f"group {index} was asked {total} times in {counted.sum()} rounds; at rate {rate:.4g} of "
                f"{population} clients about {rate * trials:.0f} are to be expected"
            )
    for at in wrong[:1]:
        yield (
            f"round {at + 1} has a cohort of {sizes[at, index]} in group {index}, not to be expected at "
            f"rate {rate:.4g} of {population} clients"
        )


def _reachable(files: RunFiles, group: int) -> Counts:
    """Of how many clients every round's cohort was drawn; all where the record does not say."""
    everybody = [each["clients"] for each in files.plan["groups"]]
    counts = [(record.get("reachable") or everybody)[group] for record in files.rounds]
    return np.asarray(counts, dtype=np.int64)


def _two_sided(sizes: Counts, trials: Counts, rate: float) -> npt.NDArray[np.float64]:
    """Twice the smaller tail probability of Binomial(trials, rate) at every size."""
    low = stats.binom.cdf(sizes, trials, rate)
    high = stats.binom.sf(sizes - 1, trials, rate)
    return np.asarray(2 * np.minimum(low, high), dtype=np.float64)


def _check_participations(files: RunFiles) -> Iterator[str]:
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
        records = files.plan["groups"][index].get("records")
        for client, count in counts.items():
            if records is not None and count > records["most_rounds"]:
                yield (
                    f"the ledger counts client {client} in {count} rounds, and its records pay for "
                    f"{records['most_rounds']}"
                )
                break
        yield from _check_most_often(files, index)
        asked = sum(record["cohort_sizes"][index] for record in files.rounds)
        total = sum(counts.values())
        # The cohort of a round that was charged and has not ended is in the ledger alone.
        most = asked + (len(ids) if charged > len(files.rounds) else 0)
        if not asked <= total <= most:
            yield (
                f"the ledger counts {total} participations in group {index}, rounds.jsonl {asked}: one of "
                "them was changed"
            )


def _check_most_often(files: RunFiles, index: int) -> Iterator[str]:
    """The client that took part most often, against the rates of its group.

    P(K >= k) is that of a binomial K at the mean rate, which is not below that of different rates for a k
    above the mean + 1 (Hoeffding, "On the Distribution of the Number of Successes in Independent Trials",
    1956, Theorem 4). A client that was out of reach was drawn in fewer rounds, and never in more.
    """
    group, charged = files.plan["groups"][index], files.ledger["charged_rounds"]
    counts = files.ledger["participations"][index]
    if _any_cohort_will_do(files) or not counts:
        return
    client = max(counts, key=lambda each: counts[each])
    expected = sum(_event(group, number)["sampling_rate"] for number in range(1, charged + 1))
    everybody = sum(each["clients"] for each in files.plan["groups"])
    chance = stats.binom.sf(counts[client] - 1, charged, min(1.0, expected / max(charged, 1)))
    if counts[client] > expected and chance < UNLIKELY / everybody:
        yield (
            f"the ledger counts client {client} of group {index} in {counts[client]} of {charged} charged "
            f"rounds; at the rates of its group about {expected:.3g} are to be expected"
        )


def _check_sums(files: RunFiles, record: dict[str, Any], rule: AuditRule) -> Iterator[str]:
    """One round's sums: no more clients than were asked, no less noise than was planned."""
    plan = files.plan
    asked, answered = sum(record["cohort_sizes"]) * plan["sums_per_round"], sum(record["survivors"])
    if answered > asked:
        yield f"round {record['round']} has sums over {answered} clients, of {asked} that were asked"
    if not plan["private"]:
        return
    # Where clients have noise of their own, what they send carries it already.
    planned = [
        0.0 if rule.own_budgets else _noise(plan, group, record["round"]) * rule.noise_factor(group, size)
        for group, size in zip(plan["groups"], record["cohort_sizes"], strict=True)
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


def _noise(plan: dict[str, Any], group: dict[str, Any], round_number: int) -> float:
    """The standard deviation of the noise that a sum with clients of a group owes in a round."""
    if plan["unit"] == "record":
        return noise_of_sum(plan, group)
    return float(_event(group, round_number)["noise_stddev"])


def _event(group: dict[str, Any], round_number: int) -> dict[str, Any]:
    """The event charged to a group in a round, counted from 1; the last event for later rounds."""
    event: dict[str, Any] = {}
    last = 0
    for charge in group["charges"]:
        event, last = charge["event"], last + charge["count"]
        if round_number <= last:
            break
    return event
