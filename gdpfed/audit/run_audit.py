"""The privacy statement of a run, computed a second time from its ledger and plan."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdpfed.audit.accounting import charges_of, epsilon_after, epsilon_against_server, first_rounds
from gdpfed.audit.plan_checks import charges_of_group, check_plan
from gdpfed.audit.round_checks import check_rounds
from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import AuditError

# Two upper bounds of one figure on different grids; every round is compared on the coarsest.
AGREES_WITHIN = 0.02


@dataclass(frozen=True)
class GroupAudit:
    """One group; infinite figures mean that nothing is promised.

    Attributes:
        budget: epsilon that it may cost.
        planned: epsilon of all rounds of the plan, computed here.
        spent: epsilon of the charged rounds, computed here.
        recorded: what the run itself has recorded of them; None before its first round.
        against_server: of the client that took part most often, in `most_rounds` rounds.
        against_members: the same against members of its sums, who never see single updates.
    """

    clients: int
    budget: float
    planned: float
    spent: float
    recorded: float | None
    against_server: float
    against_members: float
    most_rounds: int

    @property
    def within_budget(self) -> bool:
        """Whether the plan's figures keep the budget, and so every run of it, however it ends."""
        return math.isinf(self.budget) or max(self.planned, self.spent) <= self.budget


@dataclass(frozen=True)
class RunAudit:
    """Figures by group, and a line for everything that does not fit together."""

    private: bool
    delta: float
    charged_rounds: int
    num_rounds: int
    groups: tuple[GroupAudit, ...]
    findings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong and every budget held."""
        return not self.findings and all(group.within_budget for group in self.groups)

    @property
    def held(self) -> tuple[bool, ...]:
        """Whether the budget of each group held: its figures are within it, and no file contradicts them."""
        return tuple(not self.findings and group.within_budget for group in self.groups)


def audit_run(directory: Path) -> RunAudit:
    """Audit a run directory, whether the run has ended or not.

    Raises:
        AuditError: files that are missing, cannot be read, or lack what every run writes.
    """
    files = RunFiles.read(directory)
    try:
        groups = tuple(_group(files, index) for index in range(len(files.plan["groups"])))
        findings = [*check_plan(files), *check_rounds(files), *_check_figures(files, groups)]
        return RunAudit(
            private=files.plan["private"],
            delta=files.plan["delta"],
            charged_rounds=files.ledger["charged_rounds"],
            num_rounds=files.plan["num_rounds"],
            groups=groups,
            findings=tuple(findings),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise AuditError(f"the files of {directory} lack or have odd entries ({reason})") from None


def _group(files: RunFiles, index: int) -> GroupAudit:
    plan, charges = files.plan, charges_of_group(files, index)
    budget = _or_infinite(plan["groups"][index]["epsilon"])
    most = max(files.ledger["participations"][index].values(), default=0)
    hidden = plan["sums_hidden"]
    # Where noise differs from round to round, all are taken for those of the least noise.
    least = min((sums for sums, _ in charges), key=lambda sums: sums.noise_multiplier)
    against = epsilon_against_server([(least, most)], plan["delta"])
    return GroupAudit(
        clients=plan["groups"][index]["clients"],
        budget=budget,
        planned=epsilon_after(charges, plan["delta"], at_most=budget),
        spent=epsilon_after(charges_of(files.ledger["charges"][index]), plan["delta"], at_most=budget),
        recorded=_or_infinite(files.rounds[-1]["spent_epsilon"][index]) if files.rounds else None,
        against_server=against if hidden or not most else math.inf,
        against_members=against,
        most_rounds=most,
    )


def _check_figures(files: RunFiles, groups: tuple[GroupAudit, ...]) -> Iterator[str]:
    """What the run recorded against what is computed here."""
    for index, group in enumerate(groups):
        if not group.within_budget:
            yield (
                f"group {index} was planned for a budget of {group.budget:g}, but its "
                f"{files.plan['num_rounds']} rounds cost {group.planned:.4g}"
            )
    if not files.plan["private"]:
        return
    for index, group in enumerate(groups):
        yield from _check_recorded(files, index, group)


def _check_recorded(files: RunFiles, index: int, group: GroupAudit) -> Iterator[str]:
    """Every round's figure: not below what it costs and, with losses accounted, not far above."""
    tight = files.plan["accountant"] == "pld"
    charges, delta = charges_of_group(files, index), files.plan["delta"]
    for record in files.rounds:
        recorded = _or_infinite(record["spent_epsilon"][index])
        computed = epsilon_after(first_rounds(charges, record["round"]), delta)
        too_low = recorded < computed * (1 - AGREES_WITHIN)
        if too_low or (tight and recorded > computed * (1 + AGREES_WITHIN)):
            yield (
                f"round {record['round']} records epsilon {recorded:.4g} of group {index}, where "
                f"{computed:.4g} is spent"
            )
            return
        if recorded > group.budget * (1 + AGREES_WITHIN):
            yield f"round {record['round']} records epsilon {recorded:.4g} of group {index}, above its budget"
            return
    if files.rounds and len(files.rounds) == files.ledger["charged_rounds"]:
        claimed = _or_infinite(files.rounds[-1]["epsilon_against_server"][index])
        if claimed < group.against_server * (1 - AGREES_WITHIN):
            yield (
                f"the last round records epsilon {claimed:.4g} against the server in group {index}, where "
                f"{group.against_server:.4g} is spent"
            )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else float(value)
