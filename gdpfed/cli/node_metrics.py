"""A node's figures for Prometheus: nothing that its data or a secret sample decides.

In which rounds a node was drawn is such a secret, where epsilon rests on nobody knowing it. So updates, what
holds against the server and the time of a stage are left out there; queries come to every node alike.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gdpfed.cli.node_status import NodeStatus
from gdpfed.clients.messages import ASK, BEGIN, CARRY, END, JOIN, OFFER
from gdpfed.federation.node.journal import DATA, OTHER
from gdpfed.report.exported import Figure

QUERIES = frozenset({JOIN, ASK, CARRY, OFFER, BEGIN, END})


class NodeFigures:
    """The figures of one ledger; its epsilon is computed anew only when it has changed."""

    def __init__(self, ledger: Path, config: Mapping[str, Any]) -> None:
        self._ledger, self._config = ledger, config
        self._known: NodeStatus | None = None

    def read(self) -> Iterator[Figure]:
        """Read the figures; AuditError, NodeConfigError: as `NodeStatus.read`."""
        status = self._known = NodeStatus.read(self._ledger, self._config, self._known)
        own = {"ledger": str(self._ledger)}
        yield Figure("gdpfed_node_ledger_sound", float(status.passed), own)
        for each in status.to_dict()["budgets"]:
            group = "" if each["record_group"] is None else str(each["record_group"])
            about = own | {"protects": each["protects"], "record_group": group}
            yield Figure("gdpfed_node_epsilon_budget", each["budget"], about)
            yield Figure("gdpfed_node_epsilon_spent", each["spent"], about)
            yield Figure("gdpfed_node_epsilon_left", each["left"], about)
        public = status.standing.public_runs
        refused = Counter(
            each.cause
            for each in status.refusals
            if each.cause not in (DATA, OTHER) and (each.asked in QUERIES or each.run in public)
        )
        for cause in sorted(refused):
            yield Figure("gdpfed_node_refusals_total", refused[cause], own | {"cause": cause})
        heard = [time for time in (status.heard, _stage(status)) if time is not None]
        if heard:
            yield Figure("gdpfed_node_last_message_timestamp_seconds", max(heard), own)


def _stage(status: NodeStatus) -> float | None:
    """When the ledger last changed; None where that may be the time of a secret turn."""
    return None if status.standing.sampled else status.changed
