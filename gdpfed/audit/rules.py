"""The base class of audit rules: a subclass for each privacy mechanism says what to check in a run.

The rules of this project's mechanisms are in `gdpfed.audit.mechanisms`. That of a system lies in its package
and imports nothing else of it, so that it shares no code with what it audits.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gdpfed.audit.accounting import Charges, charges_of, first_rounds, paid_first
from gdpfed.audit.event_kinds import check_charges
from gdpfed.audit.mechanisms import AUDIT_RULES
from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import AuditError


@dataclass(frozen=True)
class RecordAudit:
    """Audit results for one group of records: its fraction of the records, batch rate, and DP-SGD steps.

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
class MostSpent:
    """The client with the largest privacy cost in a group: its number, rounds (turns) and epsilon.

    `client`: its number; None where nobody had a turn. `rounds`: its turns, the first round being 1.
    `epsilon`: what they cost.
    """

    client: int | None
    rounds: tuple[int, ...]
    epsilon: float

    @property
    def turns(self) -> list[int]:
        """The rounds in which the client took part, counted from 0."""
        return [number - 1 for number in self.rounds]


@dataclass(frozen=True)
class GroupAudit:
    """An audit's epsilons for a client group, or for its records that share a budget; inf means no guarantee.

    Attributes:
        group: its index.
        budget: epsilon that it may cost.
        planned: epsilon of all rounds of the plan, computed here.
        spent: epsilon of the charged rounds, computed here.
        recorded: what the run itself has recorded of them; None where it records none.
        against_server: of the client that took part most often, in `most_rounds` rounds.
        against_members: the same against members of its sums, who never see single updates.
        records: which of the clients' records the figures are about; None where they are about clients.
        most_spent: None where its turns do not decide what a client pays.
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
    most_spent: MostSpent | None = None

    @property
    def within_budget(self) -> bool:
        """Whether the planned, the spent and each client's epsilon are within the budget."""
        most = 0.0 if self.most_spent is None else self.most_spent.epsilon
        return math.isinf(self.budget) or max(self.planned, self.spent, most) <= self.budget


@dataclass(frozen=True)
class Cohorts:
    """Cohort sizes of all logged rounds, int64: a row for each round, a column for each group.

    `sizes`: how many clients were asked. `reachable`: of how many they were drawn. `drawn`: by round, whether
    it ended: of how many an interrupted one was drawn is forgotten. `filled`: how many of those that were
    asked were not drawn, and filled a sum.
    """

    sizes: npt.NDArray[np.int64]
    reachable: npt.NDArray[np.int64]
    drawn: npt.NDArray[np.bool_]
    filled: npt.NDArray[np.int64]


