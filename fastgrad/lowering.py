"""Translate a model's layers for compiled loops (numba), or raise an error that says why it is impossible.

Known are plain convolutions of pictures, linear layers, group normalisation, pooling by means or maxima, sums
of two branches, ReLU behind any of them, dropout, and flattening. ReLU, and maximum pooling of 2 x 2 without
padding, are one pass with the layer that they follow. A text may be read first, by an embedding and LSTM
layers up to the last position. In a program, pictures lie with their channels last, the entries of every
weight in the order in which patches meet them, and weights from state to gates transposed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.im2col import pair
from fastgrad.lowered import (
    LSTM,
    Affine,
    Dropout,
    EmbeddingLSTM,
    Join,
    LoweredLayer,
    LoweredModel,
    Norm,
    NotLoweredError,
    Pair,
    Pooling,
    Shape,
)
from fastgrad.modules import DrawnDropout, LastPosition, LSTMLayer
from fastgrad.traced import EXAMPLES, Sum, steps_of


def lower(model: nn.Module, input_shape: tuple[int, ...]) -> LoweredModel:
    """Return a model's layers in the form that compiled loops (numba) need.

    Raises NotLoweredError: a layer, or an order of layers, that programs do not know.
    """
    reader, steps = _Reader(model, input_shape), steps_of(model)
    taken = Counter(each for step in steps for each in step.inputs)
    results = {EXAMPLES: reader.result}
    if taken[EXAMPLES] > 1:
        reader.share(reader.result)
    for number, step in enumerate(steps):
        results[number] = reader.read(step.layer, [results[each] for each in step.inputs])
        if taken[number] > 1:
            reader.share(results[number])
    return reader.lowered()


@dataclass(frozen=True, eq=False)
class _Result:
    """What is known of the result of one step of a model: its shape, and the order of its features.

    `stage`: the number of the stage that it comes from; EXAMPLES for what comes before all. `shape`: height,
    width, channels. `is_flat`: whether it is a row of numbers. `features`: where the model has each of the
    features that a linear layer takes. `is_text`: whether there are features at every position of a text.
    """

    stage: int
    shape: Shape
    is_flat: bool
    features: npt.NDArray[np.int64]
    is_text: bool = False


class _Reader:
    def __init__(self, model: nn.Module, input_shape: tuple[int, ...]) -> None:
        self._input_shape = input_shape
        self._stages: list[LoweredLayer] = []
        self._inputs: list[tuple[int, ...]] = []
        self._parts: list[npt.NDArray[np.int64]] = []
        self._begins: dict[int, int] = {}
        self._size = 0
        for parameter in model.parameters():
            if not parameter.requires_grad:
                raise NotLoweredError("no compiled program exists for a frozen parameter")
            self._begins[id(parameter)] = self._size
            self._size += parameter.numel()
            if parameter.dtype != torch.float32:
                raise NotLoweredError(f"no compiled program exists for parameters of type {parameter.dtype}")
        if len(input_shape) == 3:
            channels, height, width = input_shape
            self.result = _Result(EXAMPLES, (height, width, channels), False, np.arange(channels))
        elif len(input_shape) == 1:
            self.result = _Result(EXAMPLES, (1, 1, input_shape[0]), True, np.arange(input_shape[0]))
        else:
            raise NotLoweredError(f"no compiled program exists for examples of shape {input_shape}")
        self._reading: EmbeddingLSTM | None = None
        # Stages whose result several others take: nothing can be done in one pass with them.
        self._shared: set[int] = set()

    def share(self, result: _Result) -> None:
        """Mark a result as used by several steps, so that no later step is merged into the result's layer."""
        if result.is_text:
            raise NotLoweredError(
                "no compiled program exists for branches of a text before its last position"
            )
        self._shared.add(result.stage)

    def read(self, layer: nn.Module, inputs: Sequence[_Result]) -> _Result:
        """Convert the model's next layer for compiled loops; return its result. `inputs`: earlier results."""
        self.result = inputs[0]
        readers: dict[type[nn.Module], Callable[[Any], None]] = {
            nn.Conv2d: self._convolution,
            nn.Linear: self._linear,
            nn.ReLU: self._relu,
            nn.GroupNorm: self._norm,
            nn.MaxPool2d: self._pooling,
            nn.AvgPool2d: self._averaging,
            nn.AdaptiveAvgPool2d: self._adaptive,
            nn.Flatten: self._flatten,
            DrawnDropout: self._dropout,
            nn.Embedding: self._embedding,
            LSTMLayer: self._recurrence,
            LastPosition: self._last_position,
        }
        read = readers.get(type(layer))
        if type(layer) is Sum:
            self._sum(*inputs)
        elif read is None or (self.result.is_text and type(layer) not in (LSTMLayer, LastPosition)):
            raise NotLoweredError(f"no compiled program exists for a layer {type(layer).__name__}")
        else:
            read(layer)
        return self.result

    def lowered(self) -> LoweredModel:
        """Return the model that has been read, in the form that compiled loops (numba) need.

        Raises NotLoweredError: no layer with weights, an output that is not a row of numbers or in another
        order, or parameters that were not met just once.
        """
        if not (self._stages and self._parts and self.result.is_flat) or self._is_rearranged:
            raise NotLoweredError(
                "no compiled program exists for a model that does not end with a row of numbers"
            )
        order = np.concatenate(self._parts)
        if not np.array_equal(np.sort(order), np.arange(self._size)):
            raise NotLoweredError(
                "no compiled program exists for a parameter that is used more than once, or never"
            )
        stages, inputs = tuple(self._stages), tuple(self._inputs)
        return LoweredModel(stages, inputs, self._input_shape, order, self._reading)

    @property
    def _is_rearranged(self) -> bool:
        """Whether the features of the latest result are in another order than in the original model."""
        return not np.array_equal(self.result.features, np.arange(self.result.shape[2]))

    @property
    def _last(self) -> LoweredLayer | None:
        """The layer that made the latest result; None if that is the input or is used several times."""
        at = self.result.stage
        return None if at == EXAMPLES or at in self._shared else self._stages[at]

    def _add_stage(self, stage: LoweredLayer, *others: int) -> None:
        """Append a layer whose inputs are the latest result and the results of the layers in `others`."""
        self._stages.append(stage)
        self._inputs.append((self.result.stage, *others))
        self.result = replace(self.result, stage=len(self._stages) - 1, shape=stage.output)

    def _change_last(self, stage: LoweredLayer) -> None:
        self._stages[self.result.stage] = stage
        self.result = replace(self.result, shape=stage.output)

    def _sum(self, one: _Result, other: _Result) -> None:
        alike = (one.shape, one.is_flat) == (other.shape, other.is_flat)
        if not alike or not np.array_equal(one.features, other.features) or one.is_text or other.is_text:
            raise NotLoweredError("no compiled program exists for a sum of branches of different shapes")
        self._add_stage(Join(one.shape), other.stage)

    def _embedding(self, layer: nn.Embedding) -> None:
        if self.result.stage != EXAMPLES or self._reading or len(self._input_shape) != 1:
            raise NotLoweredError("no compiled program exists for an embedding of an input that is not text")
        if EXAMPLES in self._shared:
            raise NotLoweredError("no compiled program exists for a text that several layers take")
        if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq:
            raise NotLoweredError("no compiled program exists for an embedding with options")
        table = self._add(self._entries(layer.weight))
        self._reading = EmbeddingLSTM(self.result.shape[2], layer.num_embeddings, layer.embedding_dim, table)
        self.result = replace(self.result, is_text=True, shape=(1, 1, layer.embedding_dim))

    def _recurrence(self, layer: LSTMLayer) -> None:
        if {type(layer.input_map), type(layer.hidden_map)} != {nn.Linear}:
            raise NotLoweredError("no compiled program exists for an LSTM layer with maps of other kinds")
        inputs = self.result.shape[2]
        if self._reading is None or not self.result.is_text or layer.input_map.in_features != inputs:
            raise NotLoweredError(
                "no compiled program exists for an LSTM layer that does not follow an embedding"
            )
        added = LSTM(
            inputs,
            layer.hidden_units,
            self._add(self._entries(layer.input_map.weight)),
            self._add(self._entries(layer.input_map.bias)),
            self._add(self._entries(layer.hidden_map.weight).T),
        )
        self._reading = replace(self._reading, recurrences=(*self._reading.recurrences, added))
        self.result = replace(self.result, shape=(1, 1, layer.hidden_units))

    def _last_position(self, layer: LastPosition) -> None:
        if not self.result.is_text or self._reading is None or not self._reading.recurrences:
            raise NotLoweredError(
                "no compiled program exists for a last position that does not follow an LSTM layer"
            )
        self.result = replace(self.result, is_text=False, features=np.arange(self.result.shape[2]))

    def _convolution(self, layer: nn.Conv2d) -> None:
        plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        if self.result.is_flat or not plain or isinstance(layer.padding, str):
            raise NotLoweredError(
                "no compiled program exists for a convolution in groups, with dilation or with another "
                "padding"
            )
        kernel, stride, padding = (pair(each) for each in (layer.kernel_size, layer.stride, layer.padding))
        self._append(layer, kernel, stride, padding, layer.out_channels, (0, 2, 3, 1))

    def _linear(self, layer: nn.Linear) -> None:
        if not self.result.is_flat:
            raise NotLoweredError("no compiled program exists for a linear layer on pictures")
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
        weight = self._add(entries[:, self.result.features] if axes is None else entries.transpose(axes))
        bias = None if layer.bias is None else self._add(self._entries(layer.bias))
        self._add_stage(Affine(self.result.shape, kernel, stride, padding, outputs, weight, bias))
        self.result = replace(self.result, features=np.arange(outputs))

    def _entries(self, parameter: torch.Tensor) -> npt.NDArray[np.int64]:
        """Return a parameter's positions in the model's parameter vector, in the shape of the parameter."""
        if (begin := self._begins.get(id(parameter))) is None:
            raise NotLoweredError("no compiled program exists for a weight that is computed from others")
        return np.arange(begin, begin + parameter.numel()).reshape(tuple(parameter.shape))

    def _add(self, entries: npt.NDArray[np.int64]) -> int:
        """Append parameter indices in the compiled loops' order; return the position of the first one."""
        begin = sum(len(part) for part in self._parts)
        self._parts.append(entries.reshape(-1))
        return begin

    def _relu(self, layer: nn.ReLU) -> None:
        last = self._last
        if last is None or self.result.shape != last.output:
            raise NotLoweredError(
                "no compiled program exists for ReLU that does not follow another layer by itself"
            )
        if not isinstance(last, Affine | Norm | Pooling | Join):
            raise NotLoweredError(
                f"no compiled program exists for ReLU behind {type(last).__name__.lower()}; "
                "put ReLU before it"
            )
        self._change_last(replace(last, rectify=True))

    def _dropout(self, layer: DrawnDropout) -> None:
        result, (height, width, channels) = self.result, self.result.shape
        in_order = np.arange(prod(result.shape)).reshape(channels, height, width).transpose(1, 2, 0)
        entries = tuple((result.features if result.is_flat else in_order.reshape(-1)).tolist())
        self._add_stage(Dropout(result.shape, layer.rate, layer.number, entries))

    def _norm(self, layer: nn.GroupNorm) -> None:
        if self._is_rearranged:
            raise NotLoweredError("no compiled program exists for group normalisation of flattened pictures")
        weight, bias = (
            None if parameter is None else self._add(self._entries(parameter))
            for parameter in (layer.weight, layer.bias)
        )
        self._add_stage(Norm(self.result.shape, layer.num_groups, layer.eps, weight, bias))

    def _pooling(self, layer: nn.MaxPool2d) -> None:
        kernel, stride, padding = (pair(each) for each in (layer.kernel_size, layer.stride, layer.padding))
        if pair(layer.dilation) != (1, 1) or layer.ceil_mode or layer.return_indices:
            raise NotLoweredError("no compiled program exists for maximum pooling with options")
        last = self._last
        if (
            isinstance(last, Affine)
            and last.pool_stride is None
            and not self.result.is_flat
            and (kernel, padding) == ((2, 2), (0, 0))
        ):
            self._change_last(replace(last, pool_stride=stride))
            return
        self._pool(*self._windows(kernel, stride, padding), averages=False)

    def _averaging(self, layer: nn.AvgPool2d) -> None:
        if layer.ceil_mode:
            raise NotLoweredError("no compiled program exists for mean pooling with options")
        kernel, stride, padding = (pair(each) for each in (layer.kernel_size, layer.stride, layer.padding))
        divisor = layer.divisor_override or (kernel[0] * kernel[1] if layer.count_include_pad else 0)
        self._pool(*self._windows(kernel, stride, padding), averages=True, divisor=divisor)

    def _adaptive(self, layer: nn.AdaptiveAvgPool2d) -> None:
        shape = self.result.shape
        asked = layer.output_size if isinstance(layer.output_size, tuple) else (layer.output_size,) * 2
        rows, columns = (
            tuple((k * size // places, -(-(k + 1) * size // places)) for k in range(places))
            for size, places in zip(
                shape[:2], (a or s for a, s in zip(asked, shape, strict=False)), strict=True
            )
        )
        self._pool(rows, columns, averages=True)

    def _windows(self, kernel: Pair, stride: Pair, padding: Pair) -> Iterator[tuple[Pair, ...]]:
        """Yield the start and end of a kernel's windows in the picture, vertically and horizontally."""
        for size, wide, by, pad in zip(self.result.shape[:2], kernel, stride, padding, strict=True):
            begins = range(-pad, size + pad - wide + 1, by)
            yield tuple((max(begin, 0), min(begin + wide, size)) for begin in begins)

    def _pool(
        self, rows: tuple[Pair, ...], columns: tuple[Pair, ...], *, averages: bool, divisor: int = 0
    ) -> None:
        if self.result.is_flat:
            raise NotLoweredError("no compiled program exists for pooling of an input that is not a picture")
        self._add_stage(Pooling(self.result.shape, rows, columns, averages, divisor))

    def _flatten(self, layer: nn.Flatten) -> None:
        result, (height, width, channels) = self.result, self.result.shape
        if layer.start_dim != 1 or layer.end_dim not in (-1, 3 if not result.is_flat else 1):
            raise NotLoweredError("no compiled program exists for flattening of some dimensions")
        if result.is_flat:
            return
        size = height * width * channels
        features = np.arange(size)
        if result.stage != EXAMPLES:
            features = features.reshape(channels, height, width).transpose(1, 2, 0).reshape(-1)
        elif EXAMPLES in self._shared:
            raise NotLoweredError("no compiled program exists for pictures that are flattened in one branch")
        self.result = replace(result, shape=(1, 1, size), features=features, is_flat=True)
