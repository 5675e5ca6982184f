"""``python -m deploy.layers``: a cloud, its edges and their devices on this machine train once.

Every edge is a federation of its own, with a SuperLink and a run for its devices; its bridge is a node of the
cloud's federation. The devices of the first edge trust it, those of the others sum securely.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from rich.console import Console

from conf.load import load
from deploy.control import training_words
from deploy.local import audit_nodes, said_budgets
from deploy.options import exit_status
from deploy.processes import LoopbackFederation
from deploy.topology import INTERVAL_SECONDS, Federation, Node, TopologyError
from gdpfed.cli import main as gdpfed
from gdpfed.cli.command import make_console
from gdpfed.errors import AuditError, LaunchError
from gdpfed.launch.flower_run import FlowerRun
from gdpfed.methods import make_method
from gdpfed.report.plan_table import plan_table
from gdpfed.runs.paths import require_unused
from gdpfed.runs.records import read_rounds, run_path

CLOUD = "cloud"
RUN = "run"
MINIMUM_EDGES = 2
BUDGET = 8.0
# What edges and cloud have in common: an edge refuses a job that orders anything else.
SHARED = ("dataset.model=softmax", "training.local_steps=2", "run.num_rounds=2")
OF_EDGES = (
    "privacy=record_level",
    "privacy.num_groups=1",
    "method=h2fdp",
    "method.num_subnets=1",
    "method.mechanism=step_sum",
    "privacy.accountant=rdp",
)
OF_TRUSTED = ("method.trust=trusted", "secagg=off")
# An interval takes many exchanges of its edge, so the cloud waits longer than an edge does.
OF_CLOUD = (
    "method=edge_average",
    "secagg=off",
    "secagg.minimum_cohort=2",
    "privacy.budgets=[1]",
    f"run.timeout_seconds={INTERVAL_SECONDS + 60}",
)
SHARED_GROUPS = ("training", "dataset", "run")


@dataclass(frozen=True)
class Layers:
    """The federations of a cloud and its edges.

    Attributes:
        cloud: whose nodes are the bridges.
        edges: by name.
    """

    cloud: Federation
    edges: Mapping[str, Federation]

    @classmethod
    def of(cls, num_edges: int, num_nodes: int, epsilon: float = BUDGET) -> Self:
        """So many edges with equally many nodes each, of which the first edge is trusted by its nodes.

        Raises:
            TopologyError: fewer edges than a mean needs, or nodes that do not divide among them.
        """
        if num_edges < MINIMUM_EDGES:
            raise TopologyError(f"--edges {num_edges} is below {MINIMUM_EDGES}: a mean of one edge is none")
        if num_nodes % num_edges:
            raise TopologyError(
                f"--nodes {num_nodes} do not divide among {num_edges} edges: "
                f"take {num_nodes + -num_nodes % num_edges}"
            )
        devices = Federation.of(num_nodes // num_edges, (epsilon,), unit="record")
        bridges = tuple(Node(number, epsilon) for number in range(num_edges))
        return cls(
            Federation(bridges, of_edges=True, minimum_cohort=MINIMUM_EDGES),
            {f"edge-{number}": replace(devices, trusts_edge=number == 0) for number in range(num_edges)},
        )

    def words(self, name: str, overrides: Sequence[str]) -> list[str]:
        """The overrides of one federation's run: those of all, then those that are given for it."""
        shared = [word for word in overrides if word.partition(".")[0] in SHARED_GROUPS]
        if name == CLOUD:
            return training_words(len(self.cloud.nodes), [*SHARED, *OF_CLOUD, *shared])
        edge = self.edges[name]
        trust = OF_TRUSTED if edge.trusts_edge else ()
        return training_words(len(edge.nodes), [*SHARED, *OF_EDGES, *trust, *overrides])


class LoopbackLayers:
    """Cloud and edges that run during a ``with`` block; afterwards no process and no file of them is left.

    Attributes:
        federations: by name, the cloud first.
        training: the submitted run of each.
    """

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self.federations: dict[str, LoopbackFederation] = {}
        self.training: dict[str, FlowerRun] = {}

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for name, federation in {CLOUD: self.layers.cloud, **self.layers.edges}.items():
                self.federations[name] = started.enter_context(LoopbackFederation(federation))
            self._ending = started.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.close()

    def bridge(self, number: int) -> Path:
        """The folder between an edge's run and its bridge."""
        cloud = self.federations[CLOUD]
        return cloud.bridge_of(cloud.federation.nodes[number])

    def train(self, name: str, overrides: Sequence[str]) -> FlowerRun:
        """Submit the run of one federation, or continue it if it is there already."""
        words = self.layers.words(name, overrides)
        if name != CLOUD:
            words.append(f"run.bridge={self.bridge(list(self.layers.edges).index(name))}")
        self.training[name] = self.federations[name].train(RUN, words)
        return self.training[name]

    def files(self, name: str) -> Path:
        """The files of a federation's run."""
        return self.federations[name].runs / RUN

    def follow(self) -> None:
        """Wait until every run has ended.

        Raises:
            LaunchError: one failed; one line that says why.
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
        """Copy the files of every run that has any to a folder of its own in ``kept``."""
        for name in self.federations:
            if self.files(name).is_dir():
                shutil.copytree(self.files(name), kept / name, dirs_exist_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 2 bad input or a failed run, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return exit_status(lambda: train(options, make_console()))
    except KeyboardInterrupt:
        print("deploy: interrupted", file=sys.stderr)
        return 130


def train(options: argparse.Namespace, console: Console) -> None:
    """Check the plans, start everything, train, keep the files, audit them and the devices' ledgers."""
    layers = Layers.of(options.edges, options.nodes)
    for name, edge in layers.edges.items():
        words = [*layers.words(name, options.overrides), "run.bridge=/bridge"]
        console.print(f"{name}:")
        console.print(plan_table(make_method(load([*words, *said_budgets(edge, words)]))))
    config = load(layers.words(CLOUD, options.overrides))
    kept = run_path(options.directory, config.dataset.name, "layers")
    require_unused(kept, setting="--directory")
    console.print(f"starting the cloud, {options.edges} edges and {options.nodes} nodes ...")
    with LoopbackLayers(layers) as running:
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
            raise AuditError(f"the privacy statement of {kept / name} does not hold")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.layers", description=__doc__)
    parser.add_argument("--edges", type=int, default=MINIMUM_EDGES, help="edges (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=6, help="nodes of all edges (default: %(default)s)")
    parser.add_argument("--directory", metavar="DIR", help="where the runs' files are kept")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance run.num_rounds=1")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
