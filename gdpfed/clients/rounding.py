"""Quantises clients' updates to integers on the device where they were trained."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from secagg import Encoding, EncodingError

FLOATS_ARE_OFF = 1e-6
"""By which share a norm or its square in floats may differ from that in integers, with much to spare."""


def clipped_steps(updates: torch.Tensor, encodings: Sequence[Encoding]) -> torch.Tensor:
    """Clip each client's update and quantise it to the integers of a secure sum.

    The result is the same as on a client's node.

    The factor is min(1, clip_bound_i / ||Delta_i||); an update that is not finite becomes zero, as does one
    whose rounded norm is above C_i. Without clipping, a coordinate beyond the range of the sum is put on its
    edge. No client leaves a sum for what its data is.

    Args:
        updates: float64[clients, d]; overwritten.
        encodings: one a client, all with the same grid.

    Returns:
        int64[clients, d], integer steps with |z_i| <= C_i / grid, checked in integers.
    """
    grid, limit = encodings[0].grid, encodings[0].coordinate_limit
    norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    if not bool(norms.sum().isfinite()):
        wrong = ~norms.isfinite()
        updates.masked_fill_(wrong, 0)
        norms.masked_fill_(wrong, 0)
    if math.isinf(encodings[0].clipping_norm):
        return updates.div_(grid).round_().clamp_(-limit, limit).long()
    bounds = norms.new_tensor([encoding.clip_bound for encoding in encodings])[:, None]
    updates *= bounds.div_(norms).clamp_(max=1.0)
    steps = updates.div_(grid).round_()
    lengths = torch.linalg.vector_norm(steps, dim=1).div_(1 - FLOATS_ARE_OFF)
    longest = float(lengths.max())
    # No coordinate is longer than its row, so only where floats leave it open are coordinates looked at.
    if not longest <= limit:
        lowest, highest = torch.aminmax(steps, dim=1, keepdim=True)
        steps.masked_fill_(torch.maximum(-lowest, highest) > limit, 0)
    integers = steps.long()
    squares = [encoding.norm_limit_squared for encoding in encodings]
    # In the same way, only where floats leave it open is the norm computed in integers.
    if not longest**2 <= min(squares):
        most = integers.new_tensor(squares)
        if not bool((lengths.square() <= most).all()):
            integers.masked_fill_(((integers * integers).sum(dim=1) > most)[:, None], 0)
    return integers


EDGE = 1e-6
"""In steps: far more than a draw differs between devices, which is 1e-15 of a million steps."""


def noise_as_steps(
    noise: torch.Tensor, encoding: Encoding, exactly: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Quantise a client's noise to integers on a device, with the same result as on a CPU.

    Draws that lie nearer than `EDGE` to the middle between two steps are computed again by the CPU, since
    logarithm, sine and cosine of a device may differ in the last places.

    Args:
        noise: float64[d], of a device; overwritten.
        encoding: of the sum.
        exactly: the noise at some places, int64[k], as a CPU computes it: float64[k].

    Returns:
        int64[d], on the device.

    Raises EncodingError: NaN or infinity, or a value beyond `noise_limit` steps.
    """
    scaled = noise.div_(encoding.grid)
    near = ((scaled - scaled.floor()).sub_(0.5).abs_() < EDGE).nonzero().view(-1)
    steps = scaled.round_()
    if len(near):
        steps[near] = exactly(near).div_(encoding.grid).round_().to(steps.device)
    largest = float(steps.abs().max())
    if not largest <= encoding.noise_limit:
        raise EncodingError(
            f"noise of {largest:.9g} steps is outside +-{encoding.noise_limit}: the sum needs a "
            "wider limit or less noise"
        )
    return steps.long()


def on_host(values: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array on the host; a GPU's tensor is copied through page-locked memory."""
    if not values.is_cuda:
        return values.cpu().numpy()
    here = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    here.copy_(values)
    return here.numpy()
