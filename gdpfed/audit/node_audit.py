"""A client's own ledger, read by somebody else: did every run that it agreed to fit its budget?"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpfed.audit.accounting import SampledSums, charges_of, composed_epsilon, epsilon_against_server
from gdpfed.errors import AuditError


@dataclass(frozen=True)
class NodeRunAudit:
    """One run in a client's ledger, with all that were begun before it.

    Attributes:
        name: of the run.
        budget, delta: the client's own when the run began.
        epsilon: of this run and all before it, at delta.
        num_rounds: that the client may be sampled in.
        sent: updates that left the client in this run.
        against_server: epsilon at delta of the updates of this run and all before it.
    """

    name: str
    budget: float
    delta: float
    epsilon: float
    num_rounds: int
    sent: int
    against_server: float

    @property
    def within_budget(self) -> bool:
        """Whether the figures are within the budget that the client had when this run began."""
        return self.epsilon <= self.budget


@dataclass(frozen=True)
class NodeAudit:
    """Figures by run, and a line for everything that does not fit together."""

    runs: tuple[NodeRunAudit, ...]
    findings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong and the budget held."""
        return not self.findings and all(run.within_budget for run in self.runs)

    @property
    def held(self) -> tuple[bool, ...]:
        """Whether the budget held at each run: its figures are within it, and the file is sound."""
        return tuple(not self.findings and run.within_budget for run in self.runs)


def audit_node_ledger(path: Path) -> NodeAudit:
    """Audit the ledger file of one node.

    Raises:
        AuditError: it is missing, cannot be read, or is no such ledger.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        body = data["ledger"]
        canonical = json.dumps(body, sort_keys=True).encode()
        intact = data["sha256"] == hashlib.sha256(canonical).hexdigest()
        entries = body["runs"]
        runs = tuple(_run(entries[: end + 1]) for end in range(len(entries)))
        findings = [] if intact else [f"{path} was changed: its checksum is another one"]
        for entry in entries:
            findings += _check_entry(entry)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise AuditError(
            f"{path} cannot be read as a node's ledger: {type(error).__name__}: {error}"
        ) from None
    return NodeAudit(runs, tuple(findings))


def _run(entries: list[dict[str, Any]]) -> NodeRunAudit:
    """The last of these entries, accounted with those before it."""
    last = entries[-1]
    units = {charge["unit"] for entry in entries for charge in _saved_charges(entry["terms"])}
    if len(units) > 1:
        raise ValueError(f"runs charged per {' and per '.join(sorted(units))} cannot be added up")
    runs = [_charges(entry["terms"]) for entry in entries]
    sent = [release for entry in entries for release in _sent(entry)]
    return NodeRunAudit(
        name=last["terms"]["run"],
        budget=last["epsilon"],
        delta=last["delta"],
        epsilon=composed_epsilon(runs, last["delta"], at_most=last["epsilon"]),
        num_rounds=len(_rounds(last["terms"])),
        sent=len(last["rounds"]),
        against_server=epsilon_against_server(sent, last["delta"]),
    )


def _saved_charges(terms: dict[str, Any]) -> list[dict[str, Any]]:
    """The charges of all rounds; terms of ledgers of version 1 have one mechanism for all of them."""
    if "charges" in terms:
        charges: list[dict[str, Any]] = json.loads(terms["charges"])
        return charges
    event = {"kind": "sampled_gaussian", **terms}
    return [{"event": event, "count": terms["num_rounds"], "unit": "client"}]


def _rounds(terms: dict[str, Any]) -> range:
    """The rounds that a client may be sampled in; all of a run where it does not say when it came."""
    num_rounds = sum(charge["count"] for charge in _saved_charges(terms))
    return range(terms.get("first_round", 0), num_rounds)


def _charges(terms: dict[str, Any]) -> list[tuple[SampledSums, int]]:
    """What the rounds cost that a client may be sampled in."""
    kept, position = [], 0
    for charge in _saved_charges(terms):
        start = max(position, terms.get("first_round", 0))
        position += charge["count"]
        if start < position:
            kept.append({**charge, "count": position - start})
    return charges_of(kept)


def _event(terms: dict[str, Any], round_index: int) -> dict[str, Any]:
    """The event of a round; that of the last one for a round that the terms do not have."""
    event: dict[str, Any] = {}
    position = 0
    for charge in _saved_charges(terms):
        event, position = charge["event"], position + charge["count"]
        if round_index < position:
            break
    return event


def _sent(entry: dict[str, Any]) -> list[tuple[SampledSums, int]]:
    """The sums that the server knows this client to be part of, one an update."""
    events = [{**_event(entry["terms"], index), "num_sums": 1} for index in entry["rounds"]]
    return charges_of([{"event": event, "count": 1} for event in events])


def _check_entry(entry: dict[str, Any]) -> list[str]:
    name, charged, rounds = entry["terms"]["run"], _rounds(entry["terms"]), entry["rounds"]
    findings = []
    if any(rounds.count(index) > _event(entry["terms"], index).get("num_sums", 1) for index in rounds):
        findings.append(f"run {name} sent more updates in one round than it was charged for")
    if any(index not in charged for index in rounds):
        findings.append(f"run {name} sent an update in a round that it was not charged for")
    if not entry["terms"]["sums_hidden"]:
        findings.append(f"run {name} showed single updates to the server")
    return findings
