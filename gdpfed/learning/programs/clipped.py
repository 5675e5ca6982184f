"""Clipped sums of the gradients of single records, by a program.

Where a layer has one patch, as a linear layer has, a record's gradient by its weight is an outer product
g^T a, whose norm is ||g|| ||a||. Elsewhere it is written out, one small product of matrices a record, which
stays in cache until its factor is known. No norm is a difference of larger numbers, so none hides a large
gradient; all are in float64.
"""

from functools import partial

import numpy as np
import torch

from gdpfed.learning.losses import Loss
from gdpfed.learning.programs import kernels
from gdpfed.learning.programs.layer import Call, Layer, flat
from gdpfed.learning.programs.lowering import Lowered
from gdpfed.learning.programs.program import Program


class ClippedProgram:
    """A pass of so many records, and what it adds to a clipped sum.

    Args:
        lowered, loss, num_records, parameters: as in `Program`.
        total: what clipped gradients are added to, in the program's order, shape (d,).
        truncated: what they are added to in integers, shape (d,), int64.
    """

    def __init__(
        self,
        lowered: Lowered,
        loss: Loss,
        num_records: int,
        parameters: torch.Tensor,
        total: torch.Tensor,
        truncated: torch.Tensor,
    ) -> None:
        self._truncated = truncated
        self._program = Program(lowered, loss, num_records, parameters)
        self._weights = torch.ones(num_records)
        self._squares = np.zeros(num_records)
        self._factors = np.zeros(num_records)
        self._measure: list[Call] = []
        self._add: list[Call] = []
        for layer in self._program.layers:
            self._bind(layer, total)

    def add(self, x: torch.Tensor, y: torch.Tensor, most: float) -> None:
        """Add min(1, most / ||g_i||) g_i of every record; one that is not finite adds nothing."""
        self._clip(x, y, most)
        for call in self._add:
            call()

    def add_truncated(self, x: torch.Tensor, y: torch.Tensor, most: float, unit: float) -> None:
        """Add trunc(min(1, most / ||g_i||) g_i / unit) of every record to ``truncated``, by coordinate."""
        self._clip(x, y, most)
        for layer in self._program.layers:
            out = self._truncated[layer.weight].numpy()
            if layer.is_outer:
                vectors = flat(layer.values_back), flat(layer.patches)
                kernels.add_truncated_outer(*vectors, self._factors, unit, out)
            else:
                kernels.add_truncated(flat(layer.rows), self._factors, unit, out)
            if layer.bias is not None:
                out = self._truncated[layer.bias].numpy()
                kernels.add_truncated(flat(layer.biases), self._factors, unit, out)

    def _clip(self, x: torch.Tensor, y: torch.Tensor, most: float) -> None:
        """Gradients of every record, and their factors."""
        self._program.run(x, y, self._weights)
        self._squares[:] = 0.0
        for call in self._measure:
            call()
        kernels.clip_factors(self._squares, most, self._factors)

    def write(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        """Every record's gradient as it is, in the program's order, shape (records, d)."""
        self._program.run(x, y, self._weights)
        for layer in self._program.layers:
            if layer.is_outer:
                out[:, layer.weight] = (layer.values_back[:, :, None] * layer.patches[:, None]).flatten(1)
            else:
                out[:, layer.weight] = layer.rows.flatten(1)
            if layer.bias is not None:
                out[:, layer.bias] = layer.biases

    def _bind(self, layer: Layer, total: torch.Tensor) -> None:
        squares, factors, target = self._squares, self._factors, total[layer.weight]
        if layer.is_outer:
            outputs, inputs = layer.values_back, layer.patches
            self._measure.append(partial(kernels.add_outer_squares, flat(outputs), flat(inputs), squares))
            self._add.append(partial(kernels.scale, flat(outputs), flat(inputs), factors))
            self._add.append(partial(target.view(outputs.shape[1], -1).addmm_, outputs.t(), inputs))
        else:
            self._measure.append(partial(kernels.add_squares, flat(layer.rows), squares))
            self._add.append(partial(kernels.add_weighted, flat(layer.rows), factors, flat(target)))
        if layer.bias is not None:
            self._measure.append(partial(kernels.add_squares, flat(layer.biases), squares))
            self._add.append(
                partial(kernels.add_weighted, flat(layer.biases), factors, flat(total[layer.bias]))
            )
