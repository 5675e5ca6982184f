"""Reads the layers of a model that programs know.

Known are `nn.Sequential`s of plain convolutions of pictures and linear layers, each followed by ReLU, by
maximum pooling of 2 x 2 without padding, by both or by none, and of flattening. A text may be read first, by
an embedding and LSTM layers up to the last position. In a program, pictures lie with their channels last, the
entries of every weight in the order in which patches meet them, and weights from state to gates transposed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.learning.models.lstm import LastPosition, LSTMLayer

Pair = tuple[int, int]
Shape = tuple[int, int, int]


class NotLoweredError(Exception):
    """A model that programs do not know, and why."""


@dataclass(frozen=True)
class Stage:
    """One layer with weights, and what follows it: out = pool(relu(W patch + b)).

    Attributes:
        shape: of the input: height, width, channels; of what is no picture, (1, 1, features).
        kernel, stride, padding: of the patches; a linear layer has one patch, the whole input.
        outputs: how many channels there are after the weights.
        weight: where the weights begin among the parameters; shape (outputs, entries of a patch).
        bias: where the bias begins; None without one.
        rectify: whether ReLU follows.
        pool_stride: of the pooling that follows; None without one.
    """

    shape: Shape
    kernel: Pair
    stride: Pair
    padding: Pair
    outputs: int
    weight: int
    bias: int | None
    rectify: bool = False
    pool_stride: Pair | None = None

    @property
    def patch(self) -> int:
        """Entries of a patch."""
        return self.kernel[0] * self.kernel[1] * self.shape[2]

    @property
    def places(self) -> Pair:
        """How many patches there are, down and right."""
        height, width = (
            (size + 2 * pad - kernel) // stride + 1
            for size, pad, kernel, stride in zip(
                self.shape[:2], self.padding, self.kernel, self.stride, strict=True
            )
        )
        return height, width

    @property
    def output(self) -> Shape:
        """Height, width and channels of what comes out."""
        height, width = self.places
        if self.pool_stride is not None:
            height, width = (
                (size - 2) // by + 1 for size, by in zip(self.places, self.pool_stride, strict=True)
            )
        return height, width, self.outputs


@dataclass(frozen=True)
class Recurrence:
    """One LSTM layer.

    Attributes:
        inputs, units: entries at a position, of its input and of its state.
        from_inputs: where its weights by the input begin among the parameters; shape (4 units, inputs).
        bias: where the bias begins; shape (4 units,).
        from_states: where its weights by the state begin; shape (units, 4 units).
    """

    inputs: int
    units: int
    from_inputs: int
    bias: int
    from_states: int


@dataclass(frozen=True)
class Reading:
    """What reads a text before the stages: an embedding, and LSTM layers up to the last position.

    Attributes:
        length: characters of an example.
        vocabulary, width: rows of the embedding, and entries of a row.
        table: where the embedding begins among the parameters; shape (vocabulary, width).
        recurrences: the LSTM layers in their order.
    """

    length: int
    vocabulary: int
    width: int
    table: int
    recurrences: tuple[Recurrence, ...] = ()


@dataclass(frozen=True, eq=False)
class Lowered:
    """A model as stages.

    Attributes:
        stages: in their order.
        input_shape: of one example, as the model takes it.
        order: where each parameter of the program stands in theta, shape (d,).
        reading: what comes before the stages; None where examples are pictures or rows of numbers.
    """

    stages: tuple[Stage, ...]
    input_shape: tuple[int, ...]
    order: npt.NDArray[np.int64]
    reading: Reading | None = None

    @cached_property
    def inverse(self) -> npt.NDArray[np.int64]:
        """Where each parameter of theta stands in the program, shape (d,)."""
        return np.argsort(self.order)

    @property
    def bytes_a_record(self) -> int:
        """About what a record's buffers take, with its gradients by weights that are shared by places.

        A text is read position by position, and one of them is what is to stay in cache.
        """
        layers = self.reading.recurrences if self.reading else ()
        floats = sum(2 * layer.inputs + 8 * layer.units for layer in layers)
        for stage in self.stages:
            places, outputs = prod(stage.places), prod(stage.output)
            floats += prod(stage.shape) + places * (stage.patch + stage.outputs) + 3 * outputs
            floats += stage.outputs * stage.patch if places > 1 else 0
        return 4 * floats

    @property
    def has_pictures(self) -> bool:
        """Whether the input is taken as pictures, and not as one row of numbers."""
        return len(self.input_shape) == 3 and self.stages[0].shape[:2] == self.input_shape[1:]


def lower(model: nn.Module, input_shape: tuple[int, ...]) -> Lowered:
    """Read a model's layers.

    Raises:
        NotLoweredError: a layer, or an order of layers, that programs do not know.
    """
    reader = _Reader(model, input_shape)
    for layer in _layers(model):
        reader.read(layer)
    return reader.result()


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    if type(model) is not nn.Sequential:
        yield model
        return
    for layer in model:
        yield from _layers(layer)


class _Reader:
    def __init__(self, model: nn.Module, input_shape: tuple[int, ...]) -> None:
        self._input_shape = input_shape
        self._stages: list[Stage] = []
        self._parts: list[npt.NDArray[np.int64]] = []
        self._begins: dict[int, int] = {}
        self._size = 0
        for parameter in model.parameters():
            self._begins[id(parameter)] = self._size
            self._size += parameter.numel()
            if parameter.dtype != torch.float32:
                raise NotLoweredError(f"parameters of type {parameter.dtype}")
        if len(input_shape) == 3:
            channels, height, width = input_shape
            self._shape: Shape = (height, width, channels)
            self._flat = False
        elif len(input_shape) == 1:
            self._shape, self._flat = (1, 1, input_shape[0]), True
        else:
            raise NotLoweredError(f"examples of shape {input_shape}")
        self._reading: Reading | None = None
        self._is_text = False
        # Where the model has each of the features that a linear layer takes.
        self._features = np.arange(self._shape[2])

    def read(self, layer: nn.Module) -> None:
        """Take the next layer."""
        readers: dict[type[nn.Module], Callable[[Any], None]] = {
            nn.Conv2d: self._convolution,
            nn.Linear: self._linear,
            nn.ReLU: self._relu,
            nn.MaxPool2d: self._pooling,
            nn.Flatten: self._flatten,
            nn.Embedding: self._embedding,
            LSTMLayer: self._recurrence,
            LastPosition: self._last_position,
        }
        read = readers.get(type(layer))
        if read is None or (self._is_text and type(layer) not in (LSTMLayer, LastPosition)):
            raise NotLoweredError(f"a layer {type(layer).__name__}")
        read(layer)

    def result(self) -> Lowered:
        """What has been read.

        Raises:
            NotLoweredError: no layer with weights, an output that is no row of numbers, or parameters that
                were not met just once.
        """
        if not self._stages or not self._flat:
            raise NotLoweredError("a model that does not end with a row of numbers")
        order = np.concatenate(self._parts)
        if not np.array_equal(np.sort(order), np.arange(self._size)):
            raise NotLoweredError("a parameter that is used more than once, or never")
        return Lowered(tuple(self._stages), self._input_shape, order, self._reading)

    def _embedding(self, layer: nn.Embedding) -> None:
        if self._stages or self._reading or len(self._input_shape) != 1:
            raise NotLoweredError("an embedding of what is no text")
        if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq:
            raise NotLoweredError("an embedding with options")
        table = self._add(self._entries(layer.weight))
        self._reading = Reading(self._shape[2], layer.num_embeddings, layer.embedding_dim, table)
        self._is_text, self._shape = True, (1, 1, layer.embedding_dim)

    def _recurrence(self, layer: LSTMLayer) -> None:
        if self._reading is None or not self._is_text or layer.input_map.in_features != self._shape[2]:
            raise NotLoweredError("an LSTM layer that does not follow an embedding")
        added = Recurrence(
            self._shape[2],
            layer.hidden_units,
            self._add(self._entries(layer.input_map.weight)),
            self._add(self._entries(layer.input_map.bias)),
            self._add(self._entries(layer.hidden_map.weight).T),
        )
        self._reading = replace(self._reading, recurrences=(*self._reading.recurrences, added))
        self._shape = (1, 1, layer.hidden_units)

    def _last_position(self, layer: LastPosition) -> None:
        del layer
        if not self._is_text or self._reading is None or not self._reading.recurrences:
            raise NotLoweredError("a last position that does not follow an LSTM layer")
        self._is_text, self._features = False, np.arange(self._shape[2])

    def _convolution(self, layer: nn.Conv2d) -> None:
        plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        if self._flat or not plain or isinstance(layer.padding, str):
            raise NotLoweredError("a convolution in groups, with dilation or with another padding")
        kernel, stride, padding = (_pair(each) for each in (layer.kernel_size, layer.stride, layer.padding))
        self._append(layer, kernel, stride, padding, layer.out_channels, (0, 2, 3, 1))

    def _linear(self, layer: nn.Linear) -> None:
        if not self._flat:
            raise NotLoweredError("a linear layer on pictures")
        self._append(layer, (1, 1), (1, 1), (0, 0), layer.out_features, None)

    def _append(
        self,
        layer: nn.Conv2d | nn.Linear,
        kernel: Pair,
        stride: Pair,
        padding: Pair,
        outputs: int,
        axes: tuple[int, ...] | None,
    ) -> None:
        entries = self._entries(layer.weight)
        weight = self._add(entries[:, self._features] if axes is None else entries.transpose(axes))
        bias = None if layer.bias is None else self._add(self._entries(layer.bias))
        stage = Stage(self._shape, kernel, stride, padding, outputs, weight, bias)
        self._stages.append(stage)
        self._shape, self._features = stage.output, np.arange(outputs)

    def _entries(self, parameter: torch.Tensor) -> npt.NDArray[np.int64]:
        """Where the entries of a parameter stand in theta, in its shape."""
        begin = self._begins[id(parameter)]
        return np.arange(begin, begin + parameter.numel()).reshape(tuple(parameter.shape))

    def _add(self, entries: npt.NDArray[np.int64]) -> int:
        """Append parameters; where they begin."""
        begin = sum(len(part) for part in self._parts)
        self._parts.append(entries.reshape(-1))
        return begin

    def _relu(self, layer: nn.ReLU) -> None:
        del layer
        self._change(rectify=True)

    def _pooling(self, layer: nn.MaxPool2d) -> None:
        if _pair(layer.kernel_size) != (2, 2) or _pair(layer.padding) != (0, 0):
            raise NotLoweredError("maximum pooling of other windows than 2 x 2, or with padding")
        if _pair(layer.dilation) != (1, 1) or layer.ceil_mode or layer.return_indices:
            raise NotLoweredError("maximum pooling with options")
        if self._flat or not self._stages or self._stages[-1].pool_stride is not None:
            raise NotLoweredError("maximum pooling that does not follow a convolution")
        self._change(pool_stride=_pair(layer.stride))

    def _change(self, **attributes: bool | Pair) -> None:
        """Of the last layer with weights, which only itself and ReLU or pooling have changed since."""
        if not self._stages or self._shape != self._stages[-1].output:
            raise NotLoweredError("ReLU or pooling that does not follow a layer with weights")
        self._stages[-1] = replace(self._stages[-1], **attributes)  # type: ignore[arg-type]
        self._shape = self._stages[-1].output

    def _flatten(self, layer: nn.Flatten) -> None:
        if layer.start_dim != 1 or layer.end_dim not in (-1, 3 if not self._flat else 1):
            raise NotLoweredError("flattening of some dimensions")
        if self._flat:
            return
        height, width, channels = self._shape
        size = height * width * channels
        features = np.arange(size)
        if self._stages:
            features = features.reshape(channels, height, width).transpose(1, 2, 0).reshape(-1)
        self._shape, self._features, self._flat = (1, 1, size), features, True


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
