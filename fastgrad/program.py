"""One forward and backward pass of some records through a client's model, by compiled loops (numba).

Every buffer is made once and every call is bound to its buffers, so a pass is a list of calls. What it
computes does not depend on what was computed before.
"""

from functools import partial
from importlib import import_module

import numpy as np
import torch

from fastgrad import kernels
from fastgrad.layer import Call, Given, Layer, flat
from fastgrad.lowered import LoweredLayer, LoweredModel
from fastgrad.modules import Loss, cross_entropy


class Program:
    """One forward and backward pass through a model, by compiled loops for a fixed number of records.

    Args:
        lowered: the model.
        loss: one figure a record.
        num_records: how many records take part in a pass.
        parameters: in the program's order, shape (d,); read at every pass.
        gradient: takes the gradient of the sum of weighted losses, in the program's order, shape (d,); None
            to leave gradients apart for each record, in the layers, of a model that reads no text.

    `layers`: in their order. `drawn`: the key of a pass, and how many records of its batch came before;
    dropout reads them.
    """

    def __init__(
        self,
        lowered: LoweredModel,
        loss: Loss,
        num_records: int,
        parameters: torch.Tensor,
        gradient: torch.Tensor | None = None,
    ) -> None:
        self._loss, self.drawn = loss, np.zeros(2, np.int64)
        self._forward: list[Call] = []
        last: list[Call] = []
        first_back: torch.Tensor | None = None
        if lowered.reading is not None:
            from fastgrad.embedding_lstm import EmbeddingLSTMLayers

            if gradient is None:
                raise ValueError(
                    "a compiled program of a model that reads text gives no gradients of single records"
                )
            text = EmbeddingLSTMLayers(lowered.reading, num_records, parameters, gradient)
            self._given, inputs, first_back = text.characters, text.output, text.output_back
            self._forward, last = text.forward, text.backward
        else:
            inputs = torch.empty(num_records, *lowered.stages[0].shape)
            # As the model takes it.
            self._given = inputs.permute(0, 3, 1, 2) if lowered.has_pictures else inputs.view(num_records, -1)
        self.layers: list[Layer] = []
        for stage, numbers in zip(lowered.stages, lowered.inputs, strict=True):
            first, *others = (inputs if number < 0 else self.layers[number].output for number in numbers)
            self.layers.append(layer_of(stage, Given(first, parameters, gradient, self.drawn, *others)))
        self._logits = self.layers[-1].output.view(num_records, -1)
        self._logits_back = self.layers[-1].output_back.view(num_records, -1)
        self._by_cross_entropy = partial(
            kernels.cross_entropy_back, flat(self._logits), self._logits.shape[1], out=flat(self._logits_back)
        )
        self._forward += [call for layer in self.layers for call in layer.forward]
        self._backward = self._back_through(lowered, first_back) + last

    def _back_through(self, lowered: LoweredModel, first_back: torch.Tensor | None) -> list[Call]:
        """Return all layers' backward calls, last layer first; gradients of a shared input are added up."""
        calls, met = list[Call](), set[int]()
        for layer, numbers in reversed(list(zip(self.layers, lowered.inputs, strict=True))):
            for number in numbers:
                back = first_back if number < 0 else self.layers[number].output_back
                if back is None or number not in met:
                    calls += layer.backward(back)
                else:
                    more = torch.empty_like(back)
                    calls += [*layer.backward(more), partial(back.add_, more)]
                met.add(number)
        return calls

    @property
    def calls(self) -> list[Call]:
        """The calls of a forward and backward pass in order, except the call of the loss."""
        return self._forward + self._backward

    def run(
        self, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor, key: int = 0, before: int = 0
    ) -> None:
        """Run a forward and a backward pass over records of shape (n, ...), with loss weights of shape (n,).

        Layers that draw do so by the key, for records before which their batch has so many others.
        """
        self.drawn[:] = key, before
        self.outputs(x)
        self._by_loss(y, weights)
        for call in self._backward:
            call()

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Run a forward pass over records of shape (n, ...); return the outputs, shape (n, outputs).

        The next pass overwrites them.
        """
        self._given.copy_(x.reshape(self._given.shape))
        for call in self._forward:
            call()
        return self._logits

    def _by_loss(self, y: torch.Tensor, weights: torch.Tensor) -> None:
        if self._loss is cross_entropy:
            self._by_cross_entropy(y.to(torch.int64).contiguous().numpy(), weights.numpy())
            return
        with torch.enable_grad():
            leaf = self._logits.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((self._loss(leaf, y) * weights).sum(), leaf)
        self._logits_back.copy_(gradient)


def layer_of(stage: LoweredLayer, given: Given) -> Layer:
    """Make a layer's compiled loops; the module with the loops is imported only when it is needed."""
    module, name = stage.compiled.split(":")
    made: Layer = getattr(import_module(module), name)(stage, given)
    return made
