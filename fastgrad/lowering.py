"""Read the layers of a model for a program, or say why there is no program for it.

Known are `nn.Sequential`s of plain convolutions of pictures, linear layers, group normalisation, pooling by
means or maxima, ReLU behind any of them, dropout, and flattening. ReLU, and maximum pooling of 2 x 2 without
padding, are one pass with the layer that they follow. A text may be read first, by an embedding and LSTM
layers up to the last position. In a program, pictures lie with their channels last, the entries of every
weight in the order in which patches meet them, and weights from state to gates transposed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.lowered import (
    LSTM,
    Affine,
    Dropout,
    EmbeddingLSTM,
    LoweredLayer,
    LoweredModel,
    Norm,
    Pair,
    Pooling,
    Shape,
)
from fastgrad.modules import DrawnDropout, LastPosition, LSTMLayer


class NotLoweredError(Exception):
    """There is no program for a model; the message says why."""


def lower(model: nn.Module, input_shape: tuple[int, ...]) -> LoweredModel:
    """Return a model's layers as a program takes them.

    Raises NotLoweredError: a layer, or an order of layers, that programs do not know.
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
        self._stages: list[LoweredLayer] = []
        self._parts: list[npt.NDArray[np.int64]] = []
        self._begins: dict[int, int] = {}
        self._size = 0
        for parameter in model.parameters():
            if not parameter.requires_grad:
                raise NotLoweredError("a frozen parameter")
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
        self._reading: EmbeddingLSTM | None = None
        self._is_text = False
        # Where the model has each of the features that a linear layer takes.
        self._features = np.arange(self._shape[2])

    def read(self, layer: nn.Module) -> None:
        """Read the next layer."""
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
        if read is None or (self._is_text and type(layer) not in (LSTMLayer, LastPosition)):
            raise NotLoweredError(f"a layer {type(layer).__name__}")
        read(layer)

    def result(self) -> LoweredModel:
        """Return the model that has been read.

        Raises NotLoweredError: no layer with weights, an output that is no row of numbers or in another
        order, or parameters that were not met just once.
        """
        if not (self._stages and self._parts and self._flat) or self._is_rearranged:
            raise NotLoweredError("a model that does not end with a row of numbers")
        order = np.concatenate(self._parts)
        if not np.array_equal(np.sort(order), np.arange(self._size)):
            raise NotLoweredError("a parameter that is used more than once, or never")
        return LoweredModel(tuple(self._stages), self._input_shape, order, self._reading)

    @property
    def _is_rearranged(self) -> bool:
        """Whether features are in another order than in the model."""
        return not np.array_equal(self._features, np.arange(self._shape[2]))

    def _embedding(self, layer: nn.Embedding) -> None:
        if self._stages or self._reading or len(self._input_shape) != 1:
            raise NotLoweredError("an embedding of what is no text")
        if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq:
            raise NotLoweredError("an embedding with options")
        table = self._add(self._entries(layer.weight))
        self._reading = EmbeddingLSTM(self._shape[2], layer.num_embeddings, layer.embedding_dim, table)
        self._is_text, self._shape = True, (1, 1, layer.embedding_dim)

    def _recurrence(self, layer: LSTMLayer) -> None:
        if {type(layer.input_map), type(layer.hidden_map)} != {nn.Linear}:
            raise NotLoweredError("an LSTM layer with maps of other kinds")
        if self._reading is None or not self._is_text or layer.input_map.in_features != self._shape[2]:
            raise NotLoweredError("an LSTM layer that does not follow an embedding")
        added = LSTM(
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
        stage = Affine(self._shape, kernel, stride, padding, outputs, weight, bias)
        self._stages.append(stage)
        self._shape, self._features = stage.output, np.arange(outputs)

    def _entries(self, parameter: torch.Tensor) -> npt.NDArray[np.int64]:
        """Return where the entries of a parameter stand in theta, in its shape."""
        begin = self._begins[id(parameter)]
        return np.arange(begin, begin + parameter.numel()).reshape(tuple(parameter.shape))

    def _add(self, entries: npt.NDArray[np.int64]) -> int:
        """Append parameters, and return where they begin."""
        begin = sum(len(part) for part in self._parts)
        self._parts.append(entries.reshape(-1))
        return begin

    def _relu(self, layer: nn.ReLU) -> None:
        del layer
        if not self._stages or self._shape != self._stages[-1].output:
            raise NotLoweredError("ReLU that does not follow another layer")
        last = self._stages[-1]
        if not isinstance(last, Affine | Norm | Pooling):
            raise NotLoweredError(f"ReLU behind {type(last).__name__.lower()}, and not before it")
        self._stages[-1] = replace(last, rectify=True)

    def _dropout(self, layer: DrawnDropout) -> None:
        height, width, channels = self._shape
        in_order = np.arange(prod(self._shape)).reshape(channels, height, width).transpose(1, 2, 0)
        entries = tuple((self._features if self._flat else in_order.reshape(-1)).tolist())
        self._stages.append(Dropout(self._shape, layer.rate, layer.number, entries))

    def _norm(self, layer: nn.GroupNorm) -> None:
        if self._is_rearranged:
            raise NotLoweredError("group normalisation of flattened pictures")
        weight, bias = (
            None if parameter is None else self._add(self._entries(parameter))
            for parameter in (layer.weight, layer.bias)
        )
        self._stages.append(Norm(self._shape, layer.num_groups, layer.eps, weight, bias))

    def _pooling(self, layer: nn.MaxPool2d) -> None:
        kernel, stride, padding = (_pair(each) for each in (layer.kernel_size, layer.stride, layer.padding))
        if _pair(layer.dilation) != (1, 1) or layer.ceil_mode or layer.return_indices:
            raise NotLoweredError("maximum pooling with options")
        last = self._stages[-1] if self._stages else None
        if (
            isinstance(last, Affine)
            and last.pool_stride is None
            and not self._flat
            and (kernel, padding) == ((2, 2), (0, 0))
        ):
            self._stages[-1] = replace(last, pool_stride=stride)
            self._shape = self._stages[-1].output
            return
        self._pool(*self._windows(kernel, stride, padding), averages=False)

    def _averaging(self, layer: nn.AvgPool2d) -> None:
        if layer.ceil_mode:
            raise NotLoweredError("mean pooling with options")
        kernel, stride, padding = (_pair(each) for each in (layer.kernel_size, layer.stride, layer.padding))
        divisor = layer.divisor_override or (kernel[0] * kernel[1] if layer.count_include_pad else 0)
        self._pool(*self._windows(kernel, stride, padding), averages=True, divisor=divisor)

    def _adaptive(self, layer: nn.AdaptiveAvgPool2d) -> None:
        asked = layer.output_size if isinstance(layer.output_size, tuple) else (layer.output_size,) * 2
        rows, columns = (
            tuple((k * size // places, -(-(k + 1) * size // places)) for k in range(places))
            for size, places in zip(
                self._shape[:2], (a or s for a, s in zip(asked, self._shape, strict=False)), strict=True
            )
        )
        self._pool(rows, columns, averages=True)

    def _windows(self, kernel: Pair, stride: Pair, padding: Pair) -> Iterator[tuple[Pair, ...]]:
        """Return where windows begin and end in the picture, down and right."""
        for size, wide, by, pad in zip(self._shape[:2], kernel, stride, padding, strict=True):
            begins = range(-pad, size + pad - wide + 1, by)
            yield tuple((max(begin, 0), min(begin + wide, size)) for begin in begins)

    def _pool(
        self, rows: tuple[Pair, ...], columns: tuple[Pair, ...], *, averages: bool, divisor: int = 0
    ) -> None:
        if self._flat:
            raise NotLoweredError("pooling of what is no picture")
        self._stages.append(Pooling(self._shape, rows, columns, averages, divisor))
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


# Smaller models gain nothing unless they read a text step by step, and numba takes a while to load.
LEAST_PARAMETERS = 10_000


class UncompiledError(NotLoweredError):
    """numba cannot compile the loops on this machine."""


def fitted(
    model: nn.Module, input_shape: tuple[int, ...], device: torch.device, *, records: bool = False
) -> LoweredModel:
    """Return a model's layers for a program, with its loops compiled.

    `model`, `input_shape`, `device`: what is to be trained, and where. `records`: whether gradients of single
    records are asked for.

    Raises:
        NotLoweredError: a device, a size or a layer that programs are not for.
        UncompiledError: numba is missing or does not work.
    """
    if device.type != "cpu":
        raise NotLoweredError("programs are for CPUs")
    lowered = lower(model, input_shape)
    if lowered.reading is not None and records:
        raise NotLoweredError("gradients of single records of a text")
    if lowered.draws and records:
        raise NotLoweredError("dropout in gradients of single records")
    if lowered.reading is None and len(lowered.order) < LEAST_PARAMETERS:
        raise NotLoweredError(f"fewer than {LEAST_PARAMETERS:,} parameters")
    _compile(lowered)
    return lowered


def _compile(lowered: LoweredModel) -> None:
    """Load the kernels that a model needs: from the cache on the disk, or compiled now."""
    needed = ["fastgrad.kernels"]
    needed += ["fastgrad.embedding_lstm"] if lowered.reading is not None else []
    needed += [stage.compiled.partition(":")[0] for stage in lowered.stages]
    try:
        from numba import config
        from numba.core.errors import NumbaError
    except (ImportError, OSError) as error:
        raise UncompiledError(f"numba cannot be loaded: {_line(error)}") from None
    if config.DISABLE_JIT:
        raise UncompiledError("numba is switched off by NUMBA_DISABLE_JIT")
    try:
        for module in needed:
            import_module(module)
    except (NumbaError, ImportError, OSError, RuntimeError) as error:
        raise UncompiledError(f"numba cannot compile: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:100]
