"""The import paths of every privacy mechanism's classes; those of optional ones are in `extras_table`.

A plan, a node's ledger, a report and an audit each find the class that they need here, by the mechanism's
name alone. So the audit shares no code with what it audits, and a node reads terms without the mechanism.
"""

from collections.abc import Mapping

_PRIVACY, _AUDIT = "gdpfed.privacy.mechanisms", "gdpfed.audit.mechanisms"

MECHANISMS: Mapping[str, Mapping[str, str]] = {
    "sampled_sums": {
        "gdpfed.terms": f"{_PRIVACY}.sampled.terms:SumTerms",
        "gdpfed.mechanism_reports": f"{_PRIVACY}.sampled.report:ClientReport",
        "gdpfed.audit_rules": f"{_AUDIT}.sampled_sums:SampledSumsRule",
        "gdpfed.node_entries": f"{_AUDIT}.sampled_sums:SumEntry",
        "gdpfed.audit_cards": f"{_AUDIT}.cards:SampledCard",
    },
    "allocated_sums": {
        "gdpfed.terms": f"{_PRIVACY}.allocated.terms:AllocatedTerms",
        "gdpfed.mechanism_reports": f"{_PRIVACY}.allocated.report:AllocatedReport",
        "gdpfed.audit_rules": f"{_AUDIT}.allocated_sums:AllocatedSumsRule",
        "gdpfed.node_entries": f"{_AUDIT}.allocated_sums:AllocatedEntry",
        "gdpfed.audit_cards": f"{_AUDIT}.allocated_sums:AllocatedCard",
    },
    "scheduled_sums": {
        "gdpfed.terms": f"{_PRIVACY}.scheduled.terms:ScheduledTerms",
        "gdpfed.mechanism_reports": f"{_PRIVACY}.scheduled.report:TurnsReport",
        "gdpfed.audit_rules": f"{_AUDIT}.scheduled_sums:ScheduledSumsRule",
        "gdpfed.node_entries": f"{_AUDIT}.scheduled_sums:TurnEntry",
        "gdpfed.audit_cards": f"{_AUDIT}.cards:TurnsCard",
    },
    "record_sums": {
        "gdpfed.terms": f"{_PRIVACY}.records.terms:StepTerms",
        "gdpfed.mechanism_reports": f"{_PRIVACY}.records.report:RecordReport",
        "gdpfed.audit_rules": f"{_AUDIT}.record_sums:RecordSumsRule",
        "gdpfed.node_entries": f"{_AUDIT}.record_entries:StepEntry",
        "gdpfed.audit_cards": f"{_AUDIT}.cards:StepsCard",
    },
}
"""The import path of every class of a privacy mechanism, by mechanism and then by kind of class."""


def by_mechanism(group: str) -> dict[str, str]:
    """Map each privacy mechanism to the import path of its class of kind `group`, such as "gdpfed.terms"."""
    return {name: places[group] for name, places in MECHANISMS.items()}
