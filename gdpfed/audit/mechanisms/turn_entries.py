"""Turns in a client's own ledger: it pays for the turns that it took."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from gdpfed.audit.accounting import Charges, epsilon_against_server
from gdpfed.audit.mechanisms.sampled_sums import SumEntry
from gdpfed.audit.mechanisms.scheduled_sums import as_one_sum
from gdpfed.audit.node_audit import NodeEntry, NodeRunAudit


class TurnEntry(SumEntry):
    """A run that limits how often a client takes part, and how soon again."""

    @property
    def num_rounds(self) -> int:
        return int(self.event(0)["num_rounds"])

    def updates_in(self, round_index: int) -> int:
        return 1

    @property
    def most_updates(self) -> int:
        return int(self.terms["most_turns"])

    def planned(self, last: NodeEntry, group: int) -> Charges:
        """Return what the turns so far have cost: each is checked against the budget before it is taken."""
        event, turns = self.event(0), self.saved["rounds"]
        sigma = event["noise_stddev"] / event["clipping_norm"]
        return as_one_sum(event["taps"], sigma, event["adjacency"], turns, event["num_rounds"])

    def taken(self, last: NodeEntry, group: int) -> Charges:
        return self.planned(last, group)

    def audits(self, alike: Sequence[NodeEntry]) -> Iterator[NodeRunAudit]:
        """Streams of sums add up exactly, whatever later ones depend on; with other runs as all runs do."""
        for audit in super().audits(alike):
            if all(isinstance(each, TurnEntry) for each in alike):
                taken = [release for each in alike for release in (*each.vote, *each.taken(self, 0))]
                yield replace(audit, epsilon=epsilon_against_server(taken, audit.delta))
            else:
                yield audit

    def check(self) -> Iterator[str]:
        yield from super().check()
        name, turns = self.terms["run"], sorted(self.saved["rounds"])
        most, apart = self.terms["most_turns"], self.terms["separation"]
        if len(turns) > most or any(later - turn < apart for turn, later in pairwise(turns)):
            yield f"run {name} had the turns {turns}, and its terms allow {most}, {apart} rounds apart"
        taps, taken_back = self.event(0)["taps"], self.saved.get("taken_back", [])
        for turn, later in taken_back:
            if turn not in turns or not 1 <= later - turn <= len(taps) or taken_back.count([turn, later]) > 1:
                yield f"run {name} took back noise of round {turn} in round {later}, which was not due once"
