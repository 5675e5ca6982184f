"""How many neighbours must help to recover a client's secrets, on the complete graph.

On a sparse graph it follows from the degree, see `secagg.protocol.graph.sparse_degree`.
"""

import math

from secagg.protocol.parameters import ACTIVE, CURIOUS


def threshold_for(num_clients: int, fraction: float, *, corrupt: int = 0, mode: str = CURIOUS) -> int:
    """Shamir's threshold t on the complete graph, where k = num_clients - 1.

    t = min(k, max(floor(k / 2), floor(fraction * k), c) + 1); for a server that may lie, at least floor((n +
    c) / 2) + 1. Above k / 2 always, so that no two disjoint groups of neighbours can reveal both of a
    client's secrets (Bonawitz et al., CCS 2017, section 6; Bell et al., CCS 2020, section 3), and above c, so
    that the corrupt alone recover none. `num_clients`: n. `fraction`: of the neighbours, who must help.
    `corrupt`: c, how many members may share all they know with the server. `mode`: "curious" or "active".
    Raises ValueError: fewer than 2 clients or a fraction outside [0, 1].
    """
    if num_clients < 2 or not 0 <= fraction <= 1:
        raise ValueError(f"{num_clients} clients, fraction {fraction}: use at least 2 clients and 0..1")
    neighbours = num_clients - 1
    least = max(neighbours // 2, math.floor(fraction * neighbours), corrupt) + 1
    if mode == ACTIVE:
        least = max(least, (num_clients + corrupt) // 2 + 1)
    return min(neighbours, least)
