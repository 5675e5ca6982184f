"""The federations of a central server and of its edge servers, and the settings of their training runs.

Each edge is a federation of its own, and its edge client is a node of the cloud's federation.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from deploy.federation import EDGE_CLIENT_KIND, EXAMPLES_FILE, Federation, Node, TopologyError
from deploy.operate import training_words
from deploy.settings import INTERVAL_SECONDS
from gdpfed.decimal_numbers import whole_number
from gdpfed.errors import not_known
from secagg import CURIOUS, OFF

CLOUD = "cloud"
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
    """The federation of the central server, and one federation of devices for each edge server.

    `cloud`: whose nodes are the edge clients. `edges`: by name, in the order of the edge clients.
    """

    cloud: Federation
    edges: Mapping[str, Federation]

    @classmethod
    def of(
        cls,
        num_edges: int,
        num_nodes: int,
        budgets: Sequence[float] = (BUDGET,),
        secagg_mode: str = CURIOUS,
        examples: str = EXAMPLES_FILE,
        *,
        trusted_edges: int = 0,
        unsigned_apps: bool = False,
    ) -> Self:
        """Make `num_edges` edge servers with equally many nodes; nodes trust the first `trusted_edges` edges.

        `unsigned_apps`: whether edge clients and nodes run apps that their consortium has not signed.

        Raises TopologyError: fewer edges than a mean needs, nodes that do not divide among them, more trusted
        edges than there are, or several budgets.
        """
        if num_edges < MINIMUM_EDGES:
            raise TopologyError(f"--edges {num_edges} is below {MINIMUM_EDGES}: a mean needs several edges")
        if num_nodes % num_edges:
            raise TopologyError(
                f"--nodes {num_nodes} do not divide among {num_edges} edges: "
                f"take {num_nodes + -num_nodes % num_edges}"
            )
        if not 0 <= trusted_edges <= num_edges:
            raise TopologyError(f"--trusted-edges {trusted_edges} is not from 0 to {num_edges}, the edges")
        if len(budgets) != 1:
            raise TopologyError(
                f"--budgets {list(budgets)} has {len(budgets)} numbers, and all nodes behind edges share "
                "one budget: give one number"
            )
        devices = replace(
            Federation.of(num_nodes // num_edges, budgets, secagg_mode, "record", examples),
            unsigned_apps=unsigned_apps,
        )
        edge_clients = tuple(Node(number, BUDGET, EDGE_CLIENT_KIND) for number in range(num_edges))
        return cls(
            Federation(
                edge_clients,
                # A cloud sees the models of its edges.
                secagg_mode=OFF,
                of_edges=True,
                minimum_cohort=MINIMUM_EDGES,
                unsigned_apps=unsigned_apps,
            ),
            {
                f"edge-{number}": replace(devices, trusts_edge=number < trusted_edges)
                for number in range(num_edges)
            },
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the central server and of all edge servers."""
        return (CLOUD, *self.edges)

    def edge_client(self, edge: str) -> Node:
        """Return the node of the central server's federation that represents an edge server."""
        return self.cloud.nodes[list(self.edges).index(edge)]

    def overrides(self, host: str) -> tuple[str, ...]:
        """Return the settings (key=value) for one host's run: the central server's or an edge server's."""
        if host == CLOUD:
            return (*SHARED, *OF_CLOUD)
        return (*SHARED, *OF_EDGES, *(OF_TRUSTED if self.edges[host].trusts_edge else ()))

    def words(self, host: str, given: Sequence[str]) -> list[str]:
        """Return all settings (key=value) of one host's run: defaults, the host's own, and given ones."""
        if host == CLOUD:
            given = [word for word in given if word.partition(".")[0] in SHARED_GROUPS]
        federation = self.cloud if host == CLOUD else self.edges[host]
        return training_words(len(federation.nodes), [*self.overrides(host), *given])


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Add command-line options for federations with edge servers."""
    group = parser.add_argument_group("nodes behind edges (docs/h2fdp.md)")
    group.add_argument("--edges", type=whole_number, help="so many edges, with --nodes nodes of them all")
    group.add_argument("--host", metavar="NAME", help="cloud or edge-<i>: whose host this is for")


def layers_of(options: argparse.Namespace) -> Layers:
    """Return the central server and the edge servers that the command-line options describe.

    Raises TopologyError: layers that cannot be built, or a host that is none of them.
    """
    if options.unit == "client":
        raise TopologyError("--unit client: behind edges budgets are of records, so leave it out")
    if options.aversions or options.first_budgets or options.max_participations is not None:
        raise TopologyError(
            "--aversions, --first-budgets and --max-participations belong to a game, which is not played "
            "behind edges: leave them out"
        )
    budgets = (BUDGET,) if options.budgets is None else options.budgets
    trusted = getattr(options, "trusted_edges", 0)
    made = Layers.of(
        *(options.edges, options.nodes, budgets, options.secagg or CURIOUS, options.examples),
        trusted_edges=trusted,
        unsigned_apps=options.unsigned_apps,
    )
    described = partial(replace, parameters=options.parameters, unguarded=options.without_guard)
    edges = {name: described(edge) for name, edge in made.edges.items()}
    made = replace(made, cloud=described(made.cloud), edges=edges)
    if options.host is not None and options.host not in made.hosts:
        raise TopologyError(not_known(f"--host {options.host}", made.hosts))
    return made
