"""Clipped sums of the gradients of single records, by a program.

Where a layer has one patch, as a linear layer has, a record's gradient by its weight is an outer product
g^T a, whose norm is ||g|| ||a||. Elsewhere it is written out, one small product of matrices a record, which
stays in cache until its factor is known. No norm is a difference of larger numbers, so none hides a large
gradient; all are in float64.
"""

import numpy as np
import torch

from fastgrad import clip_kernels
from fastgrad.lowered import LoweredModel
from fastgrad.modules import Loss
from fastgrad.program import Program


class ClippedProgram:
    """A pass of so many records, and what it adds to a clipped sum.

    Args:
        lowered, loss, num_records, parameters: as in `Program`.
        total: what clipped gradients are added to, in the program's order, shape (d,).
        truncated: what they are added to in integers, shape (d,), int64.
    """

    def __init__(
        self,
        lowered: LoweredModel,
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
        self._parts = [part for layer in self._program.layers for part in layer.parts]
        self._measure = [part.measure(self._squares) for part in self._parts]
        self._add = [call for part in self._parts for call in part.add(self._factors, total)]

    def add(self, x: torch.Tensor, y: torch.Tensor, most: float) -> None:
        """Add min(1, most / ||g_i||) g_i of every record; one that is not finite adds nothing."""
        self._clip(x, y, most)
        for call in self._add:
            call()

    def add_truncated(self, x: torch.Tensor, y: torch.Tensor, most: float, unit: float) -> None:
        """Add trunc(min(1, most / ||g_i||) g_i / unit) of every record to ``truncated``, by coordinate."""
        self._clip(x, y, most)
        for part in self._parts:
            part.add_truncated(self._factors, unit, self._truncated)

    def _clip(self, x: torch.Tensor, y: torch.Tensor, most: float) -> None:
        """Gradients of every record, and their factors."""
        self._program.run(x, y, self._weights)
        self._squares[:] = 0.0
        for call in self._measure:
            call()
        clip_kernels.clip_factors(self._squares, most, self._factors)

    def write(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        """Every record's gradient as it is, in the program's order, shape (records, d)."""
        self._program.run(x, y, self._weights)
        for part in self._parts:
            part.write(out)
