"""A layer as compiled loops (numba): its buffers, its calls, and the clipped sums of its gradients."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numba.types import float32, float64, int64

from fastgrad.kernels import Doubles, Integers, compiled
from fastgrad.vectors import Floats

_F, _D, _I = float32[::1], float64[::1], int64[::1]
_ZERO = np.float32(0.0)


@compiled(_F, _D, fastmath={"reassoc"})
def add_squares(rows: Floats, squares: Doubles) -> None:
    """Add the squared norm of each row to ``squares``, in float64.

    ``rows``: (records, entries). ``squares``: (records,).
    """
    size = len(rows) // len(squares)
    for n in range(len(squares)):
        row, total = rows[n * size : (n + 1) * size], 0.0
        for t in range(size):
            total += float64(row[t]) * float64(row[t])
        squares[n] += total


@compiled(_F, _F, _D, _D, fastmath={"reassoc"})
def add_outer_squares(outputs: Floats, inputs: Floats, squares: Doubles, unscaled: Doubles) -> None:
    """Add the squared norm of each gradient g_i^T a_i to ``squares``: s_i += ||g_i||^2 ||a_i||^2.

    ``unscaled``: (records,), takes ||a_i||^2 where that is larger.
    """
    count = len(squares)
    widths = (len(outputs) // count, len(inputs) // count)
    for n in range(count):
        row, left = outputs[n * widths[0] : (n + 1) * widths[0]], 0.0
        for t in range(widths[0]):
            left += float64(row[t]) * float64(row[t])
        row, right = inputs[n * widths[1] : (n + 1) * widths[1]], 0.0
        for t in range(widths[1]):
            right += float64(row[t]) * float64(row[t])
        squares[n] += left * right
        unscaled[n] = max(unscaled[n], right)


@compiled(_D, _D, float64, float64, _D)
def clip_factors(squares: Doubles, unscaled: Doubles, most: float, longest: float, out: Doubles) -> None:
    """Compute clipping factors min(1, most / ||g_i||) from squared norms; 0 if a norm is too large or NaN."""
    for n in range(len(squares)):
        if squares[n] < longest * longest and unscaled[n] < longest * longest:
            norm = np.sqrt(squares[n])
            out[n] = most / norm if norm > most else 1.0
        else:
            out[n] = 0.0


@compiled(_F, _D, _F)
def add_weighted(rows: Floats, factors: Doubles, out: Floats) -> None:
    """Add each row times its factor to a sum, out += sum_i f_i row_i; rows with factor 0 are skipped."""
    size = len(out)
    for n in range(len(factors)):
        if factors[n] == 0:
            continue
        row, factor = rows[n * size : (n + 1) * size], np.float32(factors[n])
        for t in range(size):
            out[t] += factor * row[t]


@compiled(_F, _F, _D)
def scale(outputs: Floats, inputs: Floats, factors: Doubles) -> None:
    """Multiply gradients g_i^T a_i by factors, in place; factor 0 makes g_i and a_i 0 even if infinite."""
    count = len(factors)
    widths = (len(outputs) // count, len(inputs) // count)
    for n in range(count):
        row, factor = outputs[n * widths[0] : (n + 1) * widths[0]], np.float32(factors[n])
        for t in range(widths[0]):
            row[t] = _ZERO if factor == 0 else factor * row[t]
        if factor == 0:
            row = inputs[n * widths[1] : (n + 1) * widths[1]]
            for t in range(widths[1]):
                row[t] = _ZERO


@compiled(_F, _D, float64, _I)
def add_truncated(rows: Floats, factors: Doubles, unit: float, out: Integers) -> None:
    """Add scaled rows, truncated to integers, and skip factor 0: out += sum_i trunc(f_i row_i / unit)."""
    size = len(out)
    for n in range(len(factors)):
        if factors[n] == 0:
            continue
        row, factor = rows[n * size : (n + 1) * size], factors[n] / unit
        for t in range(size):
            out[t] += int64(float64(row[t]) * factor)


@compiled(_F, _F, _D, float64, _I)
def add_truncated_outer(
    outputs: Floats, inputs: Floats, factors: Doubles, unit: float, out: Integers
) -> None:
    """Add scaled gradients g_i^T a_i, truncated to integers: out += sum_i trunc(f_i g_i^T a_i / unit)."""
    count = len(factors)
    height, width = len(outputs) // count, len(inputs) // count
    for n in range(count):
        if factors[n] == 0:
            continue
        row, factor = inputs[n * width : (n + 1) * width], factors[n] / unit
        for k in range(height):
            value = float64(outputs[n * height + k]) * factor
            target = out[k * width : (k + 1) * width]
            for t in range(width):
                target[t] += int64(value * float64(row[t]))


Call = Callable[[], object]


def flat(buffer: torch.Tensor) -> Floats:
    """Return a buffer as the flat array that compiled loops take."""
    flat: Floats = buffer.view(-1).numpy()
    return flat


@dataclass(frozen=True, eq=False)
class Rows:
    """Gradients of single records with respect to some parameters; every entry is stored, one row per record.

    `where`: the parameters among those of the program. `values`: shape (records, entries).
    """

    where: slice
    values: torch.Tensor

    def measure(self, squares: Doubles, unscaled: Doubles) -> Call:
        """Return the call that adds each record's squared norm to ``squares``; ``unscaled`` has no effect."""
        return partial(add_squares, flat(self.values), squares)

    def add(self, factors: Doubles, total: torch.Tensor) -> list[Call]:
        """Return functions that add sum_i f_i g_i, for records' gradients g_i and factors f_i, to ``total``.

        ``total``: shape (d,).
        """
        return [partial(add_weighted, flat(self.values), factors, flat(total[self.where]))]

    def add_truncated(self, factors: Doubles, unit: float, total: torch.Tensor) -> None:
        """Add sum_i trunc(f_i g_i / unit), for records' gradients g_i and factors f_i, to ``total``.

        ``total``: shape (d,), int64.
        """
        add_truncated(flat(self.values), factors, unit, total[self.where].numpy())

    def write(self, out: torch.Tensor) -> None:
        """Write the gradients to their place in ``out``, shape (records, d)."""
        out[:, self.where] = self.values.flatten(1)


