"""Local SGD by programs: one client after the other, each on buffers that stay in cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from fastgrad.lowered import LoweredModel, pieces_of
from fastgrad.modules import Loss
from gdpfed.late_import import late_import
from gdpfed.learning.training.local_update import LocalTraining
from gdpfed.methods.base import Theta
from gdpfed.simulation.batched_training import Batches, DeviceExamples

if TYPE_CHECKING:
    from fastgrad.program import Program

# It imports numba, which takes a while and is needed for some models only.
programs = late_import("fastgrad.program")


class ProgrammedTraining:
    """tau steps of SGD of many clients, one after the other (Algorithm 1 of the paper).

    What a client's steps compute depends on nothing but the client: its parameters lie in the same buffers as
    those of every other one. `lowered`: the model's layers. `loss`: one figure a record.

    Attributes:
        draws: whether layers of the model draw by keys.
    """

    def __init__(self, lowered: LoweredModel, loss: Loss) -> None:
        self._lowered, self._loss, self.draws = lowered, loss, lowered.draws
        self._order, self._inverse = torch.from_numpy(lowered.order), torch.from_numpy(lowered.inverse)
        self._parameters, self._gradient, self._total, self._velocity = torch.empty(
            4, len(lowered.order)
        ).unbind()
        self._most = lowered.most_records
        self._by_size: dict[int, Program] = {}

    def updates(
        self, theta: Theta, training: LocalTraining, examples: DeviceExamples, batches: Batches
    ) -> torch.Tensor:
        """Delta_i = theta_i - theta of every client, shape (clients, d), float64.

        ``theta`` is what all start from, shape (d,), or each of them, shape (clients, d).
        """
        start, weights = torch.from_numpy(theta), torch.from_numpy(batches.weights)
        ends = torch.empty(weights.shape[1], theta.shape[-1])
        starts = start.expand_as(ends)
        with _one_thread():
            for k, end in enumerate(ends):
                self.load(starts[k])
                self._velocity.zero_()
                x, y = examples.take(batches.positions[:, k])
                for step in range(len(weights)):
                    self._descend(
                        self.gradient(x[step], y[step], weights[step, k], int(batches.keys[step, k])),
                        training,
                    )
                torch.index_select(self._parameters, 0, self._inverse, out=end)
        return ends.double() - start.double()

    def gradient(self, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor, key: int = 0) -> torch.Tensor:
        """The gradient of the weighted sum of the losses at the parameters that are loaded, shape (d,).

        Layers that draw do so by the key.
        """
        if len(y) <= self._most:
            self.program(len(y)).run(x, y, weights, key)
            return self._gradient
        self._total.zero_()
        for piece in pieces_of(len(y), self._most):
            program = self.program(piece.stop - piece.start)
            program.run(x[piece], y[piece], weights[piece], key, piece.start)
            self._total += self._gradient
        return self._total

    def load(self, theta: torch.Tensor) -> None:
        """Take parameters, shape (d,), in the model's order."""
        torch.index_select(theta, 0, self._order, out=self._parameters)

    def in_order(self, ours: torch.Tensor) -> torch.Tensor:
        """A vector in the program's order, shape (d,), in the model's."""
        return ours[self._inverse]

    def _descend(self, gradient: torch.Tensor, training: LocalTraining) -> None:
        """v <- momentum * v + g, p <- p - eta v, in place."""
        if training.momentum:
            gradient = self._velocity.mul_(training.momentum).add_(gradient)
        self._parameters.sub_(gradient, alpha=training.learning_rate)

    def program(self, num_records: int) -> "Program":
        """The pass of so many records."""
        if num_records not in self._by_size:
            self._by_size[num_records] = programs.Program(
                self._lowered, self._loss, num_records, self._parameters, self._gradient
            )
        return self._by_size[num_records]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes share the work; threads would split a product, or not, by its size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
