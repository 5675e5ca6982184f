"""Even splits: runs of equal length, of examples in a random order or in that of their labels."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset

Positions = npt.NDArray[np.int64]


def iid_indices(num_examples: int, num_clients: int, client_id: int, seed: int) -> Positions:
    """Positions of one client's examples.

    The examples are shuffled by ``seed`` and cut into ``num_clients`` runs whose lengths differ by at
    most one. With fewer examples than clients some clients hold none.
    """
    return _run(_shuffled(num_examples, num_clients, seed), num_clients, client_id)


def label_indices(data: Dataset, num_clients: int, client_id: int, seed: int) -> Positions:
    """Positions of one client's examples.

    The examples are shuffled by ``seed``, put in the order of their labels, and cut into ``num_clients`` runs
    whose lengths differ by at most one: as many labels a client as there are labels for each, often one.
    """
    return _run(_by_label(data, seed), num_clients, client_id)


def shard_indices(data: Dataset, num_clients: int, client_id: int, seed: int, shards: int) -> Positions:
    """Positions of one client's examples.

    The examples in the order of their labels are cut into ``num_clients`` times ``shards`` runs, and every
    client is given so many of them, drawn without replacement: about as many labels as shards, or fewer
    (McMahan, Moore, Ramage, Hampson, Aguera y Arcas, AISTATS 2017, section 3).

    Raises:
        LearningError: more runs than examples.
    """
    order, count = _by_label(data, seed), num_clients * shards
    if count > len(order):
        raise LearningError(
            f"dataset.shards={shards} for each of {num_clients} clients are {count:,} of {len(order):,} "
            f"examples: choose at most {len(order) // num_clients}, or fewer clients"
        )
    own = _shuffled(count, num_clients, seed)[client_id * shards : (client_id + 1) * shards]
    return np.concatenate([_run(order, count, shard) for shard in own.tolist()])


def _run(order: Positions, num_clients: int, client_id: int) -> Positions:
    start, stop = (len(order) * edge // num_clients for edge in (client_id, client_id + 1))
    return order[start:stop]


@lru_cache(maxsize=2)
def _shuffled(num_examples: int, num_clients: int, seed: int) -> Positions:
    order = np.random.default_rng([seed, num_clients]).permutation(num_examples)
    order.setflags(write=False)
    return order


@lru_cache(maxsize=2)
def _by_label(data: Dataset, seed: int) -> Positions:
    shuffled = np.random.default_rng(seed).permutation(len(data.train))
    order = shuffled[np.argsort(data.train.y[shuffled], kind="stable")]
    order.setflags(write=False)
    return order
