"""Shows an audit's result as a sentence and a table: a row for each group of a run, or each run of a node."""

from math import isinf

from gdpfed.audit.node_audit import NodeAudit
from gdpfed.audit.rules import GroupAudit
from gdpfed.audit.run_audit import RunAudit
from gdpfed.decimal_numbers import counted
from gdpfed.report.console import Table

RUN_HEADINGS = (
    "group",
    "clients",
    "budget",
    "epsilon",
    "recorded",
    "whole plan",
    "vs server",
    "vs members",
    "held",
)
TURN_HEADINGS = (*RUN_HEADINGS[:6], "most of a client", "held")
RECORD_HEADINGS = (
    "group",
    "clients",
    "records",
    "budget",
    "epsilon",
    "recorded",
    "whole plan",
    "vs server",
    "steps",
    "held",
)
NODE_HEADINGS = ("run", "budget", "delta", "epsilon", "vs server", "updates", "held")


def verdict(audit: RunAudit | NodeAudit) -> str:
    """Return one sentence that sums up what an audit found."""
    if not audit.passed:
        return "The statement does NOT hold."
    if isinstance(audit, RunAudit) and not audit.private:
        return "The files agree. Nothing was promised: this run had no clipping and no noise."
    if not isinstance(audit, RunAudit) and not audit.runs:
        return "This ledger has no runs: there was nothing to compute."
    return "Every budget held, and the files agree."


def run_table(audit: RunAudit) -> Table:
    """Return the audit's result for a run as a table with one row for each budget group of clients."""
    title = f"{audit.charged_rounds} of {counted(audit.num_rounds, 'round')} charged, delta {audit.delta:.3g}"
    if any(group.records is not None for group in audit.groups):
        return _record_table(audit, title)
    by_turns = any(group.most_spent is not None for group in audit.groups)
    whom = "all but the server" if any(isinf(group.against_server) for group in audit.groups) else "everyone"
    rows = []
    for group, held in zip(audit.groups, audit.held, strict=True):
        most = group.most_spent
        known = [f"{figure(group.against_server)} (K={group.most_rounds})", figure(group.against_members)]
        if most is not None:
            known = [f"{figure(most.epsilon)} ({len(most.rounds)} turns)"]
        own = [str(group.group), str(group.clients), *_spent(group)]
        rows.append([*own, *known, _held(held, group.within_budget)])
    return Table(
        title,
        TURN_HEADINGS if by_turns else RUN_HEADINGS,
        rows,
        f"epsilon against {whom}, by turns that all may know; of each group's dearest client"
        if by_turns
        else "",
    )


def _record_table(audit: RunAudit, title: str) -> Table:
    rows = [
        [
            str(group.group),
            str(group.clients),
            f"{100 * group.records.share:.3g} %",
            *_spent(group),
            figure(group.against_server),
            f"{group.records.steps}/{group.records.steps_allowed}",
            _held(held, group.within_budget),
        ]
        for group, held in zip(audit.groups, audit.held, strict=True)
        if group.records is not None
    ]
    note = f"what is protected is one {audit.record_is}; steps: the most that one paid for, of those admitted"
    return Table(title, RECORD_HEADINGS, rows, note)


def _spent(group: GroupAudit) -> list[str]:
    """Return a group's table cells: budget, epsilon so far (recomputed, then recorded), planned epsilon."""
    recorded = "" if group.recorded is None else figure(group.recorded)
    return [figure(group.budget), figure(group.spent), recorded, figure(group.planned)]


def node_table(audit: NodeAudit) -> Table:
    """Return the audit's result for a node's ledger as a table with one row for each run."""
    about_records = any(run.num_steps for run in audit.runs)
    rows = []
    for run, held in zip(audit.runs, audit.held, strict=True):
        figures = [figure(run.budget), f"{run.delta:.3g}", figure(run.epsilon), figure(run.against_server)]
        rows.append(
            [
                run.name[:12],
                *([run.protected_unit] if about_records else []),
                *figures,
                f"{run.sent}/{run.num_updates}",
                *([run.steps_of_most] if about_records else []),
                _held(held, run.within_budget),
            ]
        )
    return Table(
        f"runs that this client has begun; each figure counts those above it{' in its unit' * about_records}",
        ("run", "protects", *NODE_HEADINGS[1:-1], "steps", "held") if about_records else NODE_HEADINGS,
        rows,
        "vs server: against members of the same sums, too",
    )


def figure(value: float) -> str:
    """Return an epsilon as text with four digits, or "none" if it is infinite."""
    return "none" if isinf(value) else f"{value:.4g}"


def _held(held: bool, within_budget: bool) -> str:
    """Return "yes" if a budget held, "NO" if not, and "unproved" if the files contradict each other."""
    if held:
        return "yes"
    return "unproved" if within_budget else "NO"
