"""Loops compiled by numba; they and matrix products take most of the time of a forward and backward pass.

All arrays are float32, flat, and in the order (records, height, width, channels), unless said otherwise. A
kernel adds in the same order for a record whatever stands beside it.

Machine code is kept beside the code, or where that cannot be written, in the user's cache directory or in
NUMBA_CACHE_DIR. Where none can, RuntimeError is raised: compiling takes too long for every process.
"""

# Holds code of vectors.py efd52ae30c96.

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.types import UniTuple, bool_, float32, float64, int32, int64, void

from fastgrad.vectors import Floats, add, copy

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Whiches = npt.NDArray[np.int32]

PatchGeometry = tuple[int, int, int, int, int, int, int, int, int, int, int, int]
"""Records; height, width and channels of a picture; height and width of a kernel; by how much it moves down
and right; rows and columns of padding; how many places there are, down and right."""
WindowGeometry = tuple[int, int, int, int, int, int, int, int]
"""Records; height, width and channels of what is pooled; by how much a window moves, down and right; how many
windows there are, down and right."""

Kernel = TypeVar("Kernel", bound=Callable[..., None])

_F, _W, _I = float32[::1], int32[::1], int64[::1]
_PATCHES, _WINDOWS = UniTuple(int64, 12), UniTuple(int64, 8)
_ZERO = np.float32(0.0)
_LOWEST = np.float32(-np.inf)


def compiled(*types: Any, **options: Any) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles a loop for these argument types; the loop runs without the GIL."""

    def compile_it(function: Kernel) -> Kernel:
        compiled = numba.njit(void(*types), cache=True, nogil=True, error_model="numpy", **options)(function)
        return cast("Kernel", compiled)

    return compile_it


@compiled(_F)
def _clear(values: Floats) -> None:
    for t in range(len(values)):
        values[t] = _ZERO


@compiled(_F, _PATCHES, _F)
def patches(pictures: Floats, geometry: PatchGeometry, out: Floats) -> None:
    """Copy to ``out`` the patch under the kernel at each position; a picture's surroundings count as zeros.

    `pictures`: (count, height, width, channels). `out`: (count, down, right, kernel_height, kernel_width,
    channels).
    """
    count, height, width, channels, kernel_height, kernel_width = geometry[:6]
    down_by, right_by, pad_rows, pad_columns, down, right = geometry[6:]
    line = (width + 2 * pad_columns) * channels
    padded = np.zeros((height + 2 * pad_rows) * line, np.float32)
    run = kernel_width * channels
    for n in range(count):
        for row in range(height):
            start = (row + pad_rows) * line + pad_columns * channels
            copy(pictures, (n * height + row) * width * channels, padded, start, width * channels)
        for i in range(down):
            for j in range(right):
                to = ((n * down + i) * right + j) * kernel_height * run
                start = i * down_by * line + j * right_by * channels
                for _ in range(kernel_height):
                    copy(padded, start, out, to, run)
                    to += run
                    start += line


@compiled(_F, _PATCHES, _F)
def patches_back(gradient: Floats, geometry: PatchGeometry, out: Floats) -> None:
    """Add each patch's gradient to the place in the picture from which `patches` copied the patch."""
    count, height, width, channels, kernel_height, kernel_width = geometry[:6]
    down_by, right_by, pad_rows, pad_columns, down, right = geometry[6:]
    _clear(out)
    run = kernel_width * channels
    for n in range(count):
        for i in range(down):
            for j in range(right):
                column = j * right_by - pad_columns
                first, last = max(0, -column), min(kernel_width, width - column)
                size = (last - first) * channels
                for k in range(kernel_height):
                    row = i * down_by - pad_rows + k
                    if row < 0 or row >= height or size <= 0:
                        continue
                    start = (((n * down + i) * right + j) * kernel_height + k) * run + first * channels
                    to = ((n * height + row) * width + column + first) * channels
                    add(gradient, start, out, to, size)


@compiled(_F, int64, _F, bool_)
def activate(values: Floats, channels: int, bias: Floats, rectify: bool) -> None:
    """Add a bias of shape (channels,) to values, and take max(v + b, 0) if ``rectify``, in place."""
    least = _ZERO if rectify else _LOWEST
    for start in range(0, len(values), channels):
        place = values[start : start + channels]
        for c in range(channels):
            value = place[c] + bias[c]
            place[c] = least if value < least else value


@compiled(_F, _F, int64, int64, bool_, int64, _F)
def activate_back(
    activated: Floats, gradient: Floats, count: int, channels: int, rectify: bool, num_sums: int, sums: Floats
) -> None:
    """Compute the loss's gradients with respect to a bias and, in place, to the values before bias and ReLU.

    `activated`: what `activate` left. `gradient`: by it; overwritten. `num_sums`: 1, or as many as there are
    records. `sums`: (num_sums, channels), the gradient by the bias: of all records together, or of each.
    """
    least = _ZERO if rectify else _LOWEST
    _clear(sums)
    size = len(gradient) // count
    for n in range(count):
        start = (n if num_sums > 1 else 0) * channels
        total = sums[start : start + channels]
        for start in range(n * size, (n + 1) * size, channels):
            place, reached = gradient[start : start + channels], activated[start : start + channels]
            for c in range(channels):
                value = _ZERO if reached[c] <= least else place[c]
                place[c] = value
                total[c] += value


