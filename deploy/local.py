"""``python -m deploy.local``: start a federation on this machine, train once, audit, and remove it again."""

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from conf.load import load, refuse_twice
from conf.schema import CLIENTS
from deploy.confine import lacking
from deploy.federation import Federation
from deploy.loopback import LoopbackFederation, Named
from deploy.operate import NODES_PLAY, federation_overrides, training_words
from deploy.options import add_federation, exit_status, federation_of
from deploy.run_words import secagg_words
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.cli import main as gdpfed
from gdpfed.cli.command import make_console
from gdpfed.errors import AuditError, ConfigError, InputError
from gdpfed.learning.data.file_form import ending_of, kind_of
from gdpfed.learning.data.own_files import READERS
from gdpfed.methods import make_method
from gdpfed.privacy.planning.groups import default_delta
from gdpfed.report.plan_table import plan_table
from gdpfed.report.progress import RunProgress
from gdpfed.runs.paths import require_unused, reserved, run_path
from gdpfed.runs.round_log import read_rounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``deploy.local`` command; return 0 if done, 2 for bad input or failure, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    add_federation(parser)
    add_wall(parser)
    parser.add_argument("--data", type=Path, metavar="DIR", help="a folder with each node's own examples")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance run.num_rounds=3")
    options = parser.parse_args(arguments)
    return exit_status(lambda: train(options, make_console()))


def train(options: argparse.Namespace, console: Console) -> None:
    """Plan, start a federation, train, keep the run's files, and audit them and the nodes' ledgers."""
    refuse_twice(options.overrides)
    federation = federation_of(options)
    check_wall(federation, options, console)
    files = own_files(options.data, federation)
    if files:
        federation = replace(federation, examples=f"examples{ending_of(files[0])}")
    words = [
        *federation_overrides(federation),
        *secagg_words(federation),
        *options.overrides,
    ]
    overrides = training_words(len(federation.nodes), words)
    config = load([*with_types(federation, overrides), *said_budgets(federation, overrides)])
    method = make_method(config)
    console.print(plan_table(method))
    kept = run_path(config.run.directory, config.dataset.name, config.method.name)
    require_unused(kept)
    plan = method.plan
    if config.run.directory is None:
        kept = reserved(kept)
    console.print(f"starting the server and {len(federation.nodes)} nodes ...")
    with LoopbackFederation(federation, files, Named.by(overrides)) as running:
        console.print("every node is online, over TLS and under its own key")
        waiting = "training ..."
        shown = RunProgress(console, plan.num_rounds, plan.budgets, waiting=waiting, against=plan.against)
        with shown as progress:
            follow(running, overrides, kept, progress)
        audit_nodes(running, console)
    console.print(f"The run's files are in {kept}", soft_wrap=True)
    if gdpfed(["audit", str(kept)]) != 0:
        raise AuditError(f"the privacy statement of {kept} does not hold: see the audit's lines above")


def check_wall(federation: Federation, options: argparse.Namespace, console: Console) -> None:
    """Warn if this machine cannot confine the Flower app to its own files, and say why.

    Raises InputError: something does, and ``--require-wall`` is given.
    """
    reason = "without a guard an app holds what is its node's" if federation.unguarded else lacking()
    if reason and options.require_wall:
        raise InputError(f"--require-wall: {reason}: change that, or leave --require-wall out")
    if reason:
        console.print(f"no wall around the app: {reason}", soft_wrap=True)


def said_budgets(federation: Federation, overrides: Sequence[str]) -> list[str]:
    """Return the nodes' own budgets as settings (key=value) for the plan; [] if the run does not use them."""
    if f"privacy.budgets={CLIENTS}" not in overrides:
        return []
    budgets = ",".join(repr(node.epsilon) for node in federation.nodes)
    delta = default_delta(len(federation.nodes))
    known = any(word.startswith("privacy.delta=") for word in overrides)
    return [f"privacy.client_budgets=[{budgets}]", *(() if known else (f"privacy.delta={delta!r}",))]


def with_types(federation: Federation, overrides: Sequence[str]) -> list[str]:
    """If nodes play a budget game, put their privacy aversions and first budgets into the settings.

    Raises ConfigError: a game is asked for, and the nodes are given nothing to play with.
    """
    if NODES_PLAY not in overrides:
        return list(overrides)
    types = [(node.aversion, node.first_budget) for node in federation.nodes]
    if any(None in each for each in types):
        raise ConfigError(
            f"{NODES_PLAY} needs the nodes' aversions and first budgets: give --aversions and --first-budgets"
        )
    lists = (",".join(map(repr, each)) for each in zip(*types, strict=True))
    said = (
        f"method.{key}=[{values}]" for key, values in zip(("aversions", "first_budgets"), lists, strict=True)
    )
    return [*(word for word in overrides if word != NODES_PLAY), *said]


def own_files(folder: Path | None, federation: Federation) -> list[Path]:
    """Return one data file for each node, sorted by name; return [] if no folder is given.

    Raises ConfigError: not one file a node, or files of several kinds.
    """
    if folder is None:
        return []
    files = sorted(path for path in folder.glob("*") if kind_of(path).removeprefix(".") in READERS.names())
    kinds = {ending_of(path) for path in files}
    if len(files) != len(federation.nodes) or len(kinds) != 1:
        raise ConfigError(
            f"--data {folder} has {len(files)} files of {len(kinds)} kinds for {len(federation.nodes)} "
            "nodes: put one file of examples for each node there, all with the same ending"
        )
    return files


def audit_nodes(running: LoopbackFederation, console: Console) -> None:
    """Audit the ledger of every node, and print what the node has spent.

    Raises AuditError: a ledger that cannot be read, or whose budget did not hold.
    """
    for node in running.federation.nodes:
        audit = audit_node_ledger(running.ledger_of(node))
        if not audit.passed:
            raise AuditError(f"{node.name}: {'; '.join(audit.findings) or 'its budget did not hold'}")
        last = audit.runs[-1]
        console.print(
            f"{node.name}: its own ledger holds epsilon {last.epsilon:.2f} of {last.budget:g} "
            f"({last.sent} of {last.num_updates} updates sent"
            + (f", {last.steps} of {last.num_steps} steps on each record)" if last.num_steps else ")")
        )


def follow(running: LoopbackFederation, overrides: Sequence[str], kept: Path, progress: RunProgress) -> None:
    """Show a run's rounds until it ends, then copy its files to ``kept``, even if the run fails.

    Raises LaunchError: the run failed; one line that says why.
    """
    files = running.runs / kept.name
    run = running.train(kept.name, overrides)
    try:
        while run.running():
            progress.update(read_rounds(files))
        run.check()
        progress.update(read_rounds(files))
    finally:
        if files.is_dir():
            shutil.copytree(files, kept, dirs_exist_ok=True)


def add_wall(parser: argparse.ArgumentParser) -> None:
    """Add ``--require-wall``: do not start unless programs can be confined to their own files."""
    what = "start nothing where this kernel cannot keep an app from the files of others"
    parser.add_argument("--require-wall", action="store_true", help=what)


if __name__ == "__main__":
    raise SystemExit(main())
