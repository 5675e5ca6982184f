"""``gdpfed audit``: compute a run's privacy statement a second time, and say whether it held."""

import argparse
import json
from dataclasses import asdict
from math import isinf
from typing import TYPE_CHECKING

from gdpfed.cli.command import Command, make_console, user_path
from gdpfed.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gdpfed.audit.node_audit import NodeAudit
    from gdpfed.audit.run_audit import RunAudit

EXAMPLES = """\
gdpfed audit runs/20260101-120000-digits-gdpfed_plus
gdpfed audit --node-ledger /state/ledger.json   a client's own, over all runs
gdpfed audit --node-ledger ledger.json --client 3 runs/*   and lacks no round
gdpfed audit --canaries method=gdpfed           epsilon as it is measured
gdpfed audit --attack runs/heart    what its model tells of single records"""
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


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="RUN",
        help="the directory of a run; with --node-ledger any number of them, which it is compared with; "
        "with --canaries overrides of conf/, or both",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--node-ledger", type=user_path, metavar="FILE", help="the ledger of one node")
    parser.add_argument("--client", type=int, metavar="K", help="the number of the node's client in the runs")
    kind.add_argument("--canaries", action="store_true", help="measure epsilon on simulated runs")
    kind.add_argument("--attack", action="store_true", help="guess from a run's model who was trained on")
    parser.add_argument("--json", action="store_true", help="print the audit as JSON")
    canaries = parser.add_argument_group("with --canaries")
    canaries.add_argument("--runs", type=int, default=20, help="how many runs to simulate (20)")
    canaries.add_argument(
        "--kind",
        choices=("dirac", "random", "crafted"),
        default="dirac",
        help="a coordinate for each canary (dirac), or vectors among clients that train",
    )
    canaries.add_argument("--confidence", type=float, default=0.95, help="of all figures together (0.95)")
    canaries.add_argument(
        "--output", type=user_path, metavar="DIR", help="write the figures and a picture there"
    )


def _execute(options: argparse.Namespace) -> int:
    if options.canaries:
        from gdpfed.cli.canaries import measure_canaries

        return measure_canaries(options)
    if options.attack:
        from gdpfed.cli.attack import attack_model

        return attack_model(options)
    if options.node_ledger is None and len(options.overrides) != 1:
        raise ConfigError("name one run directory, or --node-ledger FILE, or --canaries and overrides")
    if (options.client is not None) != (options.node_ledger is not None and bool(options.overrides)):
        raise ConfigError("--client is the node's number in the runs that --node-ledger is compared with")
    from gdpfed.audit.node_audit import NodeAudit, audit_node_ledger
    from gdpfed.audit.run_audit import RunAudit, audit_run

    audit: RunAudit | NodeAudit
    if options.node_ledger is not None:
        audit = audit_node_ledger(
            options.node_ledger, options.client, [user_path(each) for each in options.overrides]
        )
    else:
        audit = audit_run(user_path(options.overrides[0]))
    if options.json:
        print(
            json.dumps(
                without_infinity(asdict(audit) | {"held": audit.held, "passed": audit.passed}), indent=2
            )
        )
    else:
        _show(make_console(), audit)
    return 0 if audit.passed else 1


def _show(console: "Console", audit: "RunAudit | NodeAudit") -> None:
    from gdpfed.audit.run_audit import RunAudit
    from gdpfed.report.console import Fitted

    console.print(Fitted(_run_table(audit) if isinstance(audit, RunAudit) else _node_table(audit)))
    for finding in audit.findings:
        console.print(f"wrong: {finding}", soft_wrap=True, highlight=False)
    if isinstance(audit, RunAudit) and audit.seal is not None:
        console.print(f"seal.json {audit.seal}", soft_wrap=True, highlight=False)
    console.print(_verdict(audit))


def _verdict(audit: "RunAudit | NodeAudit") -> str:
    from gdpfed.audit.run_audit import RunAudit

    if not audit.passed:
        return "The statement does NOT hold."
    if isinstance(audit, RunAudit) and not audit.private:
        return "The files agree. Nothing was promised: this run had no clipping and no noise."
    return "Every budget held, and the files agree."


