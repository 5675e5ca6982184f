"""One layer of a program: its buffers for so many records, and its calls on them."""

from collections.abc import Callable
from functools import partial

import torch

from gdpfed.learning.programs import kernels
from gdpfed.learning.programs.compiling import Floats
from gdpfed.learning.programs.kernels import PatchGeometry, WindowGeometry
from gdpfed.learning.programs.lowering import Pair, Stage

Call = Callable[[], object]


class Layer:
    """A layer with weights and what follows it, for a fixed number of records.

    Args:
        stage: the layer.
        inputs: its input, shape (records, height, width, channels).
        parameters: those of the program, shape (d,); read at every pass.
        gradient: of the program, shape (d,); None where gradients are left apart for each record.

    Attributes:
        output: shape (records, height, width, channels).
        output_back: the gradient by it, to be filled before the way back.
        forward: the calls of the way there.
        weight, bias: where they stand among the parameters; no bias is None.
        is_outer: whether a record's gradient by the weight is g^T a: there is one patch.
        rows: the gradient by the weight for each record, if they are left apart and not outer.
        biases: the gradient by the bias, for each record or summed.
    """

    def __init__(
        self, stage: Stage, inputs: torch.Tensor, parameters: torch.Tensor, gradient: torch.Tensor | None
    ) -> None:
        self.stage = stage
        self._count = len(inputs)
        self._inputs = inputs
        self.weight = slice(stage.weight, stage.weight + stage.outputs * stage.patch)
        self.bias = None if stage.bias is None else slice(stage.bias, stage.bias + stage.outputs)
        self._matrix = parameters[self.weight].view(stage.outputs, stage.patch)
        self._gradient = gradient
        self.is_outer = stage.places == (1, 1)
        self._is_whole = self.is_outer and stage.patch == inputs[0].numel()
        self._patches = inputs if self._is_whole else self._buffer(*stage.places, stage.patch)
        self._values = self._buffer(*stage.places, stage.outputs)
        pools = stage.pool_stride is not None
        self.output = self._buffer(*stage.output) if pools else self._values
        self.output_back = self._buffer(*stage.output)
        # What was pooled is not needed on the way back, so that its gradient takes its place.
        self._values_back = self._values if pools else self.output_back
        self._which = torch.empty(self.output.shape if pools else 0, dtype=torch.int32)
        self._bias = torch.zeros(stage.outputs) if self.bias is None else parameters[self.bias]
        if gradient is None or self.bias is None:
            self.biases = self._buffer(stage.outputs)
        else:
            self.biases = gradient[self.bias].view(1, -1)
        self.rows = torch.empty(0)
        if gradient is None and not self.is_outer:
            self.rows = torch.empty(self._count, stage.outputs, stage.patch)
        self.forward = self._forward()

    @property
    def patches(self) -> torch.Tensor:
        """What the weights met: a of shape (records, entries), where it is outer."""
        return self._patches.view(self._count, -1)

    @property
    def values_back(self) -> torch.Tensor:
        """The gradient by what the weights gave: g of shape (records, outputs), where it is outer."""
        return self._values_back.view(self._count, -1)

    def _forward(self) -> list[Call]:
        stage, calls = self.stage, list[Call]()
        if not self._is_whole:
            calls.append(partial(kernels.patches, flat(self._inputs), self._geometry, flat(self._patches)))
        calls.append(partial(torch.mm, self._rows_of(self._patches), self._matrix.t(), out=self._products))
        bias = flat(self._bias)
        if stage.pool_stride is None:
            calls.append(partial(kernels.activate, flat(self._values), stage.outputs, bias, stage.rectify))
        else:
            calls.append(
                partial(
                    kernels.pool,
                    flat(self._values),
                    self._windows(stage.pool_stride),
                    bias,
                    stage.rectify,
                    flat(self.output),
                    self._which.view(-1).numpy(),
                )
            )
        return calls

    def backward(self, inputs_back: torch.Tensor | None) -> list[Call]:
        """The calls of the way back.

        Args:
            inputs_back: for the gradient by the input; None where nobody asks for it.
        """
        stage, calls = self.stage, list[Call]()
        sums = (len(self.biases), flat(self.biases))
        if stage.pool_stride is None:
            calls.append(
                partial(
                    kernels.activate_back,
                    flat(self.output),
                    flat(self.output_back),
                    self._count,
                    stage.outputs,
                    stage.rectify,
                    *sums,
                )
            )
        else:
            calls.append(
                partial(
                    kernels.pool_back,
                    flat(self.output),
                    self._which.view(-1).numpy(),
                    flat(self.output_back),
                    self._windows(stage.pool_stride),
                    stage.rectify,
                    *sums,
                    flat(self._values_back),
                )
            )
        gradients, patches = self._rows_of(self._values_back), self._rows_of(self._patches)
        if self._gradient is not None:
            target = self._gradient[self.weight].view_as(self._matrix)
            calls.append(partial(torch.mm, gradients.t(), patches, out=target))
        elif not self.is_outer:
            records = self._values_back.view(self._count, -1, stage.outputs).transpose(1, 2)
            calls.append(
                partial(torch.bmm, records, self._patches.view(self._count, -1, stage.patch), out=self.rows)
            )
        if inputs_back is None:
            return calls
        if self._is_whole:
            target = inputs_back.view(self._count, -1)
            return [*calls, partial(torch.mm, gradients, self._matrix, out=target)]
        # Patches that are outer are asked for once more; others have served when their gradient comes.
        taken = torch.empty_like(self._patches) if self.is_outer else self._patches
        calls.append(partial(torch.mm, gradients, self._matrix, out=self._rows_of(taken)))
        calls.append(partial(kernels.patches_back, flat(taken), self._geometry, flat(inputs_back)))
        return calls

    @property
    def _products(self) -> torch.Tensor:
        return self._values.view(-1, self.stage.outputs)

    @property
    def _geometry(self) -> PatchGeometry:
        stage = self.stage
        return (self._count, *stage.shape, *stage.kernel, *stage.stride, *stage.padding, *stage.places)

    def _windows(self, by: Pair) -> WindowGeometry:
        stage = self.stage
        return (self._count, *stage.places, stage.outputs, *by, *stage.output[:2])

    def _rows_of(self, patches: torch.Tensor) -> torch.Tensor:
        """Places of all records as the rows of one matrix."""
        return patches.view(-1, self.stage.outputs if patches is self._values_back else self.stage.patch)

    def _buffer(self, *shape: int) -> torch.Tensor:
        return torch.empty(self._count, *shape)


def flat(buffer: torch.Tensor) -> Floats:
    """A buffer as kernels take it."""
    flat: Floats = buffer.view(-1).numpy()
    return flat
