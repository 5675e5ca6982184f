"""Registries of the audit's classes by privacy mechanism: for runs, for model cards, for node ledgers."""

from typing import TYPE_CHECKING

from gdpfed.errors import AuditError
from gdpfed.mechanism_table import by_mechanism
from gdpfed.registry import Registry

if TYPE_CHECKING:
    from gdpfed.audit.mechanism_card import MechanismCard
    from gdpfed.audit.node_audit import NodeEntry
    from gdpfed.audit.rules import AuditRule

AUDIT_RULES: "Registry[type[AuditRule]]" = Registry(
    "audit rule",
    "gdpfed.audit_rules",
    built_in=by_mechanism("gdpfed.audit_rules"),
    error=AuditError,
)
"""Classes that audit runs, by the privacy mechanism named in the run's plan."""

NODE_ENTRIES: "Registry[type[NodeEntry]]" = Registry(
    "audit of terms",
    "gdpfed.node_entries",
    built_in=by_mechanism("gdpfed.node_entries"),
    error=AuditError,
)
"""Classes that audit a run's entry in a node's ledger, by the privacy mechanism of the run."""

AUDIT_CARDS: "Registry[type[MechanismCard]]" = Registry(
    "audit of cards",
    "gdpfed.audit_cards",
    built_in=by_mechanism("gdpfed.audit_cards"),
    error=AuditError,
)
"""Classes that check model cards, by the privacy mechanism named in the run's plan."""
