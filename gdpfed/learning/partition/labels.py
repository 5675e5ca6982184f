"""An even split in the order of the labels: a client has one label, or two where its run ends in another."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.learning.datasets import Dataset


def label_indices(data: Dataset, num_clients: int, client_id: int, seed: int) -> npt.NDArray[np.int64]:
    """Positions of one client's examples.

    The examples are shuffled by ``seed``, put in the order of their labels, and cut into ``num_clients`` runs
    whose lengths differ by at most one: as many labels a client as there are labels for each, often one.
    """
    order = _order(data, seed)
    start, stop = (len(order) * edge // num_clients for edge in (client_id, client_id + 1))
    return order[start:stop]


@lru_cache(maxsize=2)
def _order(data: Dataset, seed: int) -> npt.NDArray[np.int64]:
    shuffled = np.random.default_rng(seed).permutation(len(data.train))
    order = shuffled[np.argsort(data.train.y[shuffled], kind="stable")]
    order.setflags(write=False)
    return order
