"""The privacy statement of a run, computed a second time from its ledger and plan."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdpfed.audit.accounting import charges_of, epsilon_after, epsilon_against_server, first_rounds
from gdpfed.audit.figure_checks import check_figures
from gdpfed.audit.plan_checks import check_plan
from gdpfed.audit.round_checks import check_rounds
from gdpfed.audit.rules import GroupAudit, RecordAudit, rule_of
from gdpfed.audit.run_files import RunFiles, check_seal, digest_of_seal
from gdpfed.errors import AuditError

# Two upper bounds of one figure on different grids; every round is compared on the coarsest.
AGREES_WITHIN = 0.02


@dataclass(frozen=True)
class RunAudit:
    """Figures by group, a line for all that does not fit together, and the digest of the run's seal."""

    private: bool
    delta: float
    charged_rounds: int
    num_rounds: int
    groups: tuple[GroupAudit, ...]
    findings: tuple[str, ...]
    seal: str | None = None

    @property
    def passed(self) -> bool:
        """Whether there is no contradiction and every budget held."""
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
        groups = tuple(_groups(files))
        findings = [
            *check_seal(directory, files),
            *check_plan(files),
            *check_rounds(files),
            *check_figures(files),
            *_check_figures(files, groups),
        ]
        return RunAudit(
            private=files.plan["private"],
            delta=files.plan["delta"],
            charged_rounds=files.ledger["charged_rounds"],
            num_rounds=files.plan["num_rounds"],
            groups=groups,
            findings=tuple(findings),
            seal=digest_of_seal(directory),
        )
    except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise AuditError(f"the files of {directory} lack or have odd entries ({reason})") from None


def _groups(files: RunFiles) -> Iterator[GroupAudit]:
    rule = rule_of(files)
    for index, group in enumerate(files.plan["groups"]):
        if rule.own_budgets:
            yield rule.group(files)
        elif files.plan["unit"] == "client":
            yield _group(files, index)
        else:
            yield from (_records(files, index, number) for number in range(len(group["records"]["groups"])))


def _group(files: RunFiles, index: int) -> GroupAudit:
    plan, charges = files.plan, charges_of(files.plan["groups"][index]["charges"])
    budget = _or_infinite(plan["groups"][index]["epsilon"])
    most = max(files.ledger["participations"][index].values(), default=0)
    hidden = plan["sums_hidden"]
    # Where noise differs from round to round, all are taken for those of the least noise.
    least = min((sums for sums, _ in charges), key=lambda sums: sums.noise_multiplier)
    against = epsilon_against_server([(least, most)], plan["delta"])
    return GroupAudit(
        group=index,
        clients=plan["groups"][index]["clients"],
        budget=budget,
        planned=epsilon_after(charges, plan["delta"], at_most=budget),
        spent=epsilon_after(charges_of(files.ledger["charges"][index]), plan["delta"], at_most=budget),
        recorded=_or_infinite(files.rounds[-1]["spent_epsilon"][index]) if files.rounds else None,
        against_server=against if hidden or not most else math.inf,
        against_members=against,
        most_rounds=most,
    )


def _records(files: RunFiles, index: int, number: int) -> GroupAudit:
    """The cost for records of one budget; their batches are secret from the server, too."""
    plan, group = files.plan, files.plan["groups"][index]
    own = group["records"]["groups"][number]
    saved, budget, delta = own["charges"], _or_infinite(own["epsilon"]), plan["delta"]
    most = max(files.ledger["participations"][index].values(), default=0)
    cost = epsilon_after(first_rounds(saved, most), delta)
    in_clear = plan["works"] != ["dp_sgd"] and not plan["sums_hidden"]
    is_recorded = number == 0 and bool(files.rounds)
    return GroupAudit(
        group=index,
        clients=group["clients"],
        budget=budget,
        planned=epsilon_after(charges_of(saved), delta, at_most=budget),
        spent=epsilon_after(first_rounds(saved, files.ledger["charged_rounds"]), delta, at_most=budget),
        recorded=_or_infinite(files.rounds[-1]["spent_epsilon"][index]) if is_recorded else None,
        against_server=math.inf if in_clear and most else cost,
        against_members=cost,
        most_rounds=most,
        records=RecordAudit(
            number=number,
            share=own["share"],
            batch_rate=own["batch_rate"],
            steps=sum(count * sums.window_steps for sums, count in first_rounds(saved, most)),
            steps_allowed=group["records"]["steps_allowed"],
        ),
    )


def _check_figures(files: RunFiles, groups: tuple[GroupAudit, ...]) -> Iterator[str]:
    """Compare the run's recorded values with those computed here."""
    for group in groups:
        if not group.within_budget:
            whose = "" if group.records is None else f", records {group.records.number},"
            yield (
                f"group {group.group}{whose} was planned for a budget of {group.budget:g}, but its "
                f"{files.plan['num_rounds']} rounds cost {group.planned:.4g}"
            )
    if not files.plan["private"] or rule_of(files).own_budgets:
        return
    for group in groups:
        if group.records is None or group.records.number == 0:
            yield from _check_recorded(files, group.group, group)


def _check_recorded(files: RunFiles, index: int, group: GroupAudit) -> Iterator[str]:
    """Every round's figure: not below what it costs and, with losses accounted, not far above."""
    tight = files.plan["accountant"] == "pld"
    charges, delta = files.plan["groups"][index]["charges"], files.plan["delta"]
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
        above = claimed > group.against_server * (1 + AGREES_WITHIN) and (tight or group.records is None)
        if above or claimed < group.against_server * (1 - AGREES_WITHIN):
            yield (
                f"the last round records epsilon {claimed:.4g} against the server in group {index}, where "
                f"{group.against_server:.4g} is spent"
            )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else float(value)
