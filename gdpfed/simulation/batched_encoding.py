"""Clipping and rounding of many updates at once, with the guarantee of ``Encoding.encode`` for each."""

import math
from collections.abc import Sequence

import torch

from secagg import Encoding


def clipped_steps(updates: torch.Tensor, encodings: Sequence[Encoding]) -> tuple[torch.Tensor, torch.Tensor]:
    """Clip every update to its ``clip_bound`` and round it to the grid, as a client does with its own.

    The factor is min(1, clip_bound_i / ||Delta_i||); an update that is not finite becomes zero.

    Args:
        updates: shape (clients, d), float64; overwritten.
        encodings: one a client, all with the same grid.

    Returns:
        Integer steps, shape (clients, d), int64, and which clients can send theirs, shape (clients,):
        |z_i| <= C_i / grid is checked in integers, a coordinate that would wrap the sum is refused.
    """
    grid, limit = encodings[0].grid, encodings[0].coordinate_limit
    is_clipped = not math.isinf(encodings[0].clipping_norm)
    norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    updates.masked_fill_(~norms.isfinite(), 0.0)
    if is_clipped:
        bounds = norms.new_tensor([[each.clip_bound] for each in encodings])
        updates *= (bounds / norms).clamp(max=1.0).nan_to_num(nan=1.0)
    steps = updates.div_(grid).round_()
    fits = steps.abs().amax(dim=1) <= limit
    integers = steps.masked_fill_(~fits[:, None], 0.0).long()
    if is_clipped:
        most = integers.new_tensor([each.norm_limit_squared for each in encodings])
        fits &= (integers * integers).sum(dim=1) <= most
    return integers, fits
