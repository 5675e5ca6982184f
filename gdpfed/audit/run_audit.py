"""The audit of a run: it recomputes the run's epsilons from ledger and plan, and compares all files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gdpfed.audit.card_checks import check_card, unnamed_on_card
from gdpfed.audit.card_results import check_chance
from gdpfed.audit.entries import check_entries
from gdpfed.audit.model_checks import check_model
from gdpfed.audit.once_checks import check_once
from gdpfed.audit.plan_checks import check_plan
from gdpfed.audit.round_checks import check_budgets, check_figures, check_rounds
from gdpfed.audit.rules import GroupAudit, rule_of
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.seal_checks import check_seal, digest_of_seal
from gdpfed.audit.unseen_objects import not_computed
from gdpfed.errors import AuditError, kind_and_words
from gdpfed.registry import Registry

AUDIT_CHECKS: "Registry[Callable[[Path, RunFiles], Iterator[str]]]" = Registry(
    "check of an audit", "gdpfed.audit_checks", error=AuditError
)
"""Checks of the additional files of single methods, by method name; each yields lines for contradictions."""


@dataclass(frozen=True)
class RunAudit:
    """The result of a run's audit: numbers by group, contradictions between files, and a hash over all files.

    `not_computed`: a line for each thing of which the run's files say nothing, as data that a program gave.
    """

    private: bool
    delta: float
    charged_rounds: int
    num_rounds: int
    groups: tuple[GroupAudit, ...]
    findings: tuple[str, ...]
    seal: str | None = None
    record_is: str = "record"
    not_computed: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the audit found no contradiction and every budget was kept."""
        return not self.findings and all(group.within_budget for group in self.groups)

    @property
    def held(self) -> tuple[bool, ...]:
        """For each client group, whether its budget was kept; all false if files contradict each other."""
        return tuple(not self.findings and group.within_budget for group in self.groups)


def audit_run(directory: Path | str) -> RunAudit:
    """Audit a run directory, of a finished or an unfinished run.

    Raises AuditError: files that are missing, cannot be read, or lack what every run writes.
    """
    directory = Path(directory)
    files = RunFiles.read(directory)
    try:
        rule = rule_of(files)
        rule.refuse_other_events()
        groups = tuple(rule.groups())
        findings = [
            *check_seal(directory, files, rule.sealed),
            *check_entries(files),
            *check_plan(files),
            *check_rounds(files),
            *check_figures(files),
            *check_once(files),
            *check_chance(files),
            *check_budgets(files, groups),
            *check_card(files),
            *check_model(directory, files),
        ]
        method = files.config["method"]["name"]
        if method in AUDIT_CHECKS.names():
            findings += AUDIT_CHECKS.get(method)(directory, files)
        return RunAudit(
            private=files.plan["private"],
            delta=files.plan["delta"],
            charged_rounds=files.ledger["charged_rounds"],
            num_rounds=files.plan["num_rounds"],
            groups=groups,
            findings=tuple(findings),
            seal=digest_of_seal(directory),
            record_is=files.plan.get("record_is", "record"),
            not_computed=(*not_computed(files.config, files.plan), *unnamed_on_card(files)),
        )
    except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        reason = kind_and_words(error)
        raise AuditError(
            f"the files of {directory} lack entries or have wrong ones ({reason}): restore them from a copy"
        ) from None
