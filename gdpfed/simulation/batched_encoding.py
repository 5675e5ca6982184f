"""Clipping and rounding of many updates at once, with the guarantee of ``Encoding.encode`` for each."""

import math
from collections.abc import Sequence

import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.learning.training.local_update import with_indicator
from gdpfed.simulation.engine import Cohort
from secagg import Encoding


def contributions_steps(
    updates: torch.Tensor, order: TrainingOrder, cohort: Cohort, clients: Sequence[int]
) -> torch.Tensor:
    """Weigh, clip and round the updates of some of a cohort's clients, shape (clients, d); overwritten."""
    if cohort.parts:
        updates *= updates.new_tensor(cohort.weights(clients))[:, None]
    if order.norm_factor != 1.0:
        updates /= order.norm_factor
    encodings = cohort.encodings(clients)
    if order.indicator_share:
        bounds = updates.new_tensor([[each.clip_bound] for each in encodings])
        updates = with_indicator(updates, bounds, order.indicator_share)
    return clipped_steps(updates, encodings)


def clipped_steps(updates: torch.Tensor, encodings: Sequence[Encoding]) -> torch.Tensor:
    """Clip every update to its ``clip_bound`` and round it to the grid, as a client does with its own.

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
    updates.masked_fill_(~norms.isfinite(), 0.0)
    if math.isinf(encodings[0].clipping_norm):
        return updates.div_(grid).round_().clamp_(-limit, limit).long()
    bounds = norms.new_tensor([[each.clip_bound] for each in encodings])
    updates *= (bounds / norms).clamp(max=1.0).nan_to_num(nan=1.0)
    steps = updates.div_(grid).round_()
    steps.masked_fill_((steps.abs().amax(dim=1) > limit)[:, None], 0.0)
    integers = steps.long()
    most = integers.new_tensor([each.norm_limit_squared for each in encodings])
    return integers.masked_fill_(((integers * integers).sum(dim=1) > most)[:, None], 0)
