"""Group normalisation as compiled loops (numba), with ReLU if one follows.

Of a record and a group with mean mu and variance v: y = gamma xhat + beta, where xhat = s (x - mu) and
s = 1 / sqrt(v + eps). With g, the gradient by y, the gradients are sum g xhat by gamma and sum g by beta,
over the places of a channel, and s (g gamma - mean(g gamma) - xhat mean(g gamma xhat)) by x, with means over
the group. Sums are in float64.
"""

from functools import partial

import numpy as np
import torch
from numba.types import UniTuple, float32, float64, int64

from fastgrad.kernels import Doubles, compiled
from fastgrad.layer import Call, Given, Layer, Rows, flat
from fastgrad.lowered import Norm
from fastgrad.vectors import Floats

NormGeometry = tuple[int, int, int, int, int]
"""Records, places, channels, groups of channels; 1 where ReLU follows, else 0."""
Pair = tuple[Floats, Floats]

_F, _D, _GEOMETRY = float32[::1], float64[::1], UniTuple(int64, 5)
_PAIR = UniTuple(_F, 2)
_ZERO = np.float32(0.0)
_LOWEST = np.float32(-np.inf)


@compiled(_D, int64, float64, _F)
def _by_group(sums: Doubles, wide: int, entries: float, out: Floats) -> None:
    """Divide the sum over each group of channels by `entries`, and write this mean for every channel."""
    for first in range(0, len(sums), wide):
        total = 0.0
        for c in range(first, first + wide):
            total += sums[c]
        for c in range(first, first + wide):
            out[c] = np.float32(total / entries)


@compiled(_F, _GEOMETRY, float64, _PAIR, _PAIR, _F)
def normalise(
    values: Floats, geometry: NormGeometry, eps: float, affine: Pair, moments: Pair, out: Floats
) -> None:
    """Apply group normalisation, gamma xhat + beta with normalised values xhat, and ReLU if one follows.

    Args:
        values: (count, places, channels).
        eps: is added to the variance.
        affine: gamma and beta, (channels,) each.
        moments: take mu and s of a channel's group, (count, channels) each.
        out: of the shape of values.
    """
    count, places, channels, groups, rectify = geometry
    (weight, bias), (means, scales) = affine, moments
    wide, size = channels // groups, places * channels
    entries = float64(places * wide)
    sums = np.empty(channels, np.float64)
    least = _ZERO if rectify else _LOWEST
    for n in range(count):
        picture, target = values[n * size : (n + 1) * size], out[n * size : (n + 1) * size]
        mean, scale = means[n * channels : (n + 1) * channels], scales[n * channels : (n + 1) * channels]
        sums[:] = 0.0
        for start in range(0, size, channels):
            place = picture[start : start + channels]
            for c in range(channels):
                sums[c] += float64(place[c])
        _by_group(sums, wide, entries, mean)
        sums[:] = 0.0
        for start in range(0, size, channels):
            place = picture[start : start + channels]
            for c in range(channels):
                off = float64(place[c] - mean[c])
                sums[c] += off * off
        _by_group(sums, wide, entries, scale)
        for c in range(channels):
            scale[c] = np.float32(1.0 / np.sqrt(float64(scale[c]) + eps))
        for start in range(0, size, channels):
            place, normal = picture[start : start + channels], target[start : start + channels]
            for c in range(channels):
                value = (place[c] - mean[c]) * scale[c] * weight[c] + bias[c]
                normal[c] = least if value < least else value


@compiled(_F, _F, _F, _PAIR, float32, _D, _D)
def _by_parameters(
    picture: Floats,
    reached: Floats,
    given: Floats,
    moments: Pair,
    least: np.float32,
    by_weight: Doubles,
    by_bias: Doubles,
) -> None:
    """Set the gradients `given` to 0 where ReLU returned 0; then compute the gradients of gamma and beta."""
    (mean, scale), channels = moments, len(by_weight)
    by_weight[:] = 0.0
    by_bias[:] = 0.0
    for start in range(0, len(picture), channels):
        end = start + channels
        place, after, back = picture[start:end], reached[start:end], given[start:end]
        for c in range(channels):
            value = _ZERO if after[c] <= least else back[c]
            back[c] = value
            by_bias[c] += float64(value)
            by_weight[c] += float64(value) * float64((place[c] - mean[c]) * scale[c])


