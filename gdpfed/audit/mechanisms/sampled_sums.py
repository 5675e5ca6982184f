"""Audit of noised sums over sampled clients: do cohort sizes fit the planned sampling rates?

In a client's own ledger all rounds cost it, taken or not.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from gdpfed.audit.accounting import (
    Charges,
    charges_of,
    composed_epsilon,
    epsilon_against_server,
    event_in,
    less_noise,
    rounds_of,
)
from gdpfed.audit.known_noise import part_left
from gdpfed.audit.mechanisms.charged_groups import ChargedGroups
from gdpfed.audit.mechanisms.filled_cohorts import check_filled, counts_on_secret_draws
from gdpfed.audit.node_audit import NodeEntry, NodeRunAudit
from gdpfed.audit.rules import Cohorts, GroupAudit, or_infinite
from gdpfed.audit.tolerances import ROUNDING

# An honest run draws a cohort this unlikely, or all its cohorts together, less than once in a million runs.
UNLIKELY = 1e-6
QUANTILE = 0.99


class SampledSumsRule(ChargedGroups):
    """Audits groups of sampled clients; each client pays for every round, whether it is sampled or not."""

    kinds = frozenset({"sampled_gaussian"})

    @property
    def in_clear(self) -> bool:
        return not self.plan["sums_hidden"]

    def cost(self, index: int, rounds: int, noise_left: float = 1.0) -> float:
        """Return epsilon if each round had `noise_left` times the lowest noise of the plan."""
        charges = charges_of(self.plan["groups"][index]["charges"])
        least = min((sums for sums, _ in charges), key=lambda sums: sums.noise_multiplier)
        paid = less_noise([(least, rounds)], noise_left)
        return epsilon_against_server([*self.paid_first, *paid], self.plan["delta"])

    def groups(self) -> Iterator[GroupAudit]:
        rounds, ledger = self.files.rounds, self.files.ledger
        for index, group in enumerate(self.plan["groups"]):
            budget, most = or_infinite(group["epsilon"]), self.most_often(index)
            yield GroupAudit(
                group=index,
                clients=group["clients"],
                budget=budget,
                planned=self.figure(charges_of(group["charges"]), at_most=budget),
                spent=self.figure(charges_of(ledger["charges"][index]), at_most=budget),
                recorded=or_infinite(rounds[-1]["spent_epsilon"][index]) if rounds else None,
                against_server=self.cost_to_server(index, most),
                against_members=self.cost(index, most, part_left(self.files, index)),
                most_rounds=most,
            )

    def check_plan(self) -> Iterator[str]:
        """Check that the groups' sampling rates are those that the configuration gives, or have its mean.

        Cohorts of a fixed size are whole numbers. Rates of an allocation follow from the lengths of blocks.
        """
        yield from super().check_plan()
        plan, groups = self.plan, self.plan["groups"]
        if plan["sampling"] not in ("poisson", "fixed_size"):
            return
        fixed, rates = plan["sampling"] == "fixed_size", [group["sampling_rate"] for group in groups]
        given = self.files.config["privacy"]["sampling_rates"]
        if isinstance(given, list) and plan["private"]:
            for index, (group, rate, asked) in enumerate(zip(groups, rates, given, strict=True)):
                if abs(rate - asked) > (1 / group["clients"] if fixed else ROUNDING * asked):
                    yield f"plan.json has sampling rate {rate} of group {index}, the configuration {asked}"
            return
        sampled = math.fsum(group["clients"] * rate for group, rate in zip(groups, rates, strict=True))
        stated = plan["sampling_rate"] * sum(group["clients"] for group in groups)
        if abs(sampled - stated) > (len(groups) if fixed else ROUNDING * stated):
            yield (
                f"plan.json has sampling_rate {plan['sampling_rate']:.6g}, which asks for {stated:.6g} "
                f"clients a round, and the rates of its groups for {sampled:.6g}"
            )

    def check_charges(self, index: int) -> Iterator[str]:
        plan, group = self.plan, self.plan["groups"][index]
        rounds = sum(charge["count"] * rounds_of(charge["event"]) for charge in group["charges"])
        if rounds != plan["num_rounds"]:
            yield f"the charges of group {index} are for {rounds} rounds, the plan has {plan['num_rounds']}"
        (first, _), *_ = charges_of(group["charges"])
        stated = group["noise_multiplier"] / plan["sums_per_round"] ** 0.5
        odd = abs(first.noise_multiplier - stated) > ROUNDING * max(stated, 1.0)
        if odd or first.sampling_rate != group["sampling_rate"] or first.group_size != group["clients"]:
            yield f"the charges of group {index} are not those of its rate, size and noise in plan.json"

    def exact(self, index: int) -> dict[str, float]:
        events = [charge["event"] for charge in self.plan["groups"][index]["charges"]]
        exact = {**super().exact(index), "clipping_norm": events[0]["clipping_norm"]}
        rates = {event["sampling_rate"] for event in events}
        if len(rates) == 1:
            quantile = stats.binom.ppf(QUANTILE, self.plan["num_rounds"], rates.pop())
            exact["participations_p99"] = float(quantile)
        return exact

    def check_cohorts(self, index: int, cohorts: Cohorts) -> Iterator[str]:
        numbers = range(len(cohorts.sizes))
        rates = np.asarray([self._rate(index, number) for number in numbers])
        for rate in np.unique(rates):
            yield from self._check_rate(index, float(rate), rates == rate, cohorts)
        if secagg := self.files.config.get("secagg"):
            yield from check_filled(self.plan, secagg, index, cohorts)

    def _rate(self, index: int, round_index: int) -> float:
        return float(event_in(self.plan["groups"][index]["charges"], round_index)["sampling_rate"])

    def _check_rate(
        self, index: int, rate: float, at_rate: npt.NDArray[np.bool_], cohorts: Cohorts
    ) -> Iterator[str]:
        """Check whether a group's cohort sizes are plausible, over the rounds with one sampling rate."""
        population = self.plan["groups"][index]["clients"]
        sizes = cohorts.sizes[:, index] - cohorts.filled[:, index]
        there = cohorts.reachable[:, index]
        if self.plan["sampling"] == "fixed_size":
            wrong = np.flatnonzero(at_rate & (sizes != round(rate * population)))
            secret = self.plan["private"] and rate < 1
            for at in np.flatnonzero(at_rate & cohorts.drawn & (there < population) & secret)[:1]:
                yield (
                    f"round {at + 1} was drawn while {there[at]} of {population} clients of group {index} "
                    "could be reached: how many of a cohort of a fixed size answer tells who was drawn"
                )
        else:
            counted = cohorts.drawn & at_rate
            chance = np.where(counted, _two_sided(sizes, there, rate), 1.0)
            wrong = np.flatnonzero(chance < UNLIKELY / cohorts.sizes.size)
            total, trials = (each[counted].sum(keepdims=True) for each in (sizes, there))
            if _two_sided(total, trials, rate)[0] < UNLIKELY / len(self.plan["groups"]):
                yield (
                    f"group {index} was asked {total[0]} times in {counted.sum()} rounds; at rate {rate:.4g} "
                    f"of {population} clients about {rate * trials[0]:.0f} are to be expected"
                )
        for at in wrong[:1]:
            yield (
                f"round {at + 1} has a cohort of {sizes[at]} in group {index}, not to be expected at "
                f"rate {rate:.4g} of {population} clients"
            )

    def check_participations(self, index: int) -> Iterator[str]:
        """Check that no client of a group took part more often than random sampling makes plausible.

        P(K >= k) is that of a binomial K at the mean rate, which is not below that of different rates for a k
        above the mean + 1 (Hoeffding, "On the Distribution of the Number of Successes in Independent
        Trials", 1956, Theorem 4). A client that was out of reach was drawn in fewer rounds, and never in
        more. In a round that others filled, each client in reach was asked with the same chance: the part of
        them that was.
        """
        charged, counts = self.files.ledger["charged_rounds"], self.files.ledger["participations"][index]
        if not counts:
            return
        client = max(counts, key=lambda each: counts[each])
        expected = sum(self._chance(index, number) for number in range(charged))
        everybody = sum(group["clients"] for group in self.plan["groups"])
        chance = stats.binom.sf(counts[client] - 1, charged, min(1.0, expected / max(charged, 1)))
        if counts[client] > expected and chance < UNLIKELY / everybody:
            yield (
                f"the ledger counts client {client} of group {index} in {counts[client]} of {charged} "
                f"charged rounds; at the rates of its group about {expected:.3g} are to be expected"
            )

    def _chance(self, index: int, number: int) -> float:
        """Return an upper bound on the probability with which a round asked a client of this group."""
        rate, rounds = self._rate(index, number), self.files.rounds
        if self.plan["sampling"] == "fixed_size":
            size = int(self.plan["groups"][index]["clients"])
            return round(rate * size) / size
        if not counts_on_secret_draws(self.plan):
            return rate
        if number >= len(rounds) or "round" in rounds[number]["failures"]:
            # An interrupted round may have been filled; how far is forgotten.
            return 1.0
        record = rounds[number]
        if not record.get("filled"):
            return rate
        asked, there = float(record["cohort_sizes"][index]), float(record["reachable"][index])
        return max(rate, min(1.0, asked / max(1.0, there)))

    def planned_noise(self, index: int, round_number: int, size: int) -> float:
        return float(event_in(self.plan["groups"][index]["charges"], round_number - 1)["noise_stddev"])


