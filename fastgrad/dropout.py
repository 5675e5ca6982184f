"""Dropout as compiled loops (numba), whose random choices follow from a key."""

from functools import partial

import numpy as np
import torch
from numba.extending import register_jitable
from numba.types import float32, float64, int64

from fastgrad.kernels import Integers, compiled
from fastgrad.layer import Call, Given, Layer, flat
from fastgrad.lowered import Dropout
from fastgrad.modules import mixed, offset_of, scale_of, stays, threshold_of
from fastgrad.vectors import Floats

_F, _I = float32[::1], int64[::1]

register_jitable(mixed)
register_jitable(stays)


@compiled(_F, _I, _I, int64, int64, float64, _F, _F)
def leave_out(
    values: Floats,
    drawn: Integers,
    entries: Integers,
    offset: int,
    threshold: int,
    scale: float,
    factors: Floats,
    out: Floats,
) -> None:
    """Multiply each value by the dropout's scale, or by 0 if it is dropped.

    Args:
        values: (records, entries).
        drawn: the key, and how many records came before.
        entries: which entry each is in the model's order.
        offset: of the layer, l g.
        threshold: what the bits of one that stays are not below.
        scale: of those that stay.
        factors: takes what each was multiplied by.
        out: of the shape of values.
    """
    base = mixed(drawn[0] + offset)
    size, kept = len(entries), np.float32(scale)
    for start in range(0, len(values), size):
        first = drawn[1] * size + start + 1
        for k in range(size):
            factor = kept if stays(base, first + entries[k], threshold) else np.float32(0.0)
            factors[start + k] = factor
            out[start + k] = factor * values[start + k]


class DropoutLayer(Layer):
    """Dropout as compiled loops (numba), for a fixed number of records.

    `stage`: the layer. `given`: what it is bound to.
    """

    def __init__(self, stage: Dropout, given: Given) -> None:
        inputs = given.inputs
        self.output, self.output_back = torch.empty_like(inputs), torch.empty_like(inputs)
        self._factors = torch.empty_like(inputs)
        self.forward = [
            partial(
                leave_out,
                flat(inputs),
                given.drawn,
                np.array(stage.entries, np.int64),
                offset_of(stage.number),
                threshold_of(stage.rate),
                scale_of(stage.rate),
                flat(self._factors),
                flat(self.output),
            )
        ]

    def backward(self, inputs_back: torch.Tensor | None) -> list[Call]:
        if inputs_back is None:
            return []
        return [partial(torch.mul, self.output_back, self._factors, out=inputs_back)]
