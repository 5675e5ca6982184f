"""Graphs of members that share masks: complete, or a random ring with k neighbours each.

The sparse graph is that of Bell, Bonawitz, Gascon, Lepoint and Raykova (CCS 2020): a Harary graph,
in which each node is linked to the k/2 nodes on either side of it on a ring, with the members in
random order on the ring. The order follows from the session id, thus from every member's fresh
keys, and every client works it out for itself.
"""

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
        num_neighbours: k, even; at least len(ring) - 1 means the complete graph.
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
        """Return the Shamir numbers, from 1, of a member that splits its secrets and its neighbours.

        Numbers go by ascending id.
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
    # Sorting by 64 random bits each: uniform but for ties, whose probability is below n**2 / 2**65.
    words = np.frombuffer(keystream(graph_key(sid))(8 * len(ordered)), dtype="<u8")
    return Graph(tuple(ordered[np.argsort(words, kind="stable")].tolist()), num_neighbours)


@lru_cache(maxsize=64)
def sparse_degree(num_clients: int, corrupt_fraction: float, dropout_fraction: float) -> tuple[int, int]:
    """Return the fewest neighbours k, and threshold t, that make a sparse graph private and correct.

    Private but for 2**-40: no client has t corrupt neighbours, and what is left of the ring without the
    corrupt and the dropped hangs together. Correct but for 2**-20: each client keeps t neighbours after the
    dropouts. k is even and t above k/2 always. `num_clients`: n. `corrupt_fraction`: at most ceil(this * n)
    members collude with the server. `dropout_fraction`: at most ceil(this * n) members vanish at any time of
    the sum. Raises ValueError: no k below n - 1 does; use the complete graph or tolerate less.
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
            break  # A larger threshold is only less correct.
    raise ValueError(
        f"no sparse graph of {num_clients} clients withstands {corrupt} corrupt and {dropped} dropped "
        f"members with 2**-{PRIVACY_BITS} and 2**-{CORRECTNESS_BITS}: use the complete graph "
        "(num_neighbours = 0), tolerate fewer, or ask more clients"
    )


@lru_cache(maxsize=1024)
def is_private(num_clients: int, degree: int, threshold: int, corrupt: int, dropped: int) -> bool:
    """Whether a sparse graph keeps updates private, except with probability 2**-40.

    The first by a union bound over n hypergeometric tails. For the second, two runs of k/2 adjacent
    nodes, k in all, must be corrupt or gone: a union bound over the pairs of places.
    """
    ways = _tail(num_clients - 1, corrupt, degree, threshold)
    if num_clients * ways << PRIVACY_BITS > comb(num_clients - 1, degree):
        return False
    bad_runs = comb(num_clients, 2) * comb(corrupt + dropped, degree)
    return bad_runs << PRIVACY_BITS <= comb(num_clients, degree)


@lru_cache(maxsize=256)
def fewest_private(num_clients: int, degree: int, threshold: int, corrupt: int, dropped: int) -> int:
    """Return the smallest number of members with which a sparse graph stays private, or n if none may miss.

    The corrupt are all there, so on a smaller ring they weigh more.
    """
    members = num_clients
    while members > num_clients - dropped:
        absent = num_clients - members + 1
        if not is_private(members - 1, degree, threshold, corrupt, dropped - absent):
            break
        members -= 1
    return members


def is_correct(num_clients: int, degree: int, threshold: int, dropped: int) -> bool:
    """Whether every client keeps enough neighbours after dropouts, except with probability 2**-20.

    Enough are as many as the threshold t.
    """
    ways = _tail(num_clients - 1, dropped, degree, degree - threshold + 1)
    return num_clients * ways << CORRECTNESS_BITS <= comb(num_clients - 1, degree)


def _tail(population: int, marked: int, draws: int, least: int) -> int:
    """Count the ways to draw without replacement at least `least` marked members."""
    return sum(
        comb(marked, hits) * comb(population - marked, draws - hits)
        for hits in range(least, min(marked, draws) + 1)
    )
