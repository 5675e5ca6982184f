"""What every layer of a program has: buffers for so many records, and calls that are bound to them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from fastgrad import clip_kernels
from fastgrad.kernels import Doubles, Floats, Integers

Call = Callable[[], object]


def flat(buffer: torch.Tensor) -> Floats:
    """A buffer as kernels take it."""
    flat: Floats = buffer.view(-1).numpy()
    return flat


@dataclass(frozen=True, eq=False)
class Rows:
    """Gradients of single records by some parameters, written out.

    Attributes:
        where: the parameters among those of the program.
        values: shape (records, entries).
    """

    where: slice
    values: torch.Tensor

    def measure(self, squares: Doubles) -> Call:
        """Adds their squared norms, by record."""
        return partial(clip_kernels.add_squares, flat(self.values), squares)

    def add(self, factors: Doubles, total: torch.Tensor) -> list[Call]:
        """Add each times its factor to their place in ``total``, shape (d,)."""
        return [partial(clip_kernels.add_weighted, flat(self.values), factors, flat(total[self.where]))]

    def add_truncated(self, factors: Doubles, unit: float, total: torch.Tensor) -> None:
        """Add trunc(f_i g_i / unit) to their place in ``total``, shape (d,), int64."""
        clip_kernels.add_truncated(flat(self.values), factors, unit, total[self.where].numpy())

    def write(self, out: torch.Tensor) -> None:
        """Write them to their place in ``out``, shape (records, d)."""
        out[:, self.where] = self.values.flatten(1)


@dataclass(frozen=True, eq=False)
class Outer:
    """Gradients g_i^T a_i by a matrix, which are not written out; what is not said is as in `Rows`.

    Attributes:
        outputs: g, shape (records, outputs).
        inputs: a, shape (records, inputs).
    """

    where: slice
    outputs: torch.Tensor
    inputs: torch.Tensor

    def measure(self, squares: Doubles) -> Call:
        """Adds ||g_i||^2 ||a_i||^2."""
        return partial(clip_kernels.add_outer_squares, flat(self.outputs), flat(self.inputs), squares)

    def add(self, factors: Doubles, total: torch.Tensor) -> list[Call]:
        """As in `Rows`, by one product of matrices; g and a are overwritten."""
        target = total[self.where].view(self.outputs.shape[1], -1)
        return [
            partial(clip_kernels.scale, flat(self.outputs), flat(self.inputs), factors),
            partial(target.addmm_, self.outputs.t(), self.inputs),
        ]

    def add_truncated(self, factors: Doubles, unit: float, total: torch.Tensor) -> None:
        """As in `Rows`."""
        vectors = flat(self.outputs), flat(self.inputs)
        clip_kernels.add_truncated_outer(*vectors, factors, unit, total[self.where].numpy())

    def write(self, out: torch.Tensor) -> None:
        """As in `Rows`."""
        out[:, self.where] = (self.outputs[:, :, None] * self.inputs[:, None]).flatten(1)


Part = Rows | Outer


@dataclass(frozen=True, eq=False)
class Given:
    """What a layer of a program is bound to.

    Attributes:
        inputs: its input, shape (records, height, width, channels).
        parameters: those of the program, shape (d,); read at every pass.
        gradient: of the program, shape (d,); None where gradients are left apart for each record.
        drawn: the key of a pass, and how many records of its batch came before.
    """

    inputs: torch.Tensor
    parameters: torch.Tensor
    gradient: torch.Tensor | None
    drawn: Integers


class Layer(ABC):
    """A layer for a fixed number of records, made of a `fastgrad.lowered.LoweredLayer` and what is `Given`.

    Attributes:
        output: shape (records, height, width, channels).
        output_back: the gradient by it, to be filled before the way back, which overwrites it.
        forward: the calls of the way there.
        parts: the gradients of single records by its parameters, if they are left apart.
    """

    output: torch.Tensor
    output_back: torch.Tensor
    forward: Sequence[Call]
    parts: Sequence[Part] = ()

    @abstractmethod
    def backward(self, inputs_back: torch.Tensor | None) -> list[Call]:
        """The calls of the way back.

        Args:
            inputs_back: for the gradient by the input; None where nobody asks for it.
        """
