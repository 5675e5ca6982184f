"""Chunked arithmetic of an encoding: the norm in float64, rounding to a grid, with range checks."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.sum_errors import EncodingError

CHUNK = 2**16
# BLAS shares longer products out to threads, which wait for each other where the processor is busy.
_DOT_TERMS = 2**13

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]


def norm(values: Floats) -> float:
    starts = range(0, len(values), _DOT_TERMS)
    chunks = (values[i : i + _DOT_TERMS].astype(np.float64) for i in starts)
    return math.sqrt(math.fsum(float(np.dot(chunk, chunk)) for chunk in chunks))


def rounded(values: Floats, scale: float, grid: float, limit: int) -> Integers:
    """round(values * scale / grid) as int64; a magnitude above `limit` steps is refused."""
    steps = np.empty(len(values), dtype=np.int64)
    buffer = np.empty(min(CHUNK, len(values)))
    for start in range(0, len(values), CHUNK):
        chunk = values[start : start + CHUNK]
        exact = buffer[: len(chunk)]
        np.multiply(chunk, scale, out=exact, dtype=np.float64)
        np.divide(exact, grid, out=exact)
        np.rint(exact, out=exact)
        if max(exact.max(), -exact.min()) > limit:
            worst = int(np.argmax(np.abs(exact)))
            raise EncodingError(
                f"coordinate {start + worst} is {chunk[worst]:.9g}, outside "
                f"+-{limit * grid:.9g}: it would wrap the sum"
            )
        steps[start : start + len(chunk)] = exact
    return steps


def kind(values: NDArray[Any]) -> str:
    return f"{values.dtype}{list(values.shape)}"
