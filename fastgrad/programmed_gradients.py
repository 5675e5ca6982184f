"""Gradients of single records by compiled loops (numba), clipped and summed.

Where a layer has one patch, as a linear layer has, a record's gradient by its weight is an outer product
g^T a, whose norm is ||g|| ||a||. Elsewhere it is written out, one small product of matrices a record, which
stays in cache until its factor is known. No norm is a difference of larger numbers, so none hides a large
gradient; all are in float64.
"""

import threading
from collections.abc import Callable
from math import inf

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.layer import clip_factors
from fastgrad.lowered import LoweredModel, pieces_of
from fastgrad.modules import Loss
from fastgrad.program import Program
from fastgrad.record_gradients import EXACT_SLACK, LONGEST, SLACK, RecordGradients

Absent = npt.NDArray[np.bool_]
"""Which records of a pass only fill it up: shape (records,)."""


class ClippedProgram:
    """A compiled pass over a fixed number of records that adds their clipped gradients to a sum.

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
        self._squares, self._unscaled = np.zeros((2, num_records))
        self._factors = np.zeros(num_records)
        self._parts = [part for layer in self._program.layers for part in layer.parts]
        self._measure = [part.measure(self._squares, self._unscaled) for part in self._parts]
        self._add = [call for part in self._parts for call in part.add(self._factors, total)]

    def add(self, x: torch.Tensor, y: torch.Tensor, absent: Absent, most: float) -> None:
        """Add clipped gradients to the sum, but not those of absent records or of infinite or huge norm."""
        self._clip(x, y, absent, most, LONGEST * most)
        for call in self._add:
            call()

    def add_truncated(
        self, x: torch.Tensor, y: torch.Tensor, absent: Absent, most: float, unit: float
    ) -> None:
        """Add trunc(min(1, most / ||g_i||) g_i / unit) for every record to ``truncated``, by coordinate."""
        self._clip(x, y, absent, most, inf)
        for part in self._parts:
            part.add_truncated(self._factors, unit, self._truncated)

    def _clip(self, x: torch.Tensor, y: torch.Tensor, absent: Absent, most: float, longest: float) -> None:
        """Compute each record's gradient and clipping factor; the factor is 0 for records marked `absent`."""
        self._program.run(x, y, self._weights)
        self._squares[:], self._unscaled[:] = 0.0, 1.0
        for call in self._measure:
            call()
        clip_factors(self._squares, self._unscaled, most, longest, self._factors)
        self._factors[absent] = 0.0

    def write(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        """Write every record's gradient to ``out``, shape (records, d), in the loops' order of parameters."""
        self._program.run(x, y, self._weights)
        for part in self._parts:
            part.write(out)


# Passes one after the other by one thread, so that several threads have some each.
PASSES_IN_A_ROW = 4


class ProgrammedGradients(RecordGradients):
    """Gradients of single records by compiled loops whose buffers stay in cache, a few records at a time.

    `model`, `loss`, `device`: as in the base. `lowered`: the model's layers.
    """

    form = "many records at once by compiled loops"
    stacks = True
    most_clients = 1

    def __init__(self, model: nn.Module, loss: Loss, device: torch.device, lowered: LoweredModel) -> None:
        super().__init__(model, loss, device)
        self._lowered = lowered
        self._inverse = torch.from_numpy(lowered.inverse)
        self._programs = threading.local()
        self._most = lowered.most_records

    def clipped_sums(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        present: torch.Tensor,
        clipping_norms: torch.Tensor,
    ) -> torch.Tensor:

        def add(program: ClippedProgram, k: int, x: torch.Tensor, y: torch.Tensor, absent: Absent) -> None:
            program.add(x, y, absent, SLACK * float(clipping_norms[k]))

        return self._summed(thetas, x, y, present, add, self._own_programs.total)

    def truncated_sums(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        present: torch.Tensor,
        bounds: torch.Tensor,
        unit: float | torch.Tensor,
    ) -> torch.Tensor:
        """Return every client's integer sum of gradients, each clipped and truncated in units of ``unit``."""

        def add(program: ClippedProgram, k: int, x: torch.Tensor, y: torch.Tensor, absent: Absent) -> None:
            own_unit = unit if isinstance(unit, float) else float(unit[k])
            program.add_truncated(x, y, absent, EXACT_SLACK * float(bounds[k]), own_unit)

        return self._summed(thetas, x, y, present, add, self._own_programs.truncated)

    def _summed(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        present: torch.Tensor,
        add: Callable[[ClippedProgram, int, torch.Tensor, torch.Tensor, Absent], None],
        total: torch.Tensor,
    ) -> torch.Tensor:
        """Return every client's sum of gradients, shape (clients, d); ``add`` adds those of a few records."""
        own, sums = self._own_programs, torch.empty(thetas.shape, dtype=total.dtype)
        for k, places in enumerate(present):
            own.load(thetas[k])
            absent = ~places.numpy()
            for piece in pieces_of(len(places), self._most):
                add(own.of(piece.stop - piece.start), k, x[k, piece], y[k, piece], absent[piece])
            torch.index_select(total, 0, self._inverse, out=sums[k])
        return sums

    def rows(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        own, apart = self._own_programs, torch.empty(*y.shape[:2], thetas.shape[1])
        for k, theta in enumerate(thetas):
            own.load(theta)
            for piece in pieces_of(y.shape[1], self._most):
                out = apart[k, piece]
                own.of(len(out)).write(x[k, piece], y[k, piece], out)
        return apart[..., self._inverse]

    def records_at_once(self, least_bytes: int = 0) -> int:
        """Return how many records to give one thread at once: a few times what one compiled pass holds."""
        return PASSES_IN_A_ROW * self._most

    @property
    def _own_programs(self) -> "_Programs":
        """The compiled passes of this thread, by the number of records."""
        if not hasattr(self._programs, "own"):
            self._programs.own = _Programs(self._lowered, self.loss)
        own: _Programs = self._programs.own
        return own


class _Programs:
    """Compiled passes, one for each number of records, that add gradients to the same sum."""

    def __init__(self, lowered: LoweredModel, loss: Loss) -> None:
        self._lowered, self._loss = lowered, loss
        self._order = torch.from_numpy(lowered.order)
        self._parameters = torch.empty(len(lowered.order))
        self.total = torch.empty(len(lowered.order))
        self.truncated = torch.empty(len(lowered.order), dtype=torch.int64)
        self._by_size: dict[int, ClippedProgram] = {}

    def load(self, theta: torch.Tensor) -> None:
        """Load a client's parameters, shape (d,), and set the sums to zero."""
        torch.index_select(theta, 0, self._order, out=self._parameters)
        self.total.zero_()
        self.truncated.zero_()

    def of(self, num_records: int) -> ClippedProgram:
        """Return the compiled pass for this number of records."""
        if num_records not in self._by_size:
            self._by_size[num_records] = ClippedProgram(
                self._lowered, self._loss, num_records, self._parameters, self.total, self.truncated
            )
        return self._by_size[num_records]
