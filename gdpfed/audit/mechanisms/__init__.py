"""The audit's classes, by mechanism: rules for runs, checks of model cards, and entries of node ledgers."""

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
"""Rules by the mechanism that a plan names."""

NODE_ENTRIES: "Registry[type[NodeEntry]]" = Registry(
    "audit of terms",
    "gdpfed.node_entries",
    built_in=by_mechanism("gdpfed.node_entries"),
    error=AuditError,
)
"""Entries in a node's ledger by the mechanism that their terms name."""

AUDIT_CARDS: "Registry[type[MechanismCard]]" = Registry(
    "audit of cards",
    "gdpfed.audit_cards",
    built_in=by_mechanism("gdpfed.audit_cards"),
    error=AuditError,
)
"""What is expected of model cards, by the mechanism that a plan names."""
