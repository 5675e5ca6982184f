"""Mean and maximum pooling with windows of any size, and ReLU if one follows, as compiled loops (numba).

Windows are given by the rows and the columns that they begin and end at, so that padding and windows of
several sizes (adaptive pooling) are no cases of their own.
"""

from functools import partial

import numpy as np
import torch
from numba.types import UniTuple, float32, int32, int64

from fastgrad import kernels
from fastgrad.kernels import Integers, Whiches, compiled
from fastgrad.layer import Call, Given, Layer, flat
from fastgrad.lowered import Pooling
from fastgrad.vectors import Floats

PictureGeometry = tuple[int, int, int, int]
"""Records; height, width and channels of a picture."""

_F, _W, _I, _GEOMETRY = float32[::1], int32[::1], int64[:, ::1], UniTuple(int64, 4)
_ZERO = np.float32(0.0)


@compiled(_F, _GEOMETRY, _I, _I, int64, _F)
def average(
    values: Floats, geometry: PictureGeometry, rows: Integers, columns: Integers, divisor: int, out: Floats
) -> None:
    """Compute each window's mean: its sum divided by ``divisor`` or, if that is 0, by the window's size.

    `values`: (count, height, width, channels). `rows`, `columns`: where windows begin and end, (down, 2) and
    (right, 2). `out`: (count, down, right, channels).
    """
    count, height, width, channels = geometry
    to = 0
    for n in range(count):
        for i in range(len(rows)):
            for j in range(len(columns)):
                target = out[to : to + channels]
                to += channels
                target[:] = _ZERO
                for row in range(rows[i, 0], rows[i, 1]):
                    for column in range(columns[j, 0], columns[j, 1]):
                        start = ((n * height + row) * width + column) * channels
                        place = values[start : start + channels]
                        for c in range(channels):
                            target[c] += place[c]
                size = (rows[i, 1] - rows[i, 0]) * (columns[j, 1] - columns[j, 0])
                share = np.float32(1.0 / (divisor if divisor != 0 else size))
                for c in range(channels):
                    target[c] *= share


@compiled(_F, _GEOMETRY, _I, _I, int64, _F)
def average_back(
    gradient: Floats, geometry: PictureGeometry, rows: Integers, columns: Integers, divisor: int, out: Floats
) -> None:
    """Write the gradient with respect to the input of mean pooling to ``out``.

    Shapes are as in `average`, with inputs and outputs exchanged.
    """
    count, height, width, channels = geometry
    out[:] = _ZERO
    to = 0
    for n in range(count):
        for i in range(len(rows)):
            for j in range(len(columns)):
                given = gradient[to : to + channels]
                to += channels
                size = (rows[i, 1] - rows[i, 0]) * (columns[j, 1] - columns[j, 0])
                share = np.float32(1.0 / (divisor if divisor != 0 else size))
                for row in range(rows[i, 0], rows[i, 1]):
                    for column in range(columns[j, 0], columns[j, 1]):
                        start = ((n * height + row) * width + column) * channels
                        place = out[start : start + channels]
                        for c in range(channels):
                            place[c] += share * given[c]


@compiled(_F, _GEOMETRY, _I, _I, _F, _W)
def largest(
    values: Floats, geometry: PictureGeometry, rows: Integers, columns: Integers, out: Floats, which: Whiches
) -> None:
    """Find the largest value and its position in each window, separately for each channel.

    Shapes are as in `average`.

    `which`: takes the place of the first of the largest, row * width + column; of the shape of out.
    """
    count, height, width, channels = geometry
    to = 0
    for n in range(count):
        for i in range(len(rows)):
            for j in range(len(columns)):
                target, chosen = out[to : to + channels], which[to : to + channels]
                to += channels
                first = rows[i, 0] * width + columns[j, 0]
                for c in range(channels):
                    target[c] = values[(n * height * width + first) * channels + c]
                    chosen[c] = np.int32(first)
                for row in range(rows[i, 0], rows[i, 1]):
                    for column in range(columns[j, 0], columns[j, 1]):
                        number = np.int32(row * width + column)
                        start = (n * height * width + row * width + column) * channels
                        place = values[start : start + channels]
                        for c in range(channels):
                            value, most = place[c], target[c]
                            larger = value > most or value != value
                            target[c] = value if larger else most
                            chosen[c] = number if larger else chosen[c]


@compiled(_F, _W, _GEOMETRY, _F)
def largest_back(gradient: Floats, which: Whiches, geometry: PictureGeometry, out: Floats) -> None:
    """Write the gradient with respect to the input of maximum pooling to ``out``."""
    count, height, width, channels = geometry
    out[:] = _ZERO
    size = 0 if count == 0 else len(gradient) // count
    for n in range(count):
        picture = out[n * height * width * channels : (n + 1) * height * width * channels]
        for start in range(n * size, (n + 1) * size, channels):
            for c in range(channels):
                picture[which[start + c] * channels + c] += gradient[start + c]


class PoolingLayer(Layer):
    """Mean or maximum pooling as compiled loops (numba), for a fixed number of records.

    `stage`: the layer. `given`: what it is bound to.
    """

    def __init__(self, stage: Pooling, given: Given) -> None:
        inputs = given.inputs
        count, height, width, channels = inputs.shape
        self._stage, self._geometry = stage, (count, height, width, channels)
        self.output = torch.empty(count, *stage.output)
        self.output_back = torch.empty_like(self.output)
        self._rows, self._columns = (np.array(each, np.int64) for each in (stage.rows, stage.columns))
        self._which = np.empty(0 if stage.averages else self.output.numel(), np.int32)
        windows, out = (self._geometry, self._rows, self._columns), flat(self.output)
        self.forward: list[Call] = []
        if stage.averages:
            self.forward.append(partial(average, flat(inputs), *windows, stage.divisor, out))
        else:
            self.forward.append(partial(largest, flat(inputs), *windows, out, self._which))
        if stage.rectify:
            self.forward.append(partial(kernels.activate, out, channels, flat(torch.zeros(channels)), True))

    def backward(self, inputs_back: torch.Tensor | None) -> list[Call]:
        calls = list[Call]()
        if inputs_back is None:
            return calls
        stage, given, back = self._stage, flat(self.output_back), flat(inputs_back)
        if stage.rectify:
            count, channels = len(self.output), stage.shape[2]
            unasked = flat(torch.empty(channels))
            calls.append(
                partial(kernels.activate_back, flat(self.output), given, count, channels, True, 1, unasked)
            )
        if stage.averages:
            windows = self._geometry, self._rows, self._columns
            calls.append(partial(average_back, given, *windows, stage.divisor, back))
        else:
            calls.append(partial(largest_back, given, self._which, self._geometry, back))
        return calls
