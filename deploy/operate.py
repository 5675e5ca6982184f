"""``python -m deploy.operate``: register nodes, list them, wait for them, train, call ``flwr``.

The operator of the server runs it. It writes its connection into ``FLWR_HOME``.
"""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from conf.schema import CLIENTS
from deploy.federation import Federation
from deploy.options import address, exit_status
from deploy.stored_app import build_bundle, store_app
from deploy.superlink_client import SuperLinkClient, SuperLinkError
from gdpfed.decimal_numbers import whole_number
from gdpfed.identities import public_key_of
from gdpfed.installed import SOURCES
from gdpfed.launch.flower_run import CONNECTION, run_command, training_config
from gdpfed.runs.paths import run_path
from gdpfed.signed_apps import SignedApp, read_file

# One sum over all nodes, who all take part: in a sum of two neither would be hidden from the other. Each
# group has a clipping norm of its own in it, as its members' budgets allow.
FEW_NODES = (
    "method=idp_fedavg_scale",
    f"privacy.budgets={CLIENTS}",
    "privacy.sampling_rate=1",
    "run.num_rounds=2",
    "secagg.dropout_tolerance=0.2",
)

# Given to a training, it has nodes say paths in the place of budgets.
NODES_PLAY = f"method.types={CLIENTS}"

# Such a method has no rounds, and refuses a setting for them.
COUNTS_ONCE = re.compile(r"method=\w+_statistics").fullmatch

# For budgets of records: one noise for all nodes, who add their sums of gradients up.
FOR_RECORDS = ("privacy=record_level", "method=dp_sum")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the server's operator; return 0 if done, 2 for bad input or a failed run."""
    options = parser().parse_args(arguments)
    return exit_status(lambda: _execute(options))


def _execute(options: argparse.Namespace) -> None:
    superlink = SuperLinkClient(_flower_home(), options.superlink, options.ca)
    superlink.connect()
    # The SuperLink is on this host, or on a network of its own: no proxy of the site leads there.
    os.environ["no_proxy"] = "*"
    match options.command:
        case "register":
            fresh, gone = superlink.register(options.public)
            print(f"registered: {', '.join(fresh) or 'no new node'}")
            if gone:
                print(f"unregistered, and never again under the same key: {', '.join(gone)}")
        case "nodes":
            if options.unregister is not None:
                node = superlink.unregister(options.unregister)
                print(f"unregistered: {node.name} ({node.node_id})")
            for node in superlink.nodes():
                print(f"{node.name:10} {node.node_id:20} {node.status}")
        case "wait":
            superlink.wait(options.nodes)
        case "train":
            words = training_words(options.nodes, options.overrides)
            superlink.wait(nodes_to_wait_for(options.nodes, words))
            _train(superlink, options, words)
        case "flwr":
            if superlink.flwr(options.words) != 0:
                raise SuperLinkError(f"flwr {' '.join(options.words)} failed: its output is above")


def _train(superlink: SuperLinkClient, options: argparse.Namespace, words: Sequence[str]) -> None:
    """Submit a training with this source tree's Flower app, signed if a signature is given; follow it."""
    name = run_name(words)
    run_config = train_config(options.runs / name, words)
    if options.signature is None:
        superlink.follow(run_command(superlink.flower_home, SOURCES, run_config), name)
        return
    if options.consortium is None or options.database is None:
        raise SuperLinkError("--signature goes with --consortium and --database: name all three")
    key = public_key_of(str(options.consortium))
    bundle, signed = build_bundle(), SignedApp.read(read_file(options.signature), key)
    signed.statement.check(bundle)
    store_app(options.database, bundle, signed, key)
    run_id = superlink.start_stored(signed.statement.app, signed.statement.bundle, run_config)
    superlink.follow(["flwr", "log", run_id, CONNECTION, "--stream"], name, run_id)


def federation_overrides(federation: Federation) -> tuple[str, ...]:
    """Return settings (key=value) for a federation: number of client groups, and record privacy if chosen."""
    groups = f"privacy.num_groups={len(federation.budgets)}"
    return (*FOR_RECORDS, groups) if federation.about_records else (groups,)


