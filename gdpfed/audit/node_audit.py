"""Audit of a client's own ledger: did every run that it accepted fit its budget?

Runs about the client and runs about its records are accounted apart, each against a budget of its own unit.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdpfed.audit.node_entries import NodeEntry, NodeRunAudit, node_entry
from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import AuditError


@dataclass(frozen=True)
class NodeAudit:
    """Values by run, and one line for every contradiction."""

    runs: tuple[NodeRunAudit, ...]
    findings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there is no contradiction and the budget held."""
        return not self.findings and all(run.within_budget for run in self.runs)

    @property
    def held(self) -> tuple[bool, ...]:
        """Whether the budget held at each run: its figures are within it, and the file is sound."""
        return tuple(not self.findings and run.within_budget for run in self.runs)


def audit_node_ledger(path: Path, client: int | None = None, directories: Sequence[Path] = ()) -> NodeAudit:
    """Audit the ledger file of one node.

    Args:
        path: of the ledger.
        client: the number of the node's client in the runs it is compared with; None without any.
        directories: of these runs, all those that the client may have taken part in.

    Raises:
        AuditError: it is missing, cannot be read, or is no such ledger.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        body = data["ledger"]
        canonical = json.dumps(body, sort_keys=True).encode()
        intact = data["sha256"] == hashlib.sha256(canonical).hexdigest()
        entries = [node_entry(each) for each in body["runs"]]
        runs = tuple(run for end in range(len(entries)) for run in _runs(entries[: end + 1]))
        findings = [] if intact else [f"{path} was changed: its checksum is another one"]
        findings += [line for entry in entries for line in entry.check()]
        known = {entry.terms["run"] for entry in entries}
        findings += [each for directory in directories for each in _lacking(known, client, directory)]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise AuditError(
            f"{path} cannot be read as a node's ledger: {type(error).__name__}: {error}"
        ) from None
    return NodeAudit(runs, tuple(findings))


def _lacking(known: Collection[str], client: int | None, directory: Path) -> Iterator[str]:
    """Name a run that has drawn the client and that its ledger lacks, as one that was put back does."""
    files = RunFiles.read(directory)
    rounds = sum(int(group.get(str(client), 0)) for group in files.ledger["participations"])
    if rounds and files.name not in known:
        yield (
            f"run {files.name} in {directory} has drawn client {client} for {rounds} rounds, and this ledger "
            "lacks it"
        )


def _runs(entries: Sequence[NodeEntry]) -> Iterator[NodeRunAudit]:
    """The last of these entries, accounted with those of its unit before it, for each group of records."""
    last = entries[-1]
    return last.audits([each for each in entries if each.protects == last.protects])
