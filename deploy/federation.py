"""A federation's members: nodes, their budgets, and what each node accepts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import inf

from gdpfed.errors import InputError
from gdpfed.privacy.events import Unit
from secagg import ACTIVE

NODE_KIND, EDGE_CLIENT_KIND = "node", "edge-client"
EXAMPLES_FILE = "examples.npz"
DEFAULT_BUDGETS = (1.0, 3.0, 6.0)
DEFAULT_NODES = 6
RESNET18_PARAMETERS = 11_200_000
MINIMUM_COHORT = 3


class TopologyError(InputError):
    """Raised if a federation cannot be built; the message names the wrong value and the remedy."""


@dataclass(frozen=True)
class Node:
    """One client of a federation: its number, its budget, and its privacy aversion if it plays a budget game.

    `client_id`: its number in every plan. `epsilon`: its own budget; an edge client spends none. `kind`: a
    node, or the client of an edge. `aversion`, `first_budget`: by which it plays a game about budgets; None
    if it plays none.
    """

    client_id: int
    epsilon: float
    kind: str = NODE_KIND
    aversion: float | None = None
    first_budget: float | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.client_id}"

    @property
    def supernode(self) -> str:
        return f"{'' if self.kind == NODE_KIND else f'{self.kind}-'}supernode-{self.client_id}"

    @property
    def superexec(self) -> str:
        return f"{self.name}-superexec"

    @property
    def guard(self) -> str:
        return f"{self.name}-guard"

    @property
    def services(self) -> tuple[str, str, str]:
        """The names of the services that run for this node."""
        return self.supernode, self.superexec, self.guard


@dataclass(frozen=True)
class Federation:
    """All nodes of a federation, with the conditions that they set for secure sums and runs.

    Attributes:
        nodes: of the federation.
        secagg_mode: the least protection of a sum: curious or active; off for clients of edges.
        unit: whose budgets they have: their own as a client, or those of their records.
        examples: the name of the file of examples in the data folder of each.
        minimum_cohort: the smallest sum.
        trusts_edge: whether the nodes say that their server is an edge that may see single updates.
        of_edges: whether the nodes are clients of edges, which have neither data nor a budget.
        most_rounds: how many rounds of a run a node takes part in at most; None for all.
        unguarded: whether the app itself holds what is a node's own, and no guard does.
        unsigned_apps: whether nodes run apps that the consortium has not signed.
        parameters: d of the largest model that is trained, from which limits of memory follow.
    """

    nodes: tuple[Node, ...]
    secagg_mode: str = ACTIVE
    unit: Unit = "client"
    examples: str = EXAMPLES_FILE
    minimum_cohort: int = MINIMUM_COHORT
    trusts_edge: bool = False
    of_edges: bool = False
    most_rounds: int | None = None
    unguarded: bool = False
    unsigned_apps: bool = False
    parameters: int = RESNET18_PARAMETERS

    @property
    def signed_apps(self) -> bool:
        """Whether nodes only run Flower apps that the consortium (all parties together) has signed."""
        return not self.unsigned_apps

    @property
    def about_records(self) -> bool:
        """Whether budgets protect the nodes' single records rather than whole nodes."""
        return self.unit == "record"

    @classmethod
    def of(
        cls,
        num_nodes: int = DEFAULT_NODES,
        budgets: Sequence[float] = DEFAULT_BUDGETS,
        secagg_mode: str = ACTIVE,
        unit: Unit = "client",
        examples: str = EXAMPLES_FILE,
    ) -> "Federation":
        """Make nodes and give them the budgets in turn; a node's budget does not depend on `num_nodes`.

        Raises TopologyError: nodes that do not divide among the budgets, or fewer than a sum needs.
        """
        if not budgets or any(not epsilon > 0 for epsilon in budgets):
            raise TopologyError(f"budgets {list(budgets)} must be positive numbers, as in 1,3,6")
        if list(budgets) != sorted(set(budgets)):
            raise TopologyError(f"budgets {list(budgets)} must be strictly increasing, as in 1,3,6")
        if num_nodes < MINIMUM_COHORT:
            raise TopologyError(f"{num_nodes} nodes are fewer than the {MINIMUM_COHORT} of the smallest sum")
        if num_nodes % len(budgets):
            raise TopologyError(
                f"{num_nodes} nodes do not divide among {len(budgets)} budgets: "
                f"take {num_nodes + -num_nodes % len(budgets)}"
            )
        ordered = sorted(budgets)
        nodes = tuple(Node(i, ordered[i % len(ordered)]) for i in range(num_nodes))
        return cls(nodes, secagg_mode, unit, examples)

    def playing(
        self, aversions: Sequence[float], first_budgets: Sequence[float], most_rounds: int | None = None
    ) -> "Federation":
        """Return a federation whose nodes play a budget game with these privacy aversions and first budgets.

        Raises TopologyError: one list without the other, no budgets for records, or numbers out of range.
        """
        if most_rounds is not None and most_rounds < 1:
            raise TopologyError(f"--max-participations {most_rounds} must be at least 1")
        if bool(aversions) != bool(first_budgets):
            raise TopologyError("--aversions and --first-budgets belong together: give both or neither")
        if aversions and not self.about_records:
            raise TopologyError("--aversions is for budgets of records, not of clients: give --unit record")
        for value in aversions:
            if not 0 < value < 1:
                raise TopologyError(f"--aversions has {value:g}; each must lie in (0, 1)")
        for value in first_budgets:
            if not 0 < value < inf:
                raise TopologyError(f"--first-budgets has {value:g}; each must be finite and above 0")
        nodes = self.nodes
        if aversions:
            in_turn = zip(nodes, cycle(aversions), cycle(first_budgets), strict=False)
            nodes = tuple(replace(node, aversion=c, first_budget=rho) for node, c, rho in in_turn)
        return replace(self, nodes=nodes, most_rounds=most_rounds)

    @property
    def budgets(self) -> tuple[float, ...]:
        """The different epsilons of the nodes, in ascending order."""
        return tuple(sorted({node.epsilon for node in self.nodes}))
