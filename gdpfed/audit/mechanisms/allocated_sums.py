"""Audit of random allocation: each client takes part in one secret round of each block of rounds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gdpfed.audit.accounting import Charges, charges_of, event_in, rounds_of
from gdpfed.audit.inference import Inference, inference_of
from gdpfed.audit.mechanisms.cards import SampledCard
from gdpfed.audit.mechanisms.sampled_sums import SampledSumsRule, SumEntry
from gdpfed.audit.node_audit import NodeEntry
from gdpfed.audit.rules import Cohorts
from gdpfed.audit.tolerances import ROUNDING


class AllocatedSumsRule(SampledSumsRule):
    """Checks the sums of a run in which each client takes part once in every block of rounds."""

    kinds = frozenset({"allocated_gaussian"})

    @property
    def asked(self) -> Mapping[str, Any]:
        return {"sums_per_round": 1}

    def check_charges(self, index: int) -> Iterator[str]:
        """Check that a group's blocks cover the run, with near-equal lengths and planned rate and noise."""
        plan, group = self.plan, self.plan["groups"][index]
        events = [charge["event"] for charge in group["charges"]]
        rounds = sum(charge["count"] * rounds_of(charge["event"]) for charge in group["charges"])
        lengths = [rounds_of(event) for event in events]
        if rounds != plan["num_rounds"]:
            yield f"the charges of group {index} are for {rounds} rounds, the plan has {plan['num_rounds']}"
        if max(lengths) > min(lengths) + 1:
            yield f"the blocks of group {index} have {max(lengths)} and {min(lengths)} rounds"
        sigmas = {event["noise_stddev"] / event["clipping_norm"] for event in events}
        if any(not math.isclose(sigma, group["noise_multiplier"], rel_tol=ROUNDING) for sigma in sigmas):
            yield f"the charges of group {index} are not those of its noise in plan.json"
        if not math.isclose(group["sampling_rate"] * lengths[0], 1.0, rel_tol=ROUNDING):
            yield f"the charges of group {index} are not those of its rate in plan.json"

    def exact(self, index: int) -> dict[str, float]:
        charges = self.plan["groups"][index]["charges"]
        return {
            **super(SampledSumsRule, self).exact(index),
            "clipping_norm": charges[0]["event"]["clipping_norm"],
            "participations_p99": float(sum(charge["count"] for charge in charges)),
        }

    def _rate(self, index: int, round_index: int) -> float:
        return 1 / rounds_of(event_in(self.plan["groups"][index]["charges"], round_index))

    def check_cohorts(self, index: int, cohorts: Cohorts) -> Iterator[str]:
        """Check the cohort sizes of single rounds and of whole blocks of rounds."""
        yield from super().check_cohorts(index, cohorts)
        yield from self._check_blocks(index, cohorts)
        yield from self._check_small(index, cohorts)

    def _check_blocks(self, index: int, cohorts: Cohorts) -> Iterator[str]:
        """Check that a block's rounds ask each client of a group once; an incomplete block may ask fewer."""
        clients, start = self.plan["groups"][index]["clients"], 0
        for charge in self.plan["groups"][index]["charges"]:
            length = rounds_of(charge["event"])
            for _ in range(charge["count"]):
                rounds = slice(start, start + length)
                start += length
                whole = len(cohorts.sizes[rounds]) == length and cohorts.drawn[rounds].all()
                asked = int(cohorts.sizes[rounds, index].sum())
                everybody = bool(np.all(cohorts.reachable[rounds, index] == clients))
                if (asked > clients) if not (whole and everybody) else (asked != clients):
                    yield (
                        f"the rounds {rounds.start + 1} to {rounds.stop} asked clients of group {index} "
                        f"{asked} times, and each of its {clients} takes part once in them"
                    )
                    return

    def _check_small(self, index: int, cohorts: Cohorts) -> Iterator[str]:
        """Check that no round was skipped for its small cohort: this would reveal who is in other rounds."""
        least = self.files.config.get("secagg", {}).get("minimum_cohort", 0)
        together = slice(None) if self.plan.get("one_sum") else slice(index, index + 1)
        asked, there = (each[:, together].sum(axis=1) for each in (cohorts.sizes, cohorts.reachable))
        secret = [self._rate(index, number) < 1 for number in range(len(asked))]
        for at in np.flatnonzero(cohorts.drawn & (there > 0) & (asked < least) & secret)[:1]:
            yield (
                f"round {at + 1} has a cohort of {asked[at]} in the sum of group {index}, below "
                f"secagg.minimum_cohort={least}: who saw that it was skipped learnt of the other rounds of "
                "its block"
            )

    def check_participations(self, index: int) -> Iterator[str]:
        """Check that no client took part more often than the number of blocks of rounds so far."""
        blocks = sum(charge["count"] for charge in self.files.ledger["charges"][index])
        counts = self.files.ledger["participations"][index]
        for client, times in counts.items():
            if times > blocks:
                yield (
                    f"the ledger counts client {client} of group {index} in {times} rounds, and each takes "
                    f"part once in each of {blocks} blocks"
                )
                return


class AllocatedEntry(SumEntry):
    """A run with random allocation in a client's ledger; the client pays for each block since it joined."""

    kinds = frozenset({"allocated_gaussian"})

    @property
    def num_rounds(self) -> int:
        return sum(charge["count"] * rounds_of(charge["event"]) for charge in self.charges)

    @property
    def most_updates(self) -> int:
        return sum(count for _, count in self.planned(self, 0))

    @property
    def sample_is_secret(self) -> bool:
        return any(rounds_of(charge["event"]) > 1 for charge in self.charges)

    def planned(self, last: NodeEntry, group: int) -> Charges:
        kept, position = [], 0
        for charge in self.charges:
            length = rounds_of(charge["event"])
            passed = min(charge["count"], max(0, self.terms["first_round"] - position) // length)
            position += charge["count"] * length
            if passed < charge["count"]:
                kept.append({**charge, "count": charge["count"] - passed})
        return charges_of(kept)

    def check(self) -> Iterator[str]:
        yield from super().check()
        start = 0
        for charge in self.charges:
            length = rounds_of(charge["event"])
            for _ in range(charge["count"]):
                taken = sum(start <= index < start + length for index in set(self.saved["rounds"]))
                start += length
                if taken > 1:
                    yield (
                        f"run {self.terms['run']} sent {taken} updates in the rounds {start - length} to "
                        f"{start - 1}, in one of which it takes part"
                    )

    def taken(self, last: NodeEntry, group: int) -> Charges:
        return [(_known(self.event(index)), 1) for index in self.saved["rounds"]]


def _known(event: Mapping[str, Any]) -> Any:
    """Return the parameters of a round's noised sum for attackers who know that the client is in it."""
    ((block, _),) = charges_of([{"event": event, "count": 1}])
    return replace(block, sampling_rate=1.0, bound="", window_steps=1)


class AllocatedCard(SampledCard):
    """Checks model cards of runs with random allocation."""

    sections = SampledCard.sections | {"allocated"}

    def of_members(self, index: int) -> Inference | None:
        group = self.plan["groups"][index]
        events: Sequence[Mapping[str, Any]] = [charge["event"] for charge in group["charges"]]
        known = min(map(_known, events), key=lambda each: each.noise_multiplier)
        return inference_of([*self.paid_first, (known, group["participations_p99"])])
