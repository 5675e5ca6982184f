"""Paths in a client's own ledger: it pays for each round that it takes part in by a budget of the round's."""

from collections.abc import Iterator
from dataclasses import replace

from gdpfed.audit.accounting import Charges, charges_of
from gdpfed.audit.mechanisms.record_entries import RecordEntry
from gdpfed.audit.node_entries import NodeEntry


class PathEntry(RecordEntry):
    """One step on all records in a round, under Gaussian noise of the client's own."""

    @property
    def most_steps(self) -> int:
        return min(int(self.terms["most_rounds"]), len(self.rounds))

    def planned(self, last: NodeEntry, group: int) -> Charges:
        """What it has cost: a path is held to the budget round by round.

        A record that is replaced moves a sum twice as far as one that is left out: that is half the noise.
        """
        taken = charges_of([{"event": self.event(index), "count": 1} for index in self.saved["rounds"]])
        return [
            (replace(sums, adjacency="zero_out", noise_multiplier=sums.noise_multiplier / sums.distance), n)
            for sums, n in taken
        ]

    def taken(self, last: NodeEntry, group: int) -> Charges:
        return self.planned(last, group) if self.saved["steps"] else []

    def check_charges(self) -> Iterator[str]:
        events = [charge["event"] for charge in self.charges]
        if any(each["kind"] != "gaussian" or each["adjacency"] != "replace_one" for each in events):
            yield (
                f"the path of run {self.terms['run']} is not Gaussian noise under replace_one in every round"
            )
