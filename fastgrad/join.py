"""The sum of two branches of a network as compiled loops (numba), with ReLU if one follows."""

from functools import partial

import torch

from fastgrad import kernels
from fastgrad.layer import Call, Given, Layer, flat
from fastgrad.lowered import Join


class JoinLayer(Layer):
    """The sum of two branches of a network as compiled loops (numba), for a fixed number of records.

    `stage`: the layer. `given`: what it is bound to.
    """

    def __init__(self, stage: Join, given: Given) -> None:
        inputs = given.inputs
        self.output, self.output_back = torch.empty_like(inputs), torch.empty_like(inputs)
        self._rectify, self._channels = stage.rectify, stage.shape[2]
        self.forward: list[Call] = [partial(torch.add, inputs, given.other, out=self.output)]
        if stage.rectify:
            unmoved = flat(torch.zeros(self._channels))
            self.forward.append(partial(kernels.activate, flat(self.output), self._channels, unmoved, True))

    def backward(self, inputs_back: torch.Tensor | None) -> list[Call]:
        """Return the calls that pass the gradient of the sum of two branches back to one of the branches."""
        if inputs_back is None:
            return []
        calls = list[Call]()
        if self._rectify:
            buffers = flat(self.output), flat(self.output_back)
            unasked = flat(torch.empty(self._channels))
            calls.append(
                partial(kernels.activate_back, *buffers, len(self.output), self._channels, True, 1, unasked)
            )
        return [*calls, partial(inputs_back.copy_, self.output_back)]
