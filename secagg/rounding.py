"""Chunked arithmetic of an encoding: the norm in float64, rounding to a grid, with range checks."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.errors import EncodingError

CHUNK = 2**16

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]


def norm(values: Floats) -> float:
    chunks = (values[i : i + CHUNK].astype(np.float64) for i in range(0, len(values), CHUNK))
    return math.sqrt(math.fsum(float(np.dot(chunk, chunk)) for chunk in chunks))


def rounded(values: Floats, scale: float, grid: float, limit: int) -> Integers:
    """round(values * scale / grid) as int64; a magnitude above `limit` steps is refused."""
    steps = np.empty(len(values), dtype=np.int64)
    for start in range(0, len(values), CHUNK):
        exact = values[start : start + CHUNK].astype(np.float64) * scale / grid
        rounded = np.rint(exact)
        worst = int(np.argmax(np.abs(rounded)))
        if abs(rounded[worst]) > limit:
            raise EncodingError(
                f"coordinate {start + worst} is {values[start + worst]:.9g}, outside "
                f"+-{limit * grid:.9g}: it would wrap the sum"
            )
        steps[start : start + CHUNK] = rounded
    return steps


def kind(values: NDArray[Any]) -> str:
    return f"{values.dtype}{list(values.shape)}"
