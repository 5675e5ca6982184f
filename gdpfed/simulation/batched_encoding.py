"""Clipping and rounding of many updates at once, with the guarantee of ``Encoding.encode`` for each."""

import math

import torch

from secagg import Encoding


def clipped_steps(updates: torch.Tensor, encoding: Encoding) -> tuple[torch.Tensor, torch.Tensor]:
    """Clip every update to ``clip_bound`` and round it to the grid, as a client does with its own.

    The factor is min(1, clip_bound / ||Delta_i||); an update that is not finite becomes zero.

    Args:
        updates: shape (clients, d), float64; overwritten.

    Returns:
        Integer steps, shape (clients, d), int64, and which clients can send theirs, shape (clients,):
        |z_i| <= C / grid is checked in integers, a coordinate that would wrap the sum is refused.
    """
    norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    updates.masked_fill_(~norms.isfinite(), 0.0)
    if not math.isinf(encoding.clipping_norm):
        updates *= (encoding.clip_bound / norms).clamp(max=1.0).nan_to_num(nan=1.0)
    steps = updates.div_(encoding.grid).round_()
    fits = steps.abs().amax(dim=1) <= encoding.coordinate_limit
    steps = steps.masked_fill_(~fits[:, None], 0.0).long()
    if not math.isinf(encoding.clipping_norm):
        fits &= (steps * steps).sum(dim=1) <= encoding.norm_limit_squared
    return steps, fits
