"""A linear or convolution layer as compiled loops (numba) that compute gradients."""

from collections.abc import Iterator
from functools import partial

import torch

from fastgrad import kernels
from fastgrad.kernels import PatchGeometry, WindowGeometry
from fastgrad.layer import Call, Given, Layer, Outer, Part, Rows, flat
from fastgrad.lowered import Affine, Pair
from fastgrad.products import product, products_of_records


class AffineLayer(Layer):
    """A linear or convolution layer with ReLU and pooling, as compiled loops for a fixed number of records.

    `stage`: the layer. `given`: what it is bound to.
    """

    def __init__(self, stage: Affine, given: Given) -> None:
        inputs, parameters, gradient = given.inputs, given.parameters, given.gradient
        self._stage = stage
        self._count = len(inputs)
        self._inputs = inputs
        self._weight = slice(stage.weight, stage.weight + stage.outputs * stage.patch)
        self._bias_at = None if stage.bias is None else slice(stage.bias, stage.bias + stage.outputs)
        self._matrix = parameters[self._weight].view(stage.outputs, stage.patch)
        self._gradient = gradient
        self._is_outer = stage.places == (1, 1)
        self._is_whole = self._is_outer and stage.patch == inputs[0].numel()
        self._patches = inputs if self._is_whole else self._buffer(*stage.places, stage.patch)
        self._values = self._buffer(*stage.places, stage.outputs)
        pools = stage.pool_stride is not None
        self.output = self._buffer(*stage.output) if pools else self._values
        self.output_back = self._buffer(*stage.output)
        # What was pooled is not needed on the way back, so that its gradient takes its place.
        self._values_back = self._values if pools else self.output_back
        self._which = torch.empty(self.output.shape if pools else 0, dtype=torch.int32)
        self._bias = torch.zeros(stage.outputs) if self._bias_at is None else parameters[self._bias_at]
        if gradient is None or self._bias_at is None:
            self._biases = self._buffer(stage.outputs)
        else:
            self._biases = gradient[self._bias_at].view(1, -1)
        self._rows = torch.empty(0)
        if gradient is None and not self._is_outer:
            self._rows = torch.empty(self._count, stage.outputs, stage.patch)
        self.parts = [] if gradient is not None else list(self._parts())
        self.forward = self._forward()

    def _parts(self) -> Iterator[Part]:
        """Yield the gradients of single records with respect to weights and, if there is one, bias."""
        if self._is_outer:
            outputs, inputs = (each.view(self._count, -1) for each in (self._values_back, self._patches))
            yield Outer(self._weight, outputs, inputs)
        else:
            yield Rows(self._weight, self._rows)
        if self._bias_at is not None:
            yield Rows(self._bias_at, self._biases)

    def _forward(self) -> list[Call]:
        stage, calls = self._stage, list[Call]()
        if not self._is_whole:
            calls.append(partial(kernels.patches, flat(self._inputs), self._geometry, flat(self._patches)))
        calls.append(product(self._rows_of(self._patches), self._matrix.t(), self._products))
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
        stage, calls = self._stage, list[Call]()
        sums = (len(self._biases), flat(self._biases))
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
            target = self._gradient[self._weight].view_as(self._matrix)
            calls.append(product(gradients.t(), patches, target))
        elif not self._is_outer:
            records, entered = (each.flatten(1, 2) for each in (self._values_back, self._patches))
            calls.append(products_of_records(records, entered, self._rows))
        if inputs_back is None:
            return calls
        if self._is_whole:
            target = inputs_back.view(self._count, -1)
            return [*calls, product(gradients, self._matrix, target)]
        # Patches that are outer are asked for once more; others have served when their gradient comes.
        taken = torch.empty_like(self._patches) if self._is_outer else self._patches
        calls.append(product(gradients, self._matrix, self._rows_of(taken)))
        calls.append(partial(kernels.patches_back, flat(taken), self._geometry, flat(inputs_back)))
        return calls

    @property
    def _products(self) -> torch.Tensor:
        return self._values.view(-1, self._stage.outputs)

    @property
    def _geometry(self) -> PatchGeometry:
        stage = self._stage
        return (self._count, *stage.shape, *stage.kernel, *stage.stride, *stage.padding, *stage.places)

    def _windows(self, by: Pair) -> WindowGeometry:
        stage = self._stage
        return (self._count, *stage.places, stage.outputs, *by, *stage.output[:2])

    def _rows_of(self, patches: torch.Tensor) -> torch.Tensor:
        """Return patches or output gradients as a matrix with one row for each position of each record."""
        return patches.view(-1, self._stage.outputs if patches is self._values_back else self._stage.patch)

    def _buffer(self, *shape: int) -> torch.Tensor:
        return torch.empty(self._count, *shape)
