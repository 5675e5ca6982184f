"""The clients that the data itself has, such as the roles of a play."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset


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


def client_of_owner(data: Dataset, num_clients: int) -> npt.NDArray[np.int64]:
    """The client that each owner of examples is under the natural partition; -1 for one that takes no part.

    Raises:
        LearningError: as in :func:`natural_indices`.
    """
    taken = _taken(data, num_clients)
    clients = np.full(len(_sizes(data)), -1, dtype=np.int64)
    clients[taken] = np.arange(num_clients)
    return clients


def _sizes(data: Dataset) -> npt.NDArray[np.int64]:
    """How many training examples each owner has, those with a name and none included."""
    sizes: npt.NDArray[np.int64] = np.bincount(data.owners, minlength=len(data.owner_names))  # type: ignore[arg-type]  # there are owners
    return sizes


@lru_cache(maxsize=2)
def _taken(data: Dataset, num_clients: int) -> npt.NDArray[np.int64]:
    """Numbers of the clients that take part, in the order of the data set, which says nothing of them."""
    sizes = _sizes(data)
    if num_clients > len(sizes):
        raise LearningError(
            f"dataset.num_clients={num_clients} is more than the {len(sizes)} clients that the data has: "
            f"set dataset.num_clients={len(sizes)} or fewer"
        )
    return np.sort(np.argsort(-sizes, kind="stable")[:num_clients])
