"""Sums over sampled clients in a client's own ledger: what all rounds cost it, taken or not."""

from collections.abc import Iterator, Sequence

from gdpfed.audit.accounting import Charges, charges_of, composed_epsilon, epsilon_against_server
from gdpfed.audit.node_entries import NodeEntry, NodeRunAudit


class SumEntry(NodeEntry):
    """A run that protects the client, and costs it all rounds from that on in which it came."""

    protects = "client"

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
        """The sums that the server knows this client to be part of, one an update."""
        events = [{**self.event(index), "num_sums": 1} for index in self.saved["rounds"]]
        return charges_of([{"event": event, "count": 1} for event in events])

    def audits(self, alike: Sequence[NodeEntry]) -> Iterator[NodeRunAudit]:
        saved = self.saved
        budget, delta = saved["epsilons"][0], saved["delta"]
        runs = [each.planned(self, 0) for each in alike]
        sent = [release for each in alike for release in each.taken(self, 0)]
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