@compiled(_F, _PAIR, _F, _F, _GEOMETRY, _F, _PAIR, _F)
def normalise_back(
    values: Floats,
    moments: Pair,
    normalised: Floats,
    gradient: Floats,
    geometry: NormGeometry,
    weight: Floats,
    sums: Pair,
    out: Floats,
) -> None:
    """Compute the loss's gradients with respect to gamma, beta and the input of group normalisation.

    Shapes are as in `normalise`.

    `normalised`: what `normalise` left. `gradient`: by it; overwritten where ReLU follows. `sums`: for the
    gradients by gamma and beta: of all records together, (channels,) each, or of each record, (count,
    channels). `out`: for the gradient by the input; of no entries where nobody asks for it.
    """
    count, places, channels, groups, rectify = geometry
    (means, scales), (weight_sums, bias_sums) = moments, sums
    wide, size = channels // groups, places * channels
    entries = float64(places * wide)
    by_weight, by_bias = np.empty(channels, np.float64), np.empty(channels, np.float64)
    shift, slope = np.empty(channels, np.float32), np.empty(channels, np.float32)
    least = _ZERO if rectify else _LOWEST
    weight_sums[:] = _ZERO
    bias_sums[:] = _ZERO
    for n in range(count):
        picture, given = values[n * size : (n + 1) * size], gradient[n * size : (n + 1) * size]
        mean, scale = means[n * channels : (n + 1) * channels], scales[n * channels : (n + 1) * channels]
        reached = normalised[n * size : (n + 1) * size]
        _by_parameters(picture, reached, given, (mean, scale), least, by_weight, by_bias)
        start = (n if len(weight_sums) > channels else 0) * channels
        for c in range(channels):
            weight_sums[start + c] += np.float32(by_weight[c])
            bias_sums[start + c] += np.float32(by_bias[c])
        if len(out) == 0:
            continue
        for c in range(channels):
            by_weight[c] *= float64(weight[c])
            by_bias[c] *= float64(weight[c])
        _by_group(by_bias, wide, entries, shift)
        _by_group(by_weight, wide, entries, slope)
        for start in range(n * size, (n + 1) * size, channels):
            end = start + channels
            place, back, by_place = values[start:end], gradient[start:end], out[start:end]
            for c in range(channels):
                normal = (place[c] - mean[c]) * scale[c]
                by_place[c] = scale[c] * (back[c] * weight[c] - shift[c] - normal * slope[c])


class NormLayer(Layer):
    """Group normalisation as compiled loops (numba), for a fixed number of records.

    `stage`: the layer. `given`: what it is bound to.
    """

    def __init__(self, stage: Norm, given: Given) -> None:
        inputs, parameters, gradient = given.inputs, given.parameters, given.gradient
        count, height, width, channels = inputs.shape
        geometry = (count, height * width, channels, stage.groups, int(stage.rectify))
        self.output, self.output_back = torch.empty_like(inputs), torch.empty_like(inputs)
        # Without parameters, gamma is 1 and beta 0, and nobody asks for their gradients.
        weight, bias = torch.ones(channels), torch.zeros(channels)
        apart = torch.empty(2, count, channels)
        sums = list(apart)
        if stage.weight is not None and stage.bias is not None:
            places = [slice(begin, begin + channels) for begin in (stage.weight, stage.bias)]
            weight, bias = (parameters[place] for place in places)
            if gradient is None:
                self.parts = [Rows(place, rows) for place, rows in zip(places, apart, strict=True)]
            else:
                sums = [gradient[place].view(1, -1) for place in places]
        moments = flat(torch.empty(count, channels)), flat(torch.empty(count, channels))
        out = flat(self.output)
        self.forward = [
            partial(normalise, flat(inputs), geometry, stage.eps, (flat(weight), flat(bias)), moments, out)
        ]
        both = flat(sums[0]), flat(sums[1])
        self._back = partial(
            normalise_back, flat(inputs), moments, out, flat(self.output_back), geometry, flat(weight), both
        )

    def backward(self, inputs_back: torch.Tensor | None) -> list[Call]:
        return [partial(self._back, flat(torch.empty(0) if inputs_back is None else inputs_back))]
