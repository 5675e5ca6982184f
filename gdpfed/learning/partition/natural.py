"""The clients that the data itself has, such as the roles of a play."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.datasets import Dataset


def natural_indices(data: Dataset, num_clients: int, client_id: int) -> npt.NDArray[np.int64]:
    """Positions of one client's examples; with fewer clients than the data has, the largest are taken.

    Raises:
        LearningError: data without clients of its own, or with fewer than asked for.
    """
    if data.owners is None:
        raise LearningError(
            "dataset.partition=natural needs data that has clients of its own, and this has none: "
            "use dataset.partition=iid"
        )
    return np.flatnonzero(data.owners == _taken(data, num_clients)[client_id])


@lru_cache(maxsize=2)
def _taken(data: Dataset, num_clients: int) -> npt.NDArray[np.int64]:
    """Numbers of the clients that take part, in the order of the data set, which says nothing of them."""
    sizes = np.bincount(data.owners)  # type: ignore[arg-type]  # there are owners
    if num_clients > len(sizes):
        raise LearningError(
            f"dataset.num_clients={num_clients} is more than the {len(sizes)} clients that the data has: "
            f"set dataset.num_clients={len(sizes)} or fewer"
        )
    return np.sort(np.argsort(-sizes, kind="stable")[:num_clients])
