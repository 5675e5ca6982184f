"""The configured partition."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset
from gdpfed.learning.data.partition.dirichlet import dirichlet_indices
from gdpfed.learning.data.partition.even import iid_indices, label_indices, shard_indices
from gdpfed.learning.data.partition.natural import natural_indices


@dataclass(frozen=True)
class Partition:
    """The way in which the training split is shared out.

    Attributes:
        name: iid, labels, shards, dirichlet or natural.
        dirichlet_alpha: concentration, for dirichlet: the smaller, the fewer classes a client has.
        shards: how many of them a client has, for shards.
    """

    name: str
    num_clients: int
    seed: int
    dirichlet_alpha: float | None = None
    shards: int | None = None

    def largest(self, data: Dataset) -> int:
        """How many examples a client may hold at most; under dirichlet it is all of them."""
        if self.name in ("iid", "labels"):
            return -(-len(data.train) // self.num_clients)
        if self.name == "shards" and self.shards is not None:
            return self.shards * -(-len(data.train) // (self.shards * self.num_clients))
        if self.name == "natural" and data.owners is not None:
            return int(np.bincount(data.owners).max())
        return len(data.train)

    def indices(self, data: Dataset, client_id: int) -> npt.NDArray[np.int64]:
        """Positions of one client's examples in ``data.train``; possibly none.

        Raises:
            LearningError: a client outside ``range(num_clients)``, or a partition that does not fit.
        """
        if not 0 <= client_id < self.num_clients:
            raise LearningError(f"client {client_id} is none of the {self.num_clients} clients of the split")
        if self.name == "iid":
            return iid_indices(len(data.train), self.num_clients, client_id, self.seed)
        if self.name == "labels":
            return label_indices(data, self.num_clients, client_id, self.seed)
        if self.name == "shards" and self.shards is not None:
            return shard_indices(data, self.num_clients, client_id, self.seed, self.shards)
        if self.name == "natural":
            return natural_indices(data, self.num_clients, client_id)
        if self.name == "dirichlet" and self.dirichlet_alpha is not None:
            return dirichlet_indices(data, self.num_clients, client_id, self.seed, self.dirichlet_alpha)
        raise LearningError(
            f"dataset.partition={self.name} with dataset.dirichlet_alpha={self.dirichlet_alpha} is none of "
            "iid, labels, natural, shards with their number, or dirichlet with an alpha"
        )
