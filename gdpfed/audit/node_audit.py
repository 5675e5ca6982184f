"""A client's own ledger, read by somebody else: did every run that it agreed to fit its budget?"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpfed.audit.accounting import SampledSums, composed_epsilon, epsilon_against_server
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
    def held(self) -> bool:
        """Whether the client's budget held when this run began."""
        return self.epsilon <= self.budget


@dataclass(frozen=True)
class NodeAudit:
    """Figures by run, and a line for everything that does not fit together."""

    runs: tuple[NodeRunAudit, ...]
    findings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong and the budget held."""
        return not self.findings and all(run.held for run in self.runs)


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
    sums = [_sums(entry["terms"]) for entry in entries]
    charged = [(each, len(_rounds(entry["terms"]))) for each, entry in zip(sums, entries, strict=True)]
    sent = [(each, len(entry["rounds"])) for each, entry in zip(sums, entries, strict=True)]
    return NodeRunAudit(
        name=last["terms"]["run"],
        budget=last["epsilon"],
        delta=last["delta"],
        epsilon=composed_epsilon(charged, last["delta"], at_most=last["epsilon"]),
        num_rounds=len(_rounds(last["terms"])),
        sent=len(last["rounds"]),
        against_server=epsilon_against_server(sent, last["delta"]),
    )


def _rounds(terms: dict[str, Any]) -> range:
    """The rounds that a client may be sampled in; all of a run where it does not say when it came."""
    return range(terms.get("first_round", 0), terms["num_rounds"])


def _sums(terms: dict[str, Any]) -> SampledSums:
    return SampledSums(
        sampling=terms["sampling"],
        sampling_rate=terms["sampling_rate"],
        group_size=terms["group_size"],
        adjacency=terms["adjacency"],
        noise=terms["noise"],
        noise_multiplier=terms["noise_stddev"] / terms["clipping_norm"],
    )


def _check_entry(entry: dict[str, Any]) -> list[str]:
    name, charged, rounds = entry["terms"]["run"], _rounds(entry["terms"]), entry["rounds"]
    findings = []
    if len(set(rounds)) != len(rounds):
        findings.append(f"run {name} sent two updates in one round")
    if any(index not in charged for index in rounds):
        findings.append(f"run {name} sent an update in a round that it was not charged for")
    if not entry["terms"]["sums_hidden"]:
        findings.append(f"run {name} showed single updates to the server")
    return findings
