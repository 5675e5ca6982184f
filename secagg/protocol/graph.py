"""Graphs of members that share masks: complete, or a random ring with k neighbours each.

The sparse graph is that of Bell, Bonawitz, Gascon, Lepoint and Raykova (CCS 2020), a Harary graph: members
are on a ring in random order, and each is linked to the k/2 members on either side. The order follows from
the session id, so from every member's fresh keys; each client computes it for itself.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, comb

import numpy as np

from secagg.crypto.keys import graph_key
from secagg.crypto.prg import keystream

PRIVACY_BITS = 40
CORRECTNESS_BITS = 20
COMPLETE_BELOW = 60
"""Cohorts below this size gain nothing from a sparse graph."""


@dataclass(frozen=True)
class Graph:
    """Which members of a sum are neighbours: they share masks, and hold shares of each other's secrets.

    Attributes:
        ring: the members in the order of the ring.
        num_neighbours: k, even in a sparse graph; len(ring) - 1 or more means the complete graph.
    """

    ring: tuple[int, ...]
    num_neighbours: int

    @property
    def is_complete(self) -> bool:
        return self.num_neighbours >= len(self.ring) - 1

    def neighbours(self, client_id: int) -> frozenset[int]:
        """Return the neighbours of a member."""
        return frozenset(self.holders(client_id)) - {client_id}

    def holders(self, dealer: int) -> dict[int, int]:
        """Map each holder of a member's secret shares (itself and its neighbours) to a Shamir number from 1.

        They are numbered in ascending order of id.
        """
        if self.is_complete:
            return self._everybody
        half, at = self.num_neighbours // 2, self._position[dealer]
        near = (self.ring[(at + step) % len(self.ring)] for step in range(-half, half + 1))
        return {member: number for number, member in enumerate(sorted(near), start=1)}

    @cached_property
    def _position(self) -> dict[int, int]:
        return {member: at for at, member in enumerate(self.ring)}

    @cached_property
    def _everybody(self) -> dict[int, int]:
        return {member: number for number, member in enumerate(sorted(self.ring), start=1)}


def graph_of(sid: bytes, members: frozenset[int], num_neighbours: int) -> Graph:
    """Compute a sum's graph from public numbers; num_neighbours = 0 means the complete graph."""
    ordered = np.array(sorted(members), dtype=np.uint64)
    if not num_neighbours or num_neighbours >= len(ordered) - 1:
        return Graph(tuple(ordered.tolist()), max(len(ordered) - 1, 0))
    # Sorted by 64 random bits each: a uniform order except for ties, of probability below n**2 / 2**65.
    words = np.frombuffer(keystream(graph_key(sid))(8 * len(ordered)), dtype="<u8")
    return Graph(tuple(ordered[np.argsort(words, kind="stable")].tolist()), num_neighbours)


@lru_cache(maxsize=64)
def sparse_degree(num_clients: int, corrupt_fraction: float, dropout_fraction: float) -> tuple[int, int]:
    """Return the fewest neighbours k, and threshold t, that make a sparse graph private and correct.

    Private, except with probability 2**-40: no client has t corrupt neighbours, and the graph without corrupt
    and dropped members is connected. Correct, except with probability 2**-20: each client keeps t neighbours
    after the dropouts. k is even, and t is above k/2. `num_clients`: n. `corrupt_fraction`: at most
    ceil(this * n) members collude with the server. `dropout_fraction`: at most ceil(this * n) members drop
    out, at any time of the sum. Raises ValueError if no k below n - 1 suffices.
    """
    if num_clients < 4 or not (0 <= corrupt_fraction < 1 and 0 <= dropout_fraction < 1):
        raise ValueError(
            f"{num_clients} clients, corrupt {corrupt_fraction}, dropped {dropout_fraction}: "
            "use at least 4 clients and fractions in [0, 1)"
        )
    corrupt, dropped = ceil(corrupt_fraction * num_clients), ceil(dropout_fraction * num_clients)
    for degree in range(2, num_clients - 1, 2):
        for threshold in range(degree // 2 + 1, degree + 1):
            if not is_private(num_clients, degree, threshold, corrupt, dropped):
                continue
            if is_correct(num_clients, degree, threshold, dropped):
                return degree, threshold
            break  # A larger threshold makes the graph less correct.
    raise ValueError(
        f"no sparse graph of {num_clients} clients withstands {corrupt} corrupt and {dropped} dropped "
        f"members with 2**-{PRIVACY_BITS} and 2**-{CORRECTNESS_BITS}: use the complete graph "
        "(num_neighbours = 0), tolerate fewer, or ask more clients"
    )


@lru_cache(maxsize=1024)
def is_private(num_clients: int, degree: int, threshold: int, corrupt: int, dropped: int) -> bool:
    """Whether a sparse graph keeps updates private, except with probability 2**-40.

    That some client has t corrupt neighbours is bounded by a union over n hypergeometric tails. The graph
    without corrupt and dropped members is disconnected only if two runs of k/2 adjacent members each are
    corrupt or dropped; that is bounded by a union over the pairs of places.
    """
    ways = _tail(num_clients - 1, corrupt, degree, threshold)
    if num_clients * ways << PRIVACY_BITS > comb(num_clients - 1, degree):
        return False
    bad_runs = comb(num_clients, 2) * comb(corrupt + dropped, degree)
    return bad_runs << PRIVACY_BITS <= comb(num_clients, degree)


@lru_cache(maxsize=256)
def fewest_private(num_clients: int, degree: int, threshold: int, corrupt: int, dropped: int) -> int:
    """Return the fewest members with which a sparse graph stays private; n if no member may be absent.

    It assumes that no corrupt member is absent, so corrupt members are a larger part of a smaller ring.
    """

    def fails(absent: int) -> bool:
        return not is_private(num_clients - absent, degree, threshold, corrupt, dropped - absent)

    # With fewer members, t corrupt neighbours are likelier, and two bad runs less likely: bisection finds it.
    most = dropped if corrupt < threshold else min(dropped, num_clients - max(corrupt, degree) - 1)
    return num_clients - (0 if most < 1 or fails(1) else bisect_left(range(1, most + 1), True, key=fails))


def is_correct(num_clients: int, degree: int, threshold: int, dropped: int) -> bool:
    """Whether every client keeps at least t neighbours after dropouts, except with probability 2**-20."""
    ways = _tail(num_clients - 1, dropped, degree, degree - threshold + 1)
    return num_clients * ways << CORRECTNESS_BITS <= comb(num_clients - 1, degree)


def _tail(population: int, marked: int, draws: int, least: int) -> int:
    """Count the ways to draw without replacement at least `least` marked members."""
    unmarked, total = population - marked, 0
    first = max(least, draws - unmarked)
    ways = comb(marked, first) * comb(unmarked, draws - first) if first <= draws else 0
    for hits in range(first, min(marked, draws) + 1):
        total += ways
        ways = ways * (marked - hits) * (draws - hits) // ((hits + 1) * (unmarked - draws + hits + 1))
    return total