@dataclass(frozen=True)
class AuditRule(ABC):
    """How to audit runs of one privacy mechanism; each check yields a line for every contradiction.

    `entries`: what the groups of a plan of this mechanism have besides. `kinds`: of the events that they are
    charged for, each in `EVENT_KINDS`; others are refused. `sealed`: files that every run of it leaves
    besides. `files`: of the run.
    """

    entries: ClassVar[frozenset[str]] = frozenset()
    kinds: ClassVar[frozenset[str]] = frozenset()
    sealed: ClassVar[frozenset[str]] = frozenset()

    files: RunFiles

    @property
    def plan(self) -> Mapping[str, Any]:
        """The run's privacy plan (plan.json)."""
        return self.files.plan

    def refuse_other_events(self) -> None:
        """Raise ValueError if a privacy event in plan or ledger has a wrong kind or wrong entries."""
        for group in self.plan["groups"]:
            for own in (group, *group.get("records", {}).get("groups", ())):
                check_charges(own["charges"], self.kinds)
        for charges in self.files.ledger["charges"]:
            check_charges(charges, self.kinds)

    @property
    def paid_first(self) -> Charges:
        """The privacy costs of sums before round 1, such as a vote on settings; empty if there are none."""
        return paid_first(self.plan)

    @property
    def noised(self) -> bool:
        """Whether any release of the run has noise."""
        return any(
            charge["event"].get("noise_stddev") or charge["event"].get("noise_multiplier")
            for group in self.plan["groups"]
            for charge in group["charges"]
        )

    @property
    def asked_budgets(self) -> Any:
        """The setting privacy.budgets; if a list, each group has its entry, or all have the smallest one."""
        return self.files.config["privacy"]["budgets"]

    @property
    def free_settings(self) -> Collection[str]:
        """Settings in the section ``privacy`` that may differ between plan and configuration."""
        return ()

    @property
    def asked(self) -> Mapping[str, Any]:
        """Further plan entries and the values that this mechanism requires for them; empty by default."""
        return {}

    @abstractmethod
    def groups(self) -> Iterator[GroupAudit]:
        """Yield each group's audit result, or one for each budget if the group's records have budgets."""

    def check_ledger(self, index: int) -> Iterator[str]:
        """Check that the ledger's privacy costs for a group equal the plan's costs for the rounds so far."""
        charges, charged = self.plan["groups"][index]["charges"], self.files.ledger["charged_rounds"]
        if charges_of(self.files.ledger["charges"][index]) != first_rounds(charges, charged):
            yield f"the ledger's charges of group {index} are not those of {charged} rounds of the plan"

    def check_charges(self, index: int) -> Iterator[str]:
        """Check that a group's privacy costs follow from the rate, noise and rounds in the plan."""
        yield from ()

    def check_plan(self) -> Iterator[str]:
        """Check the plan's entries that only this privacy mechanism has."""
        yield from ()

    def check_figures(self, index: int) -> Iterator[str]:
        """Check that the numbers stated for a group, such as its noise, follow from its privacy costs."""
        yield from ()

    def check_log(self, index: int) -> Iterator[str]:
        """Check a group's values in the log of rounds against the plan."""
        yield from ()

    def check_recorded(self, group: GroupAudit) -> Iterator[str]:
        """Check a group's recorded epsilons against the recomputed ones."""
        yield from ()

    def check_cohorts(self, index: int, cohorts: Cohorts) -> Iterator[str]:
        """Check a group's cohort sizes; by default, that no round asked more clients than were reachable."""
        sizes, there = cohorts.sizes[:, index], cohorts.reachable[:, index]
        for at in np.flatnonzero(cohorts.drawn & (sizes > there))[:1]:
            yield (
                f"round {at + 1} has a cohort of {sizes[at]} in group {index}, of {there[at]} "
                "clients in reach"
            )

    def check_participations(self, index: int) -> Iterator[str]:
        """Check the ledger's counts of how often each client of a group took part."""
        yield from ()

    def kept_noise(self, index: int) -> float:
        """Return the noise stddev in the sum of all rounds, as a multiple of independent noise; default 1."""
        return 1.0

    def planned_noise(self, index: int, round_number: int, size: int) -> float:
        """Return the noise that a sum over `size` clients must have in a round, as a standard deviation.

        It is 0 where clients have noise of their own: what they send carries it already.
        """
        return 0.0


def rule_of(files: RunFiles) -> AuditRule:
    """Return the audit rule for the privacy mechanism that a run's plan names.

    Raises AuditError: a mechanism that there is not, or groups that are not of the one that the plan names.
    """
    name = files.plan["mechanism"]
    rule, known = AUDIT_RULES.get(name)(files), {"records", "trust", "spending", "turns"}
    for index, group in enumerate(files.plan["groups"]):
        if known & set(group) != rule.entries:
            raise AuditError(
                f"plan.json names the mechanism {name}, whose groups have "
                f"{', '.join(sorted(rule.entries)) or 'nothing'} in addition, and group {index} has "
                f"{', '.join(sorted(known & set(group))) or 'nothing'}: restore plan.json from a copy"
            )
    return rule


def or_infinite(value: float | None) -> float:
    """Return a number read from a file, where None stands for infinity."""
    return math.inf if value is None else float(value)
