"""``gdpfed node``: show what a node has spent of its privacy budget, or merge its ledger with a copy."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from gdpfed.cli.command import (
    Command,
    add_parser,
    add_watching,
    check_picture,
    cli_path,
    make_console,
    named_path,
)
from gdpfed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gdpfed.cli.node_status import NodeStatus

EXAMPLES = """\
gdpfed node status ledger.json              as of the budget of its last run
gdpfed node status --node-config "epsilon=3 ledger='a.json'"    of today's"""

STATUS_EXAMPLES = """\
gdpfed node status ledger.json
gdpfed node status ledger.json --node-config "epsilon=3 max-participations=9"
gdpfed node status node-*/ledger.json --json    several, for a script
gdpfed node status node-*/ledger.json --output spent.png    as a picture
gdpfed node status ledger.json --connection seen/connection.json"""

STATUS = (
    "Say what a node has spent, on which runs, what is left of its budget, and what it refused and why. "
    "It reads the ledger and the journal beside it, and changes neither. Every figure is computed anew, as "
    "gdpfed audit does. Exit status 0: the ledger is sound and within the budget, and the node is healthy "
    "where --connection asks for it; 1: not."
)

METRICS_EXAMPLES = """\
gdpfed node metrics ledger.json --node-config "epsilon=3 delta=1e-3"
gdpfed node metrics node-*/ledger.json --listen 9471"""

METRICS = (
    "Serve what is spent and left of a node's budget, refusals by cause, and when a message last came, at "
    "http://127.0.0.1:9471/metrics; / is a page with them. Nothing that its data or a secret sample decides "
    "is served. It needs the extra metrics."
)
NODE_PORT = 9471

ACCEPT_EXAMPLES = """\
gdpfed node accept-ledger /ledger/ledger.json --copy /state
docker compose exec node-3-guard python -m gdpfed.cli node accept-ledger ..."""

ACCEPT = (
    "Merge a ledger and its copy (the node's setting ledger-copy) if they differ, as after an old one was "
    "put back: the result has every run, round and step that either of them has, so what was spent never "
    "falls. Subtract from the budget what both of them lack. The journal has a line."
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    status = _action(actions, "status", "say what is spent, left and refused", STATUS, STATUS_EXAMPLES)
    status.add_argument("--json", action="store_true", help="print a list with an entry for each ledger")
    status.add_argument(
        "--output",
        type=cli_path,
        metavar="FILE.png",
        help="also draw what each ledger has spent of its budget, run after run",
    )
    status.add_argument(
        "--connection",
        type=cli_path,
        metavar="FILE",
        help="also say whether the node reaches its server, by the file that its SuperNode writes into seen/",
    )
    status.set_defaults(act=_show_status)
    metrics = _action(actions, "metrics", "serve that to Prometheus", METRICS, METRICS_EXAMPLES)
    add_watching(metrics, NODE_PORT)
    metrics.set_defaults(act=_serve)
    accept = add_parser(
        actions,
        "accept-ledger",
        words="merge a ledger and its copy, and keep the larger spend",
        description=ACCEPT,
        examples=ACCEPT_EXAMPLES,
    )
    accept.add_argument("ledgers", nargs=1, type=cli_path, metavar="LEDGER", help="the node's ledger")
    accept.add_argument("--copy", type=cli_path, required=True, metavar="DIR", help="its ledger-copy")
    accept.set_defaults(act=_accept, node_config="")


def _action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    words: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    made = add_parser(actions, name, words=words, description=description, examples=examples)
    made.add_argument(
        "ledgers",
        nargs="*",
        type=cli_path,
        metavar="LEDGER",
        help="the ledger of a node; without one that of --node-config",
    )
    made.add_argument(
        "--node-config",
        default="",
        metavar="WORDS",
        help="the node's settings, in the words of its start or as a .toml file: budget, delta, limits",
    )
    return made


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.federation.node.stand_ins import settings_in

    config = settings_in(options.node_config)
    ledgers = options.ledgers or [named_path(str(config[key])) for key in ("ledger",) if key in config]
    if not ledgers:
        raise ConfigError("name a node's ledger, as in gdpfed node status /state/ledger.json")
    status: int = options.act(options, ledgers, config)
    return status


def _show_status(options: argparse.Namespace, ledgers: "Sequence[Path]", config: "Mapping[str, Any]") -> int:
    from gdpfed.cli.audit_command import without_infinity
    from gdpfed.cli.node_status import NodeStatus
    from gdpfed.federation.node.connection_file import HEALTHY, ConnectionState

    if options.output is not None:
        check_picture(options.output)
    if options.connection is not None and len(ledgers) != 1:
        raise ConfigError(
            f"--connection {options.connection} is of one node, and {len(ledgers)} ledgers are named: name "
            "that node's alone"
        )
    connection = None if options.connection is None else ConnectionState.read(options.connection)
    found = [NodeStatus.read(ledger, config) for ledger in ledgers]
    if options.output is not None:
        from gdpfed.report.spending import Spending
        from gdpfed.report.spent_picture import draw_spent

        spent = [Spending(party, steps) for each in found for party, steps in each.spent_by_run().items()]
        if not spent:
            raise ConfigError(
                f"--output={options.output}: no run has begun, so there is nothing to draw: leave --output "
                "out"
            )
        draw_spent(spent, options.output)
    if options.json:
        reached = {} if connection is None else {"connection": connection.to_dict()}
        print(json.dumps(without_infinity([each.to_dict() | reached for each in found]), indent=2))
    else:
        for each in found:
            _print_node(each)
        if connection is not None:
            make_console().print(connection.line, soft_wrap=True, highlight=False, markup=False)
    healthy = connection is None or connection.found()[0] == HEALTHY
    return 0 if healthy and all(each.passed for each in found) else 1


def _serve(options: argparse.Namespace, ledgers: "Sequence[Path]", config: "Mapping[str, Any]") -> int:
    from gdpfed.cli.node_status import NodeFigures
    from gdpfed.report.exported import Source, certificate_sources
    from gdpfed.report.figures_server import serve

    nodes = [Source(str(ledger), NodeFigures(ledger, config).read) for ledger in ledgers]
    serve([*nodes, *certificate_sources(options.certificate)], options.listen, names=options.name)
    return 0


def _accept(options: argparse.Namespace, ledgers: "Sequence[Path]", config: "Mapping[str, Any]") -> int:
    from gdpfed.federation.node import journal
    from gdpfed.federation.node.ledger_file import accept_ledger
    from gdpfed.federation.node.node_settings import NodeSettings

    (path,) = ledgers
    runs = accept_ledger(path, options.copy).runs
    said = f"goes on from {len(runs)} runs with {sum(len(run.rounds) for run in runs)} updates"
    entry = journal.JournalEntry(journal.now(), "accept-ledger", "", "", journal.ACCEPTED, said)
    journal.note(NodeSettings({"ledger": str(path)}), entry)
    print(f"{path} {said}, the larger spend of it and its copy")
    return 0


def _print_node(status: "NodeStatus") -> None:
    console = make_console()
    for table in status.tables():
        console.print(table.to_rich())
    console.print(status.last_line, soft_wrap=True, highlight=False)
    for finding in status.audit.findings:
        console.print(f"wrong: {finding}", soft_wrap=True, highlight=False)
    for line in status.audit.not_computed:
        console.print(f"not computed: {line}", soft_wrap=True, highlight=False)


COMMAND = Command(
    name="node",
    help="say where a node stands: spent, left, refused",
    description="Show what a running node has spent of its budget, or merge its ledger and a copy.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