@dataclass(frozen=True, eq=False)
class Outer:
    """The gradients of single records with respect to a weight matrix, g_i^T a_i, stored as g and a.

    `outputs`: g, shape (records, outputs). `inputs`: a, shape (records, inputs).
    """

    where: slice
    outputs: torch.Tensor
    inputs: torch.Tensor

    def measure(self, squares: Doubles, unscaled: Doubles) -> Call:
        """Return a call that adds ||g_i^T a_i||^2 to `squares` and makes `unscaled` at least ||a_i||^2."""
        return partial(add_outer_squares, flat(self.outputs), flat(self.inputs), squares, unscaled)

    def add(self, factors: Doubles, total: torch.Tensor) -> list[Call]:
        """Return the calls that add sum_i f_i g_i^T a_i, over all records i with factors f_i, to ``total``.

        ``total``: shape (d,). The sum is one matrix product; the calls change g and a in place.
        """
        target = total[self.where].view(self.outputs.shape[1], -1)
        return [
            partial(scale, flat(self.outputs), flat(self.inputs), factors),
            partial(target.addmm_, self.outputs.t(), self.inputs),
        ]

    def add_truncated(self, factors: Doubles, unit: float, total: torch.Tensor) -> None:
        vectors = flat(self.outputs), flat(self.inputs)
        add_truncated_outer(*vectors, factors, unit, total[self.where].numpy())

    def write(self, out: torch.Tensor) -> None:
        out[:, self.where] = (self.outputs[:, :, None] * self.inputs[:, None]).flatten(1)


Part = Rows | Outer


@dataclass(frozen=True, eq=False)
class Given:
    """The arguments of a layer's compiled loops: input, parameters, gradient buffer and dropout's key.

    `inputs`: its input, shape (records, height, width, channels). `parameters`: those of the program, shape
    (d,); read at every pass. `gradient`: of the program, shape (d,); None where gradients are left apart for
    each record. `drawn`: the key of a pass, and how many records of its batch came before. `other`: the
    second input of a layer that joins two branches.
    """

    inputs: torch.Tensor
    parameters: torch.Tensor
    gradient: torch.Tensor | None
    drawn: Integers
    other: torch.Tensor | None = None


class Layer(ABC):
    """A layer as compiled loops (numba) for a fixed number of records, with its buffers.

    `output`: shape (records, height, width, channels). `output_back`: the gradient by it, to be filled before
    the way back, which overwrites it. `forward`: the calls of the way there. `parts`: the gradients of single
    records by its parameters, if they are left apart.
    """

    output: torch.Tensor
    output_back: torch.Tensor
    forward: Sequence[Call]
    parts: Sequence[Part] = ()

    @abstractmethod
    def backward(self, inputs_back: torch.Tensor | None) -> list[Call]:
        """Return the calls of the layer's backward pass.

        `inputs_back`: for the gradient by the input; None where nobody asks for it.
        """
