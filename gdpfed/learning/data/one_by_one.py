"""Applies a transform to each record by itself, so that no record changes the result of another."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def one_by_one(
    records: npt.NDArray[Any], of: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Apply a transform to one record after the other.

    In a library's product of many rows, the last bits of a row depend on how many rows there are and on where
    it stands. A hostile model makes answers of these bits, and so a record would change what others count.

    Args:
        records: of shape (N, ...).
        of: from an array of shape (1, ...) to one of shape (1, ...), which is a new one.

    Returns:
        Shape (N, ...): for each record, bit by bit what there is of it alone.
    """
    # Always the same memory: kernels may differ by how an array lies in it.
    alone = np.zeros((1, *records.shape[1:]), records.dtype)
    nothing, found = of(alone)[:0], []
    for record in records:
        alone[0] = record
        found.append(of(alone))
    return np.concatenate([nothing, *found])
