"""Groups of clients that share a privacy budget.

Source: Xu, Hu, Kotevska, "Optimal Client Sampling in Federated Learning with Client-Level
Heterogeneous Differential Privacy": clients are partitioned by budget, and a group's budget is its
smallest member's. The assignment looks at budgets and at nothing else, never at data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.privacy.validation import (
    require_count,
    require_length,
    require_number,
    require_positive,
)

SHARES_TOLERANCE = 1e-6
DELTA_EXPONENT = -1.1
LEAST_EPSILON, MOST_EPSILON = 1e-9, 1e9
"""Beyond these the arithmetic of plans ends."""
LARGEST_DEFAULT_DELTA = 1e-5
"""n**-1.1 is about 1 / (2 n), so alone it would allow that one of 360 clients is exposed with 43 %."""


@dataclass(frozen=True)
class Group:
    """Clients with the same privacy budget.

    `epsilon` is the budget eps_m of every client of the group over the whole training.
    `clients` are distinct client ids >= 0; a `range` is kept as it is, so that a million clients
    cost nothing, and any other sequence becomes a tuple.
    """

    epsilon: float
    clients: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _checked_epsilon(self.epsilon))
        if not isinstance(self.clients, range):
            object.__setattr__(self, "clients", tuple(int(client) for client in self.clients))
        clients = self.clients
        if len(clients) == 0:
            raise PrivacyError("a group has no clients; leave it out or give it at least one")
        if min(clients[0], clients[-1]) < 0 or (isinstance(clients, tuple) and min(clients) < 0):
            raise PrivacyError(f"client id {min(clients)} is negative; ids count from 0")
        if isinstance(clients, tuple) and len(set(clients)) != len(clients):
            raise PrivacyError(f"a group of {len(clients)} clients repeats an id; list each once")

    @property
    def size(self) -> int:
        """The number of clients |G_m|."""
        return len(self.clients)


def default_delta(num_clients: int) -> float:
    """Return the default delta for n clients: the smaller of 1e-5 and n**-1.1."""
    return min(LARGEST_DEFAULT_DELTA, paper_delta(num_clients))


def paper_delta(num_clients: int) -> float:
    """Return n**-1.1, the delta that the GDPFed paper uses for n clients in its tables (Section 5)."""
    return float(require_count("num_clients", num_clients) ** DELTA_EXPONENT)


def exposure(num_clients: int, delta: float) -> float:
    """Return 1 - (1 - delta)**n: the chance that delta lets at least one of n clients be exposed.

    It is the worst that an (epsilon, delta) promise allows: a mechanism that publishes each client with
    probability delta, independently of the others, keeps it.
    """
    return -math.expm1(num_clients * math.log1p(-delta))


def groups_from_shares(
    num_clients: int, budgets: Sequence[float], shares: Sequence[float] | None = None
) -> tuple[Group, ...]:
    """Split clients 0..n-1 into contiguous groups, one for each budget.

    Sizes are shares * n rounded by largest remainders (ties to the earlier group), so they sum to n; a group
    that would round to nothing gets one client of the largest. `shares` None means equal shares. Budgets must
    be strictly increasing. Raises PrivacyError for budgets that are not positive, finite and increasing, for
    shares that are not positive or do not sum to one within 1e-6, and for fewer clients than groups.
    """
    require_count("num_clients", num_clients)
    check_budgets(budgets)
    if shares is None:
        shares = [1.0 / len(budgets)] * len(budgets)
    require_length("privacy.group_shares", shares, len(budgets))
    for share in shares:
        require_positive("an entry of privacy.group_shares", share)
    total = math.fsum(shares)
    if abs(total - 1.0) > SHARES_TOLERANCE:
        raise PrivacyError(f"privacy.group_shares={list(shares)} sums to {total:.6g}; it must sum to one")
    if num_clients < len(budgets):
        raise PrivacyError(
            f"dataset.num_clients={num_clients} is too few for {len(budgets)} groups: each needs a client"
        )
    quotas = [num_clients * share / total for share in shares]
    sizes = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda m: sizes[m] - quotas[m])
    for m in by_remainder[: num_clients - sum(sizes)]:
        sizes[m] += 1
    while 0 in sizes:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(0)] += 1
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(
        Group(epsilon, range(start, end))
        for epsilon, start, end in zip(budgets, ends[:-1], ends[1:], strict=True)
    )


def groups_from_sizes(epsilon: float, sizes: Sequence[int]) -> tuple[Group, ...]:
    """Split clients 0, 1, ... into contiguous groups of these sizes, all with one budget."""
    ends = [0, *accumulate(sizes)]
    return tuple(Group(epsilon, range(start, end)) for start, end in pairwise(ends))


def form_groups(
    epsilons: Sequence[float],
    *,
    num_groups: int | None = None,
    edges: Sequence[float] | None = None,
) -> tuple[Group, ...]:
    """Group clients with similar budgets (`epsilons`); a group's budget is the smallest one of its clients.

    Client i has the budget `epsilons[i]`.
    With `num_groups` the cuts between distinct budgets are chosen nearest to the equal-size quantiles, and
    exactly that many groups come back. With `edges` (increasing) a client falls in the interval [edge_k,
    edge_k+1) that holds its budget, below the first and from the last edge on included; intervals without a
    client form no group. Equal budgets always share a group, and a group's budget is its smallest member's,
    so no client ever exceeds its own. Raises PrivacyError for budgets that are not positive and finite,
    unless exactly one of `num_groups` and `edges` is given, and for more groups than distinct budgets.
    """
    values = np.asarray(epsilons, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise PrivacyError("epsilons holds no budgets; give one number for each client")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if wrong.size:
        raise PrivacyError(
            f"epsilon of client {wrong[0]} is {values[wrong[0]]}; it must be positive and finite"
        )
    if (num_groups is None) == (edges is None):
        raise PrivacyError(f"num_groups is {num_groups} and edges is {edges}; give exactly one of the two")
    if edges is None:
        wanted = require_count("num_groups", num_groups)
        distinct, counts = np.unique(values, return_counts=True)
        if wanted > distinct.size:
            raise PrivacyError(
                f"privacy.num_groups={wanted} is more than the {distinct.size} distinct budgets: ask for "
                "fewer"
            )
        below = np.cumsum(counts)
        places: list[int] = []
        for m in range(1, wanted):
            nearest = int(np.argmin(np.abs(below - m * values.size / wanted))) + 1
            lowest = places[-1] + 1 if places else 1
            places.append(min(max(nearest, lowest), distinct.size - (wanted - m)))
        cuts = distinct[places]
    else:
        numbers = [require_number("an edge", edge) for edge in edges]
        if any(before >= after for before, after in pairwise(numbers)):
            raise PrivacyError(f"edges are {list(edges)}; they must be strictly increasing")
        cuts = np.asarray(numbers)
    labels = np.searchsorted(cuts, values, side="right")
    members = (np.flatnonzero(labels == label) for label in np.unique(labels))
    return tuple(Group(float(values[ids].min()), _compact(ids)) for ids in members)


def merge_groups(groups: Sequence[Group]) -> Group:
    """Merge groups into one with all clients and the smallest budget, as DP-FedAvg needs it."""
    if not groups:
        raise PrivacyError("groups is empty; give at least one group")
    check_disjoint(groups)
    epsilon = min(group.epsilon for group in groups)
    ordered = sorted((group.clients for group in groups), key=lambda clients: clients[0])
    if all(isinstance(clients, range) and clients.step == 1 for clients in ordered):
        ends = [clients[-1] + 1 for clients in ordered]
        if all(end == after[0] for end, after in zip(ends[:-1], ordered[1:], strict=True)):
            return Group(epsilon, range(ordered[0][0], ends[-1]))
    ids = np.sort(np.concatenate([np.asarray(clients, dtype=np.int64) for clients in ordered]))
    return Group(epsilon, _compact(ids))


def check_disjoint(groups: Sequence[Group]) -> None:
    """Raise PrivacyError if two groups share a client, whose budget would be ambiguous."""
    ordered = sorted(groups, key=lambda group: group.clients[0])
    if all(isinstance(g.clients, range) and g.clients.step > 0 for g in groups):
        pairs = pairwise(ordered)
        if all(before.clients[-1] < after.clients[0] for before, after in pairs):
            return
    ids = np.concatenate([np.asarray(group.clients, dtype=np.int64) for group in groups])
    distinct, counts = np.unique(ids, return_counts=True)
    if distinct.size != ids.size:
        raise PrivacyError(f"client {distinct[counts > 1][0]} is in more than one group; put it in one")


def _checked_epsilon(value: float) -> float:
    epsilon = require_positive("a group's epsilon", value)
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise PrivacyError(
            f"a group's epsilon is {value}; no plan can be made of one outside {LEAST_EPSILON:g} to "
            f"{MOST_EPSILON:g}"
        )
    return epsilon


def check_budgets(budgets: Sequence[float]) -> None:
    """Raise PrivacyError if budgets are missing, or are not positive, finite and strictly increasing."""
    if len(budgets) == 0:
        raise PrivacyError("privacy.budgets is empty; give one epsilon for each group")
    for epsilon in budgets:
        _checked_epsilon(epsilon)
    for before, after in pairwise(budgets):
        if before >= after:
            raise PrivacyError(
                f"budgets are {list(budgets)}; they must be strictly increasing, but {after} follows {before}"
            )


def _compact(ids: npt.NDArray[Any]) -> Sequence[int]:
    first, last = int(ids[0]), int(ids[-1])
    if last - first + 1 == ids.size:
        return range(first, last + 1)
    return tuple(ids.tolist())