def _two_sided(
    sizes: npt.NDArray[np.int64], trials: npt.NDArray[np.int64], rate: float
) -> npt.NDArray[np.float64]:
    """Return two-sided tail probabilities (p-values) of cohort sizes under Binomial(trials, rate)."""
    low = stats.binom.cdf(sizes, trials, rate)
    high = stats.binom.sf(sizes - 1, trials, rate)
    return np.asarray(2 * np.minimum(low, high), dtype=np.float64)


class SumEntry(NodeEntry):
    """A run in a client's ledger that protects the whole client, who pays for every round since joining."""

    protects = "client"
    kinds = frozenset({"sampled_gaussian"})

    @property
    def num_rounds(self) -> int:
        return sum(charge["count"] for charge in self.charges)

    def updates_in(self, round_index: int) -> int:
        return int(self.event(round_index).get("num_sums", 1))

    def planned(self, last: NodeEntry, group: int) -> Charges:
        kept, position = [], 0
        for charge in self.charges:
            start = max(position, self.terms["first_round"])
            position += charge["count"]
            if start < position:
                kept.append({**charge, "count": position - start})
        return charges_of(kept)

    def taken(self, last: NodeEntry, group: int) -> Charges:
        """Return the noised sums to which this client contributed a real update rather than zeros.

        Those that it filled with zeros hold none.
        """
        drawn = Counter(self.saved["rounds"]) - Counter(self.saved.get("filled", ()))
        events = [{**self.event(index), "num_sums": 1} for index in drawn.elements()]
        return charges_of([{"event": event, "count": 1} for event in events])

    def audits(self, alike: Sequence[NodeEntry]) -> Iterator[NodeRunAudit]:
        saved = self.saved
        budget, delta = saved["epsilons"][0], saved["delta"]
        runs = [[*each.paid_first, *each.planned(self, 0)] for each in alike]
        sent = [release for each in alike for release in (*each.first_sent, *each.taken(self, 0))]
        yield NodeRunAudit(
            name=self.terms["run"],
            unit=self.protects,
            budget=budget,
            delta=delta,
            epsilon=composed_epsilon(runs, delta, at_most=budget),
            num_updates=self.most_updates,
            sent=len(saved["rounds"]),
            against_server=self.server_epsilon(alike, epsilon_against_server(sent, delta)),
        )
