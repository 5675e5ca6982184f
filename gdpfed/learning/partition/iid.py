"""An even random split."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt


def iid_indices(num_examples: int, num_clients: int, client_id: int, seed: int) -> npt.NDArray[np.int64]:
    """Positions of one client's examples.

    The examples are shuffled by ``seed`` and cut into ``num_clients`` runs whose lengths differ by at
    most one. With fewer examples than clients some clients hold none.
    """
    start, stop = (num_examples * edge // num_clients for edge in (client_id, client_id + 1))
    return _order(num_examples, num_clients, seed)[start:stop]


@lru_cache(maxsize=2)
def _order(num_examples: int, num_clients: int, seed: int) -> npt.NDArray[np.int64]:
    order = np.random.default_rng([seed, num_clients]).permutation(num_examples)
    order.setflags(write=False)
    return order
