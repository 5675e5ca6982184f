"""The base class of audit rules: what an audit checks of a run, by mechanism.

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
from gdpfed.audit.mechanisms import AUDIT_RULES
from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import AuditError

ROUNDING = 1e-9


@dataclass(frozen=True)
class RecordAudit:
    """The audit's figures of one record group: share, batch rate, steps paid for, and steps allowed.

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
    """The client of a group whose turns cost the most, and its turns.

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
    """The audit's epsilons of one client group, or of its records with one budget; inf means no promise.

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
        """Whether planned, spent and every single client's epsilon are within the budget."""
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
    """How to audit runs of one mechanism; each check yields a line for every contradiction.

    `entries`: what the groups of a plan of this mechanism have besides. `sealed`: files that every run of it
    leaves besides. `files`: of the run.
    """

    entries: ClassVar[frozenset[str]] = frozenset()
    sealed: ClassVar[frozenset[str]] = frozenset()

    files: RunFiles

    @property
    def plan(self) -> Mapping[str, Any]:
        """The run's plan."""
        return self.files.plan

    @property
    def paid_first(self) -> Charges:
        """The charges for a vote or a histogram of norms before the first round; empty without either."""
        return paid_first(self.plan)

    @property
    def noised(self) -> bool:
        """Whether any charge of the run has noise."""
        return any(
            charge["event"].get("noise_stddev") or charge["event"].get("noise_multiplier")
            for group in self.plan["groups"]
            for charge in group["charges"]
        )

    @property
    def asked_budgets(self) -> Any:
        """The setting privacy.budgets, to compare with the plan; None if it does not list budgets."""
        return self.files.config["privacy"]["budgets"]

    @property
    def free_settings(self) -> Collection[str]:
        """Settings of ``privacy`` for which the plan may have other values than the configuration."""
        return ()

    @property
    def asked(self) -> Mapping[str, Any]:
        """Plan entries that come from other sections of the configuration than ``privacy``."""
        return {}

    @abstractmethod
    def groups(self) -> Iterator[GroupAudit]:
        """Yield the figures of every group, or of each budget of records in it, in order."""

    def check_ledger(self, index: int) -> Iterator[str]:
        """Check that the ledger charges a group exactly the plan's first rounds."""
        charges, charged = self.plan["groups"][index]["charges"], self.files.ledger["charged_rounds"]
        if charges_of(self.files.ledger["charges"][index]) != first_rounds(charges, charged):
            yield f"the ledger's charges of group {index} are not those of {charged} rounds of the plan"

    def check_charges(self, index: int) -> Iterator[str]:
        """Check that a group's charges follow from its rate, noise and rounds in the plan."""
        yield from ()

    def check_plan(self) -> Iterator[str]:
        """Check the entries that only plans of this mechanism have."""
        yield from ()

    def check_figures(self, index: int) -> Iterator[str]:
        """Check that displayed figures of a group, such as its noise, follow from its charges."""
        yield from ()

    def check_log(self, index: int) -> Iterator[str]:
        """Check a group's values in the log of rounds against the plan."""
        yield from ()

    def check_recorded(self, group: GroupAudit) -> Iterator[str]:
        """Check a group's recorded epsilons against the recomputed ones."""
        yield from ()

    def check_cohorts(self, index: int, cohorts: Cohorts) -> Iterator[str]:
        """Check a group's cohort sizes; by default only that no more clients than in reach were asked."""
        sizes, there = cohorts.sizes[:, index], cohorts.reachable[:, index]
        for at in np.flatnonzero(cohorts.drawn & (sizes > there))[:1]:
            yield (
                f"round {at + 1} has a cohort of {sizes[at]} in group {index}, of {there[at]} "
                "clients in reach"
            )

    def check_participations(self, index: int) -> Iterator[str]:
        """Check how often clients of a group took part, as the ledger counts."""
        yield from ()

    def kept_noise(self, index: int) -> float:
        """Return the noise left after all rounds, relative to noise that is independent in each round."""
        return 1.0

    def planned_noise(self, index: int, round_number: int, size: int) -> float:
        """Return the noise that a sum over `size` clients must have in a round, as a standard deviation.

        It is 0 where clients have noise of their own: what they send carries it already.
        """
        return 0.0


def rule_of(files: RunFiles) -> AuditRule:
    """Return the audit rule for the mechanism that a run's plan names.

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
