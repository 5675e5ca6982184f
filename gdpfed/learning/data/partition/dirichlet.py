"""Label-skewed split: how much of each class a client holds follows a Dirichlet distribution."""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset

if TYPE_CHECKING:
    from flwr_datasets.partitioner import DirichletPartitioner


@lru_cache(maxsize=16_384)
def dirichlet_indices(
    data: Dataset, num_clients: int, client_id: int, seed: int, alpha: float
) -> npt.NDArray[np.int64]:
    """Positions of one client's examples.

    For every class k, shares p_k ~ Dir(alpha, ..., alpha) over the clients say how its examples are cut
    (Yurochkin et al., 2019, through flwr-datasets' DirichletPartitioner). Every example goes to exactly
    one client; how many a client gets is left to chance, and it can be none.

    Raises:
        LearningError: more clients than examples, or labels that are numbers.
    """
    if not np.issubdtype(data.train.y.dtype, np.integer):
        raise LearningError(
            "dataset.partition=dirichlet shares out classes, and the labels of this data set are numbers: "
            "use dataset.partition=iid"
        )
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
def _partitioner(data: Dataset, num_clients: int, seed: int, alpha: float) -> "DirichletPartitioner":
    # Imported here, since it takes seconds and the other partitions do without it.
    from datasets import Dataset as Table
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_clients, "label", alpha, min_partition_size=0, self_balancing=False, seed=seed
    )
    labels = data.train.y
    partitioner.dataset = Table.from_dict({"label": labels, "position": np.arange(len(labels))})
    return partitioner
