"""What an audit does by the mechanism of a run, which its plan names.

The rule of a system lies in its package and imports nothing else of it, so that it shares no code with what
it audits.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import AuditError
from gdpfed.registry import Registry


@dataclass(frozen=True)
class RecordAudit:
    """Records of one budget within the clients of a group.

    Attributes:
        number: of this group of records.
        share: the part of every client's records.
        batch_rate: the chance that a step draws one.
        steps: that one pays for at most, as far as its client took part.
        steps_allowed: the most that the plan says are within all budgets of these clients.
    """

    number: int
    share: float
    batch_rate: float
    steps: int
    steps_allowed: int


@dataclass(frozen=True)
class GroupAudit:
    """One group, or records of one budget in it; infinite figures mean that nothing is promised.

    Attributes:
        group: its index.
        budget: epsilon that it may cost.
        planned: epsilon of all rounds of the plan, computed here.
        spent: epsilon of the charged rounds, computed here.
        recorded: what the run itself has recorded of them; None before its first round.
        against_server: of the client that took part most often, in `most_rounds` rounds.
        against_members: the same against members of its sums, who never see single updates.
        records: which of the clients' records the figures are about; None where they are about clients.
    """

    group: int
    clients: int
    budget: float
    planned: float
    spent: float
    recorded: float | None
    against_server: float
    against_members: float
    most_rounds: int
    records: RecordAudit | None = None

    @property
    def within_budget(self) -> bool:
        """Whether the plan's figures keep the budget, and so every run of it, however it ends."""
        return math.isinf(self.budget) or max(self.planned, self.spent) <= self.budget


class AuditRule:
    """The audit of sums over sampled clients, by charges of the groups; others override what differs.

    Attributes:
        entries: what the groups of a plan of this mechanism have besides.
        own_budgets: whether clients have budgets and noise of their own, in place of the plan's charges,
            rates and noise of sums: `group` and `check` compute their figures.
        own_bounds: whether `check` holds norms and steps of records to what they follow from.
    """

    entries: ClassVar[frozenset[str]] = frozenset()
    own_budgets: ClassVar[bool] = False
    own_bounds: ClassVar[bool] = False

    def free_settings(self, files: RunFiles) -> Collection[str]:
        """Settings of ``privacy`` that the plan does not take over from the configuration."""
        del files
        return ()

    def asked(self, files: RunFiles) -> Mapping[str, Any]:
        """Entries of the plan that the configuration asks for elsewhere than in ``privacy``."""
        del files
        return {}

    def check(self, files: RunFiles) -> Iterator[str]:
        """One line for every contradiction in the entries that only this system's plans have."""
        del files
        yield from ()

    def group(self, files: RunFiles) -> GroupAudit:
        """The figures of the one group of a plan with ``own_budgets``."""
        raise NotImplementedError

    def noise_factor(self, group: Mapping[str, Any], size: int) -> float:
        """How many times its planned noise a sum over so many clients of a group owes."""
        del group, size
        return 1.0


class OfRecords(AuditRule):
    """The audit of steps on records: `gdpfed.audit.record_checks` has what is checked of them."""

    entries = frozenset({"records"})


AUDIT_RULES: Registry[type[AuditRule]] = Registry(
    "audit rule",
    "gdpfed.audit_rules",
    built_in={
        "sampled_sums": "gdpfed.audit.rules:AuditRule",
        "record_sums": "gdpfed.audit.rules:OfRecords",
        "own_spending": "gdpfed.systems.fedpcs.audit.budget_checks:OwnBudgets",
        "subnet_sums": "gdpfed.systems.h2fdp.audit.subnet_checks:Subnets",
        "subnet_steps": "gdpfed.systems.h2fdp.audit.subnet_checks:SubnetsOfRecords",
    },
    error=AuditError,
)
"""Rules by the mechanism that they are about."""


def rule_of(files: RunFiles) -> AuditRule:
    """The rule by which a run is audited.

    Raises:
        AuditError: a mechanism that there is not, or groups that are not of the one that the plan names.
    """
    name = files.plan["mechanism"]
    rule, known = AUDIT_RULES.get(name)(), {"records", "trust", "spending"}
    for index, group in enumerate(files.plan["groups"]):
        if known & set(group) != rule.entries:
            raise AuditError(
                f"plan.json names the mechanism {name}, whose groups have "
                f"{', '.join(sorted(rule.entries)) or 'nothing'} besides, and group {index} has "
                f"{', '.join(sorted(known & set(group))) or 'nothing'}"
            )
    return rule