@compiled(_F, _WINDOWS, _F, bool_, _F, _W)
def pool(
    values: Floats, geometry: WindowGeometry, bias: Floats, rectify: bool, out: Floats, which: Whiches
) -> None:
    """Write the largest value of each 2 x 2 window, plus the bias, to ``out``, with ReLU if ``rectify``.

    `values`: (count, height, width, channels). `bias`: (channels,). `out`: (count, down, right, channels).
    `which`: of the window's four values was the largest, the first of them; of the shape of out.
    """
    count, height, width, channels, down_by, right_by, down, right = geometry
    # Windows that lie side by side are one row; else each is a row of its own.
    windows = right if right_by == 1 else 1
    run, line = windows * channels, width * channels
    least = _ZERO if rectify else _LOWEST
    biases = np.empty(run, np.float32)
    for t in range(run):
        biases[t] = bias[t % channels]
    for n in range(count):
        for i in range(down):
            for j in range(0, right, windows):
                start = ((n * down + i) * right + j) * channels
                target, chosen = out[start : start + run], which[start : start + run]
                start = ((n * height + i * down_by) * width + j * right_by) * channels
                first, second = values[start : start + run], values[start + channels : start + channels + run]
                start += line
                third, fourth = values[start : start + run], values[start + channels : start + channels + run]
                for t in range(run):
                    most, number = first[t], np.int32(0)
                    value = second[t]
                    if value > most or value != value:
                        most, number = value, np.int32(1)
                    value = third[t]
                    if value > most or value != value:
                        most, number = value, np.int32(2)
                    value = fourth[t]
                    if value > most or value != value:
                        most, number = value, np.int32(3)
                    value = most + biases[t]
                    target[t] = least if value < least else value
                    chosen[t] = number


@compiled(_F, _W, _F, _WINDOWS, bool_, int64, _F, _F)
def pool_back(
    pooled: Floats,
    which: Whiches,
    gradient: Floats,
    geometry: WindowGeometry,
    rectify: bool,
    num_sums: int,
    sums: Floats,
    out: Floats,
) -> None:
    """Compute the gradients of `pool`: for its input into ``out``, for its bias into ``sums``."""
    count, height, width, channels, down_by, right_by, down, right = geometry
    windows = right if right_by == 1 else 1
    run, line = windows * channels, width * channels
    least = _ZERO if rectify else _LOWEST
    _clear(sums)
    _clear(out)
    row_sums = np.empty(run, np.float32)
    for n in range(count):
        _clear(row_sums)
        for i in range(down):
            for j in range(0, right, windows):
                start = ((n * down + i) * right + j) * channels
                reached, chosen = pooled[start : start + run], which[start : start + run]
                given = gradient[start : start + run]
                for t in range(run):
                    given[t] = _ZERO if reached[t] <= least else given[t]
                    row_sums[t] += given[t]
                start = ((n * height + i * down_by) * width + j * right_by) * channels
                for k in range(4):
                    corner = start + (k // 2) * line + (k % 2) * channels
                    target, number = out[corner : corner + run], np.int32(k)
                    for t in range(run):
                        target[t] += given[t] if chosen[t] == number else _ZERO
        for begin in range(0, run, channels):
            add(row_sums, begin, sums, (n if num_sums > 1 else 0) * channels, channels)


@compiled(_F, _F, _I, float64[::1])
def differences(ends: Floats, starts: Floats, order: Integers, out: Doubles) -> None:
    """Write the differences of ends and starts to ``out``, in float64.

    Its entry i is that of starts[i], and of the end that ``order`` names: ends[order[i]].
    """
    for i in range(len(order)):
        out[i] = np.float64(ends[order[i]]) - np.float64(starts[i])


@compiled(_F, int64, _I, _F, _F)
def cross_entropy_back(logits: Floats, classes: int, targets: Integers, weights: Floats, out: Floats) -> None:
    """Compute gradients of a weighted cross-entropy with respect to logits: w (softmax(logits) - onehot).

    Raises IndexError for a target that is not a class.
    """
    for n in range(len(targets)):
        target = targets[n]
        if target < 0 or target >= classes:
            raise IndexError("a target is not a class of the model")
        row, gradient = logits[n * classes : (n + 1) * classes], out[n * classes : (n + 1) * classes]
        most = row[0]
        for k in range(classes):
            most = max(most, row[k])
        total = _ZERO
        for k in range(classes):
            gradient[k] = np.exp(row[k] - most)
            total += gradient[k]
        for k in range(classes):
            gradient[k] = weights[n] * (gradient[k] / total)
        gradient[target] -= weights[n]
