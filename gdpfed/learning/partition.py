"""Who holds which examples: computed from a seed, the same on every node, without sending data."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.learning.errors import LearningError


def iid_indices(num_examples: int, num_clients: int, client_id: int, seed: int) -> npt.NDArray[np.int64]:
    """Positions of one client's examples in an even random split.

    The examples are shuffled by ``seed`` and cut into ``num_clients`` runs whose lengths differ by at
    most one. With fewer examples than clients some clients hold none.

    Raises:
        LearningError: ``client_id`` outside ``range(num_clients)``.
    """
    if not 0 <= client_id < num_clients:
        raise LearningError(f"client {client_id} is none of the {num_clients} clients of the split")
    start, stop = (num_examples * edge // num_clients for edge in (client_id, client_id + 1))
    return _order(num_examples, num_clients, seed)[start:stop]


@lru_cache(maxsize=2)
def _order(num_examples: int, num_clients: int, seed: int) -> npt.NDArray[np.int64]:
    order = np.random.default_rng([seed, num_clients]).permutation(num_examples)
    order.setflags(write=False)
    return order
