"""What an audit does with a run in a client's own ledger, by the mechanism that its terms name."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gdpfed.audit.accounting import Charges, charges_of, event_in
from gdpfed.audit.mechanisms import NODE_ENTRIES


@dataclass(frozen=True)
class NodeRunAudit:
    """One run in a client's ledger, with all of its unit that were begun before it.

    Attributes:
        name: of the run.
        unit: whose presence it protects.
        budget, delta: the client's own when the run began.
        epsilon: of this run and all before it, at delta.
        num_updates: that the client may send at most.
        sent: updates that left the client in this run.
        against_server: epsilon at delta of the updates of this run and all before it; inf where one of them
            was shown to an edge, by the client's own word.
        record_group: which of the client's records the figures are about; None where they are about it.
        steps: that these records have paid for, and `num_steps` that they may; 0 of a client.
    """

    name: str
    unit: str
    budget: float
    delta: float
    epsilon: float
    num_updates: int
    sent: int
    against_server: float
    record_group: int | None = None
    steps: int = 0
    num_steps: int = 0

    @property
    def within_budget(self) -> bool:
        """Whether the epsilons are within the client's budget at the beginning of this run."""
        return self.epsilon <= self.budget


@dataclass(frozen=True)
class NodeEntry(ABC):
    """One run in a client's ledger. The methods that raise ValueError say that it is no such ledger.

    Attributes:
        protects: whose presence its terms are about.
        has_records: whether they say more about records.
        saved: the entry, as it is in the file.
    """

    protects: ClassVar[str]
    has_records: ClassVar[bool] = False

    saved: Mapping[str, Any]

    def __post_init__(self) -> None:
        units = {charge["unit"] for charge in self.charges}
        if len(units) > 1:
            raise ValueError(f"a run charged per {' and per '.join(sorted(units))} cannot be added up")
        has = "records" in self.terms
        if units != {self.protects} or has != self.has_records:
            raise ValueError(f"a run charged per {str(*units)} that {'has' if has else 'lacks'} records")

    @property
    def terms(self) -> Mapping[str, Any]:
        """What the server has promised, as it is in the file."""
        found: Mapping[str, Any] = self.saved["terms"]
        return found

    @property
    def charges(self) -> list[dict[str, Any]]:
        """The charges of all rounds."""
        charges: list[dict[str, Any]] = json.loads(self.terms["charges"])
        return charges

    @property
    def held_out(self) -> Charges:
        """What a record pays for that is held out: one noised sum of counts, or nothing."""
        return charges_of(json.loads(self.terms.get("held_out", "[]")))

    @property
    @abstractmethod
    def num_rounds(self) -> int:
        """Of the whole run."""

    @property
    def rounds(self) -> range:
        """The rounds, from 0, that the client may be sampled in."""
        return range(self.terms["first_round"], self.num_rounds)

    def event(self, round_index: int) -> Mapping[str, Any]:
        """The event of a round; that of the last one for a round that the terms do not have."""
        return event_in(self.charges, round_index)

    @abstractmethod
    def updates_in(self, round_index: int) -> int:
        """In how many sums of a round the client may be."""

    @property
    def most_updates(self) -> int:
        """Updates in all rounds that the client may be sampled in."""
        return sum(self.updates_in(index) for index in self.rounds)

    @property
    def private_by_itself(self) -> bool:
        """Whether updates are private before they leave the client."""
        return False

    @property
    def trusted(self) -> bool:
        """Whether the client trusts the edge that it talks to."""
        return self.saved["edge_trusted"] is True

    @property
    def shown(self) -> bool:
        """Whether an edge that the client trusts saw single updates."""
        return self.trusted and bool(self.saved["rounds"])

    @abstractmethod
    def planned(self, last: "NodeEntry", group: int) -> Charges:
        """What the run may cost the client, or the records of a group of those that `last` makes."""

    @abstractmethod
    def taken(self, last: "NodeEntry", group: int) -> Charges:
        """What it has cost them against the server, which knows in which rounds the client was."""

    @abstractmethod
    def audits(self, alike: Sequence["NodeEntry"]) -> Iterator[NodeRunAudit]:
        """This run, added up with those that protect the same, of which it is the last."""

    def server_epsilon(self, alike: Sequence["NodeEntry"], figure: float) -> float:
        """A figure against the server, as far as nobody saw single updates."""
        return math.inf if any(each.shown for each in alike) else figure

    def check(self) -> Iterator[str]:
        """One line for every contradiction."""
        name, charged, rounds = self.terms["run"], self.rounds, self.saved["rounds"]
        if any(rounds.count(index) > self.updates_in(index) for index in rounds):
            yield f"run {name} sent more updates in one round than it was charged for"
        if any(index not in charged for index in rounds):
            yield f"run {name} sent an update in a round that it was not charged for"
        if not (self.terms["sums_hidden"] or self.trusted or self.private_by_itself):
            yield f"run {name} showed single updates to the server"


def node_entry(saved: Mapping[str, Any]) -> NodeEntry:
    """An entry of a ledger's file.

    Raises:
        AuditError: terms of a mechanism that there is not.
        KeyError, TypeError, ValueError: it is no such entry.
    """
    return NODE_ENTRIES.get(saved["terms"]["mechanism"])(saved)