def _run_table(audit: "RunAudit") -> "Table":
    title = f"{audit.charged_rounds} of {audit.num_rounds} rounds charged, delta {audit.delta:.3g}"
    if any(group.records is not None for group in audit.groups):
        return _record_table(audit, title)
    everyone = any(group.most_spent is not None for group in audit.groups)
    table = _table(title, TURN_HEADINGS if everyone else RUN_HEADINGS)
    if everyone:
        table.caption = "epsilon against everyone, by turns that all may know; of each group's dearest client"
    for group, held in zip(audit.groups, audit.held, strict=True):
        most = group.most_spent
        known = [f"{_figure(group.against_server)} (K={group.most_rounds})", _figure(group.against_members)]
        if most is not None:
            known = [f"{_figure(most.epsilon)} ({len(most.rounds)} turns)"]
        table.add_row(
            str(group.group),
            str(group.clients),
            _figure(group.budget),
            _figure(group.spent),
            "" if group.recorded is None else _figure(group.recorded),
            _figure(group.planned),
            *known,
            _held(held, group.within_budget),
        )
    return table


def _record_table(audit: "RunAudit", title: str) -> "Table":
    table = _table(title, RECORD_HEADINGS)
    table.caption = (
        f"what is protected is one {audit.record_is}; steps: the most that one paid for, of those admitted"
    )
    for group, held in zip(audit.groups, audit.held, strict=True):
        if group.records is None:
            continue
        table.add_row(
            str(group.group),
            str(group.clients),
            f"{100 * group.records.share:.3g} %",
            _figure(group.budget),
            _figure(group.spent),
            "" if group.recorded is None else _figure(group.recorded),
            _figure(group.planned),
            _figure(group.against_server),
            f"{group.records.steps}/{group.records.steps_allowed}",
            _held(held, group.within_budget),
        )
    return table


def _node_table(audit: "NodeAudit") -> "Table":
    about_records = any(run.unit == "record" for run in audit.runs)
    headings = ("run", "protects", *NODE_HEADINGS[1:-1], "steps", "held") if about_records else NODE_HEADINGS
    table = _table("runs that this client has begun; each figure counts those above it", headings)
    table.caption = "vs server: against members of the same sums, too"
    if about_records:
        table.title = "runs that this client has begun; each figure counts those above it in its unit"
    for run, held in zip(audit.runs, audit.held, strict=True):
        group = "" if run.record_group is None else f" {run.record_group}"
        unit = "client" if run.unit == "client" else f"records{group}"
        steps = f"{run.steps}/{run.num_steps}" if run.unit == "record" else ""
        table.add_row(
            run.name[:12],
            *([unit] if about_records else []),
            _figure(run.budget),
            f"{run.delta:.3g}",
            _figure(run.epsilon),
            _figure(run.against_server),
            f"{run.sent}/{run.num_updates}",
            *([steps] if about_records else []),
            _held(held, run.within_budget),
        )
    return table


def _table(title: str, headings: tuple[str, ...]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _figure(value: float) -> str:
    return "none" if isinf(value) else f"{value:.4g}"


def _held(held: bool, within_budget: bool) -> str:
    """Figures that the files contradict prove nothing, however small they are."""
    if held:
        return "yes"
    return "unproved" if within_budget else "NO"


def without_infinity(value: object) -> object:
    """A value for JSON, which knows no infinity: null in its place."""
    if isinstance(value, dict):
        return {key: without_infinity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinity(item) for item in value]
    return None if isinstance(value, float) and isinf(value) else value


COMMAND = Command(
    name="audit",
    help="compute the privacy statement of a run a second time",
    description=(
        "Read a run's files, or a node's own ledger, compute every figure anew without the code that made "
        "them, and say whether every budget held. Or, with --canaries, simulate runs in which known vectors "
        "are hidden, and measure how well what comes out tells who was there. Exit status 0: the statement "
        "held; 1: not."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
