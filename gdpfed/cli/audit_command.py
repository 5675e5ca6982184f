"""``gdpfed audit``: compute a run's epsilon a second time, and check that the privacy budgets held."""

import argparse
import json
from dataclasses import asdict
from math import isinf
from typing import TYPE_CHECKING

from gdpfed.cli.command import MODES, Command, cli_path, make_console, named_path, require_folders
from gdpfed.decimal_numbers import decimal_number, whole_number
from gdpfed.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from gdpfed.audit.node_audit import NodeAudit
    from gdpfed.audit.run_audit import RunAudit

EXAMPLES = """\
gdpfed audit runs/20260101-120000-digits-gdpfed_plus
gdpfed audit --node-ledger /state/ledger.json   a client's own, over all runs
gdpfed audit --node-ledger ledger.json --client 3 runs/*   is a run missing?
gdpfed audit --canaries method=gdpfed           epsilon measured by simulation
gdpfed audit --canaries --loop train:LOOP       of a training loop of your own
gdpfed audit --attack runs/heart    what its model reveals of single records
gdpfed audit --attack runs/heart --outside others    and of whole parties"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="RUN",
        help="the directory of a run; with --node-ledger any number of them, which it is compared with; "
        "with --canaries overrides of conf/, or both",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--node-ledger", type=cli_path, metavar="FILE", help="the ledger of one node")
    parser.add_argument(
        "--client", type=whole_number, metavar="K", help="the number of the node's client in the runs"
    )
    kind.add_argument("--canaries", action="store_true", help="measure epsilon on simulated runs")
    kind.add_argument("--attack", action="store_true", help="guess from a run's model who was trained on")
    parser.add_argument(
        "--outside", type=cli_path, metavar="PATH", help="with --attack: tables of parties not in the run"
    )
    parser.add_argument("--json", action="store_true", help="print the audit as JSON")
    canaries = parser.add_argument_group("with --canaries")
    canaries.add_argument(
        "--loop",
        metavar="MODULE:NAME",
        help="measure a training loop of your own, a gdpfed.TrainingLoop, in place of overrides; or the "
        "name of an entry point in the group gdpfed.loops",
    )
    canaries.add_argument("--runs", type=whole_number, default=20, help="how many runs to simulate (20)")
    canaries.add_argument(
        "--kind",
        choices=("dirac", "random", "crafted"),
        default="dirac",
        help="a coordinate for each canary (dirac), or vectors among clients that train",
    )
    canaries.add_argument(
        "--confidence", type=decimal_number, default=0.95, help="confidence of all figures together (0.95)"
    )
    canaries.add_argument(
        "--output", type=cli_path, metavar="DIR", help="write the figures and a picture there"
    )


def _execute(options: argparse.Namespace) -> int:
    if options.outside is not None and not options.attack:
        raise ConfigError(
            f"--outside {options.outside} needs --attack RUN: name the attacked run, or leave --outside out"
        )
    if options.loop is not None and (not options.canaries or options.overrides or options.kind != "dirac"):
        raise ConfigError(
            f"--loop {options.loop} needs --canaries of kind dirac, and takes no overrides: leave "
            "the overrides out"
        )
    if options.canaries:
        return int(MODES.get("audit --canaries")(options))
    named = [named_path(override) for override in options.overrides]
    if options.attack:
        require_folders(named[:1])
        return int(MODES.get("audit --attack")(options))
    if options.node_ledger is None and len(options.overrides) != 1:
        raise ConfigError("name one run directory, or --node-ledger FILE, or --canaries and overrides")
    if (options.client is not None) != (options.node_ledger is not None and bool(options.overrides)):
        raise ConfigError(
            "--client N needs --node-ledger FILE and the runs in which the node is client N: name them"
        )
    require_folders(named)
    from gdpfed.audit.node_audit import NodeAudit, audit_node_ledger
    from gdpfed.audit.run_audit import RunAudit, audit_run

    audit: RunAudit | NodeAudit
    if options.node_ledger is not None:
        audit = audit_node_ledger(options.node_ledger, options.client, named)
    else:
        audit = audit_run(named[0])
    if options.json:
        print(
            json.dumps(
                without_infinity(asdict(audit) | {"held": audit.held, "passed": audit.passed}), indent=2
            )
        )
    else:
        _print_audit(make_console(), audit)
    return 0 if audit.passed else 1


def _print_audit(console: "Console", audit: "RunAudit | NodeAudit") -> None:
    from gdpfed.audit.run_audit import RunAudit
    from gdpfed.cli.audit_tables import node_table, run_table, verdict

    table = run_table(audit) if isinstance(audit, RunAudit) else node_table(audit)
    console.print(table.to_rich())
    for finding in audit.findings:
        console.print(f"wrong: {finding}", soft_wrap=True, highlight=False)
    for line in audit.not_computed:
        console.print(f"not computed: {line}", soft_wrap=True, highlight=False)
    if isinstance(audit, RunAudit) and audit.seal is not None:
        console.print(f"seal.json {audit.seal}", soft_wrap=True, highlight=False)
    console.print(verdict(audit))


def without_infinity(value: object) -> object:
    """Return a value for JSON with null in place of infinity, which JSON cannot express."""
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
        "are hidden, measure how well the results reveal them, and check the program against its plan. "
        "Exit status 0: the statement held; 1: not; 3, with --canaries: not everything could be computed."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
