"""The indicator of adaptive clipping: a coordinate that says whether the update was clipped.

Source: Andrew et al., "Differentially Private Learning with Adaptive Clipping", arXiv:1905.03871,
Algorithm 1, with the indicator b - 1/2, so that whoever is absent counts for neither side.
"""

import torch


def with_indicator(updates: torch.Tensor, bounds: torch.Tensor, share: float) -> torch.Tensor:
    """Clip every update to sqrt(1 - rho^2) B_i and append rho B_i if it was within that, else - rho B_i.

    The rows of the result have norm at most B_i, so nothing clips them again. An update that is not finite
    becomes zero, and counts as clipped.

    Args:
        updates: Delta_i, shape (clients, d), float64.
        bounds: B_i, shape (clients, 1).
        share: rho.

    Returns:
        Shape (clients, d + 1), float64.
    """
    norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    most = bounds * (1 - share**2) ** 0.5
    factors = (most / norms).clamp(max=1.0).nan_to_num(nan=1.0)
    clipped = (updates * factors).masked_fill(~norms.isfinite(), 0.0)
    signs = torch.where(norms <= most, 1.0, -1.0)
    return torch.cat([clipped, share * bounds * signs], dim=1)
