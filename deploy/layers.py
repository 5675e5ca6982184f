"""``python -m deploy.layers``: train once with central server, edge servers and devices on this machine.

Every edge is a federation of its own, with a SuperLink and a run for its devices; its client is a node of the
cloud's federation. The devices of the first edge trust it, those of the others sum securely.
"""

import argparse
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from rich.console import Console

from conf.load import load, refuse_twice
from deploy.edges import CLOUD, MINIMUM_EDGES, Layers
from deploy.local import add_wall, audit_nodes, check_wall, said_budgets
from deploy.loopback import LoopbackFederation, Named
from deploy.options import add_unsigned, exit_status
from gdpfed.cli import main as gdpfed
from gdpfed.cli.command import make_console
from gdpfed.decimal_numbers import whole_number
from gdpfed.errors import AuditError, LaunchError
from gdpfed.launch.flower_run import FlowerRun
from gdpfed.methods import make_method
from gdpfed.report.plan_table import plan_table
from gdpfed.runs.paths import require_unused, reserved, run_path
from gdpfed.runs.round_log import read_rounds

RUN = "run"


class LoopbackLayers:
    """Runs central server, edge servers and nodes on this machine; leaving ``with`` removes them again.

    Args:
        overrides: of the trainings that will follow, as far as they name files.

    `federations`: by name, the cloud first. `training`: the submitted run of each.
    """

    def __init__(self, layers: Layers, overrides: Sequence[str] = ()) -> None:
        self.layers = layers
        self._overrides = overrides
        self.federations: dict[str, LoopbackFederation] = {}
        self.training: dict[str, FlowerRun] = {}

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for name, federation in {CLOUD: self.layers.cloud, **self.layers.edges}.items():
                shared = () if name == CLOUD else (self.mailbox(name),)
                running = LoopbackFederation(federation, named=Named.by(self._overrides, *shared))
                self.federations[name] = started.enter_context(running)
            self._ending = started.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.close()

    def mailbox(self, edge: str) -> Path:
        """Return the folder in which an edge server's run and the edge's own client exchange files."""
        return self.federations[CLOUD].mailbox_of(self.layers.edge_client(edge))

    def train(self, name: str, overrides: Sequence[str]) -> FlowerRun:
        """Submit or resume the run of one federation: the central server's or an edge server's."""
        words = self.layers.words(name, overrides)
        if name != CLOUD:
            words.append(f"run.mailbox={self.mailbox(name)}")
        self.training[name] = self.federations[name].train(RUN, words)
        return self.training[name]

    def files(self, name: str) -> Path:
        """Return the folder with the run files of the named federation: the central server's or an edge's."""
        return self.federations[name].runs / RUN

    def follow(self) -> None:
        """Wait until the runs of the central server and of all edge servers have ended.

        Raises LaunchError: one failed; one line that says why.
        """
        waiting = dict(self.training)
        while waiting:
            for name, run in list(waiting.items()):
                if not run.running():
                    try:
                        run.check()
                    except LaunchError as error:
                        raise LaunchError(f"{name}: {error}") from None
                    del waiting[name]

    def keep(self, kept: Path) -> None:
        """Copy each federation's run files, if any, to a folder with the federation's name in ``kept``."""
        for name in self.federations:
            if self.files(name).is_dir():
                shutil.copytree(self.files(name), kept / name, dirs_exist_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``deploy.layers`` command; return 0 if done, 2 for bad input or failure, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m deploy.layers", description=__doc__)
    parser.add_argument(
        "--edges", type=whole_number, default=MINIMUM_EDGES, help="edges (default: %(default)s)"
    )
    parser.add_argument(
        "--nodes", type=whole_number, default=6, help="nodes of all edges (default: %(default)s)"
    )
    add_wall(parser)
    add_unsigned(parser)
    parser.add_argument("--directory", metavar="DIR", help="where the runs' files are kept")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance run.num_rounds=1")
    options = parser.parse_args(arguments)
    return exit_status(lambda: train(options, make_console()))


def train(options: argparse.Namespace, console: Console) -> None:
    """Check all plans, start all servers and nodes, train, keep the files, audit runs and node ledgers."""
    refuse_twice(options.overrides)
    layers = Layers.of(options.edges, options.nodes, trusted_edges=1, unsigned_apps=options.unsigned_apps)
    check_wall(layers.cloud, options, console)
    for name, edge in layers.edges.items():
        words = [*layers.words(name, options.overrides), "run.mailbox=/mailbox"]
        console.print(f"{name}:")
        console.print(plan_table(make_method(load([*words, *said_budgets(edge, words)]))))
    config = load(layers.words(CLOUD, options.overrides))
    kept = run_path(options.directory, config.dataset.name, "layers")
    require_unused(kept, setting="--directory")
    if options.directory is None:
        kept = reserved(kept)
    console.print(f"starting the cloud, {options.edges} edges and {options.nodes} nodes ...")
    with LoopbackLayers(layers, options.overrides) as running:
        console.print("every node is online, over TLS and under its own key; training ...")
        try:
            for name in (*layers.edges, CLOUD):
                running.train(name, options.overrides)
            running.follow()
        finally:
            running.keep(kept)
        for name in layers.edges:
            console.print(f"{name}:")
            audit_nodes(running.federations[name], console)
    for record in read_rounds(kept / CLOUD):
        accuracy = 100 * (record.accuracy or 0)
        console.print(f"round {record.round}  accuracy {accuracy:.1f} %  edges {record.survivors[0]}")
    console.print(f"The runs' files are in {kept}", soft_wrap=True)
    for name in layers.edges:
        if gdpfed(["audit", str(kept / name)]) != 0:
            raise AuditError(
                f"the privacy statement of {kept / name} does not hold: see the audit's lines above"
            )


if __name__ == "__main__":
    raise SystemExit(main())