def training_words(num_nodes: int, overrides: Sequence[str]) -> list[str]:
    """Return a training's settings (key=value): `overrides`, and defaults for settings that these leave out.

    A run that is resumed has all its settings, so nothing is added.
    """
    if any(word.partition("=")[0] == "run.resume" for word in overrides):
        return list(overrides)
    unused = {"privacy.budgets": NODES_PLAY in overrides, "run.num_rounds": any(map(COUNTS_ONCE, overrides))}
    usual = [word for word in FEW_NODES if not unused.get(word.partition("=")[0])]
    words = (f"dataset.num_clients={num_nodes}", *usual, *overrides)
    return list({word.partition("=")[0]: word for word in words}.values())


def nodes_to_wait_for(num_nodes: int, words: Sequence[str]) -> int:
    """Return how many nodes must be online before a training is submitted: all, or ``run.minimum_nodes``.

    A run that is resumed has that in its own settings, which are on the server: whatever there is will do.
    """
    chosen = {key: value for key, _, value in (word.partition("=") for word in words)}
    if "run.resume" in chosen:
        return 1
    least = chosen.get("run.minimum_nodes", "")
    return min(num_nodes, int(least)) if least.isascii() and least.isdecimal() else num_nodes


def run_name(words: Sequence[str]) -> str:
    """Return the name of a run's directory: that of ``run.resume`` or ``run.directory``, or a new one."""
    chosen = {key: value for key, _, value in (word.partition("=") for word in words)}
    return chosen.get("run.resume") or chosen.get("run.directory") or run_path(None, "federation", "run").name


def train_config(directory: Path, words: Sequence[str]) -> dict[str, str | int]:
    """Return Flower's run configuration for a training whose files are in ``directory`` on the server."""
    keys = [word.partition("=")[0] for word in words]
    kept = [word for key, word in zip(keys, words, strict=True) if key not in ("run.resume", "run.directory")]
    return training_config(kept, directory=directory, resuming="run.resume" in keys)


def _flower_home() -> Path:
    home = os.environ.get("FLWR_HOME")
    if not home:
        raise SuperLinkError(
            "FLWR_HOME is not set: name a new directory, since a connection is written there"
        )
    return Path(home)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options of ``deploy.operate``."""
    made = argparse.ArgumentParser(prog="python -m deploy.operate", description=__doc__)
    commands = made.add_subparsers(required=True, dest="command", metavar="COMMAND")
    register = commands.add_parser("register", help="register the public keys of the nodes at the SuperLink")
    register.add_argument("--public", type=Path, required=True, help="directory with the public keys, *.pub")
    wait = commands.add_parser("wait", help="wait until all nodes are online")
    train = commands.add_parser("train", help="wait for the nodes and run one training")
    train.add_argument("--runs", type=Path, required=True, help="directory of the runs on the server")
    train.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance method=gdpfed")
    train.add_argument(
        "--signature", type=Path, help="the consortium's signature of this checkout's app, which goes with it"
    )
    train.add_argument("--consortium", type=Path, help="file with the public key that has signed the app")
    train.add_argument("--database", type=Path, help="of the SuperLink, which gets the app's signature")
    nodes = commands.add_parser("nodes", help="list the registered nodes: name, id, status")
    nodes.add_argument("--unregister", metavar="NAME", help="take this node away first, for ever")
    flwr = commands.add_parser("flwr", help="run a command of flwr on this connection")
    flwr.add_argument("words", nargs="*", metavar="WORD", help="for instance list; options after --")
    for command in (wait, train):
        command.add_argument("--nodes", type=whole_number, required=True, help="how many nodes to wait for")
    for command in (register, wait, train, nodes, flwr):
        command.add_argument(
            "--superlink", type=address, required=True, metavar="HOST:PORT", help="where the SuperLink is"
        )
        command.add_argument(
            "--ca", type=Path, required=True, help="file with the certificate authority of the SuperLink"
        )
    return made


if __name__ == "__main__":
    raise SystemExit(main())
