"""Divides examples among clients, and the records of a client among groups, each with a privacy budget.

Every node computes the same division from the run's seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset, Split
from gdpfed.learning.data.named_partitions import (
    BY_CLASS,
    BY_LABEL,
    OF_ONE_CLIENT,
    labels_as_table,
    shared_out,
)

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Positions = npt.NDArray[np.int64]
"""Positions of examples in the training split."""


@dataclass(frozen=True)
class Partition:
    """How the training split is divided among clients.

    Attributes:
        name: a name in `OF_ONE_CLIENT` or `PARTITIONS` (`gdpfed.learning.data.named_partitions`).
        dirichlet_alpha: the concentration, for dirichlet; a smaller one gives a client fewer classes.
        shards: the number of shards of a client, for shards.
        options: the options of a partition in `PARTITIONS`, by name.
    """

    name: str
    num_clients: int
    seed: int
    dirichlet_alpha: float | None = None
    shards: int | None = None
    options: tuple[tuple[str, float | str], ...] = ()

    def largest(self, data: Dataset) -> int:
        """Return the largest number of examples that a client can have; for dirichlet, all examples."""
        if self.name in ("iid", "labels"):
            return -(-len(data.train) // self.num_clients)
        if self.name == "shards" and self.shards is not None:
            return self.shards * -(-len(data.train) // (self.shards * self.num_clients))
        if self.name == "natural" and data.owners is not None:
            return int(_sizes(data).max(initial=0))
        if self.name not in OF_ONE_CLIENT:
            return max(map(len, self._shared_out(data)))
        return len(data.train)

    def _shared_out(self, data: Dataset) -> Sequence[Positions]:
        return shared_out(data, self.name, self.num_clients, self.seed, self.options)

    def indices(self, data: Dataset, client_id: int) -> Positions:
        """Return the positions of one client's examples in ``data.train``; there may be none.

        Raises LearningError: the client is outside ``range(num_clients)``, or the partition does not fit.
        """
        if not 0 <= client_id < self.num_clients:
            raise LearningError(
                f"client {client_id} is not in the split: its clients are 0 to {self.num_clients - 1}"
            )
        self._check_labels(data)
        if self.name not in OF_ONE_CLIENT:
            return self._shared_out(data)[client_id]
        if self.options:
            raise LearningError(
                f"dataset.partition_options={dict(self.options)} has no meaning with dataset.partition="
                f"{self.name}: leave it out"
            )
        if self.name == "iid":
            order = _shuffled(len(data.train), self.num_clients, self.seed)
            return _run(order, self.num_clients, client_id)
        if self.name == "labels":
            return _run(_by_label(data, self.seed), self.num_clients, client_id)
        if self.name == "shards" and self.shards is not None:
            return _shard_indices(data, self.num_clients, client_id, self.seed, self.shards)
        if self.name == "natural":
            # Each client is a data owner; of more owners than clients, those with most examples take part.
            if data.owners is None:
                raise LearningError(
                    "dataset.partition=natural needs data that has clients of its own, and this has none: "
                    "use dataset.partition=iid"
                )
            return np.flatnonzero(data.owners == _taken(data, self.num_clients)[client_id])
        if self.name == "dirichlet" and self.dirichlet_alpha is not None:
            return _dirichlet_indices(data, self.num_clients, client_id, self.seed, self.dirichlet_alpha)
        raise LearningError(
            f"dataset.partition={self.name} with dataset.dirichlet_alpha={self.dirichlet_alpha} is not "
            "known: use iid, labels, natural, shards with their number, or dirichlet with an alpha"
        )

    def _check_labels(self, data: Dataset) -> None:
        """Raise LearningError if the partition is by label and records do not have exactly one label each."""
        if data.by_person and self.name not in ("iid", "natural"):
            raise LearningError(
                f"dataset.partition={self.name} shares out rows or labels, and a person may have several: "
                "use dataset.partition=natural or iid"
            )
        if self.name not in BY_CLASS and self.name not in BY_LABEL:
            return
        labels, several = data.labels, data.train.y.ndim > 1
        if several or (self.name in BY_CLASS and not labels.is_one_class):
            at = " at every position" * (several and labels.is_one_class)
            raise LearningError(
                f"dataset.partition={self.name} shares out classes, and the labels of this data set are "
                f"{labels.words}{at}: use dataset.partition=iid"
            )


def _shard_indices(data: Dataset, num_clients: int, client_id: int, seed: int, shards: int) -> Positions:
    """Return the positions of one client's examples: of some shards, cut from all examples sorted by label.

    The sorted examples are cut into ``num_clients`` times ``shards`` shards, and each client gets ``shards``
    of them, drawn without replacement: about ``shards`` different labels, or fewer (McMahan, Moore, Ramage,
    Hampson, Aguera y Arcas, AISTATS 2017, section 3). Raises LearningError: more shards than examples.
    """
    order, count = _by_label(data, seed), num_clients * shards
    if count > len(order):
        raise LearningError(
            f"dataset.shards={shards} for each of {num_clients} clients are {count:,} shards, but there are "
            f"{len(order):,} examples: choose at most {len(order) // num_clients}, or fewer clients"
        )
    own = _shuffled(count, num_clients, seed)[client_id * shards : (client_id + 1) * shards]
    return np.concatenate([_run(order, count, shard) for shard in own.tolist()])


def _run(order: Positions, num_clients: int, client_id: int) -> Positions:
    """Cut ordered positions into `num_clients` parts of nearly equal size, and return part `client_id`."""
    start, stop = (len(order) * edge // num_clients for edge in (client_id, client_id + 1))
    return order[start:stop]


@lru_cache(maxsize=2)
def _shuffled(num_examples: int, num_clients: int, seed: int) -> Positions:
    order = np.random.default_rng([seed, num_clients]).permutation(num_examples)
    order.setflags(write=False)
    return order


@lru_cache(maxsize=2)
def _by_label(data: Dataset, seed: int) -> Positions:
    """Return the positions of all examples, shuffled and then sorted by label."""
    shuffled = np.random.default_rng(seed).permutation(len(data.train))
    order: Positions = shuffled[np.argsort(data.train.y[shuffled], kind="stable")]
    order.setflags(write=False)
    return order


@lru_cache(maxsize=16_384)
def _dirichlet_indices(data: Dataset, num_clients: int, client_id: int, seed: int, alpha: float) -> Positions:
    """Return the positions of one client's examples when each class is divided by a Dirichlet distribution.

    The examples of class k are divided by shares p_k ~ Dir(alpha, ..., alpha) over the clients (Yurochkin et
    al., 2019, by flwr-datasets' DirichletPartitioner). Every example goes to exactly one client. The number
    of a client's examples is random and can be 0. Raises LearningError: there are more clients than examples.
    """
    if num_clients > len(data.train):
        raise LearningError(
            f"dataset.num_clients={num_clients} is more than the {len(data.train)} examples that "
            f"dataset.partition=dirichlet could share out: set dataset.num_clients={len(data.train)} or fewer"
        )
    part = _partitioner(data, num_clients, seed, alpha).load_partition(client_id)
    positions = np.asarray(part["position"], dtype=np.int64)
    positions.setflags(write=False)
    return positions


@lru_cache(maxsize=2)
def _partitioner(data: Dataset, num_clients: int, seed: int, alpha: float) -> "Partitioner":
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_clients, "label", alpha, min_partition_size=0, self_balancing=False, seed=seed
    )
    partitioner.dataset = labels_as_table(data)
    return partitioner


def client_of_owner(data: Dataset, num_clients: int) -> Positions:
    """Return the client number of each data owner in the natural partition; -1 for owners that are left out.

    Raises LearningError: the data has fewer owners than there are clients.
    """
    taken = _taken(data, num_clients)
    clients = np.full(len(_sizes(data)), -1, dtype=np.int64)
    clients[taken] = np.arange(num_clients)
    return clients


def client_names(data: Dataset, num_clients: int) -> tuple[str, ...]:
    """Return the clients' names in the natural partition (client = data owner); () if owners have no names.

    Raises LearningError: the data has fewer owners than there are clients.
    """
    if data.owners is None or not data.owner_names:
        return ()
    return tuple(data.owner_names[owner] for owner in _taken(data, num_clients).tolist())


def _sizes(data: Dataset) -> Positions:
    """Return the number of training examples of each data owner."""
    sizes: Positions = np.bincount(data.owners, minlength=len(data.owner_names))  # type: ignore[arg-type]  # there are owners
    return sizes


@lru_cache(maxsize=2)
def _taken(data: Dataset, num_clients: int) -> Positions:
    """Return the data owners that take part as clients, in the data set's order."""
    sizes = _sizes(data)
    if num_clients > len(sizes):
        raise LearningError(
            f"dataset.num_clients={num_clients} is more than the {len(sizes)} clients that the data has: "
            f"set dataset.num_clients={len(sizes)} or fewer"
        )
    return np.sort(np.argsort(-sizes, kind="stable")[:num_clients])


# Makes these draws independent of those of batches and partitions, which use the same seed.
_PURPOSE = 0x6EC0


def record_groups(
    split: Split, num_groups: int, shares: Sequence[float], seed: int, client_id: int
) -> npt.NDArray[np.int64]:
    """Return the number, from 0, of the budget group of each of a client's records, shape (n,).

    The data's own groups are used if it has them. Otherwise group k gets the part shares[k] / sum(shares) of
    the n records, rounded by largest remainders; the seed and the client's number decide which records.

    Args:
        split: the client's records.
        num_groups: the number of groups.
        shares: the shares of the groups.

    Raises LearningError: a record's group is not below `num_groups`, or not one share for each group.
    """
    own = split.groups
    if own is not None:
        if len(own) and not 0 <= own.min() <= own.max() < num_groups:
            raise LearningError(
                f"a record of the data is of group {own.min() if own.min() < 0 else own.max()}; the groups "
                f"of records are 0 to {num_groups - 1}, one for every rate"
            )
        return own
    if len(shares) != num_groups:
        raise LearningError(
            f"{len(shares)} shares for {num_groups} groups of records: give a share for every group, or data "
            "that says the group of every record"
        )
    exact = np.asarray(shares, dtype=np.float64) / sum(shares) * len(split)
    counts = np.floor(exact).astype(np.int64)
    missing = len(split) - counts.sum()
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    order = np.random.default_rng([_PURPOSE, seed, client_id]).permutation(len(split))
    groups = np.empty(len(split), dtype=np.int64)
    groups[order] = np.repeat(np.arange(num_groups), counts)
    return groups
