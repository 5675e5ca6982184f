"""The loss for labels that are times to an event: discrete hazards, with one logit an interval."""

import torch
from torch.nn import functional


def discrete_hazard(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each record's negative log-likelihood in nats, from outputs (n, J) and targets (n, 2): (n,).

    With h_j = sigmoid(z_j), one that is censored after m intervals has - sum_(j<=m) log(1 - h_j), and one
    with its event in interval k has - sum_(j<k) log(1 - h_j) - log h_k: a binary cross-entropy of every
    interval in which it was at risk. Targets are positions and events as
    `gdpfed.learning.data.times_to_event` has them, where it stands who survived an interval. Sources: Singer
    and Willett, Journal of Educational Statistics 18, 1993; Gensheimer and Narasimhan, PeerJ 7, 2019, e6257.
    """
    place, event = targets[:, :1], targets[:, 1:]
    interval = torch.arange(outputs.shape[1], device=outputs.device, dtype=targets.dtype)
    last = (place.ceil() - 1).clamp(min=0)
    survived = torch.where(event > 0, last, (place + 0.5).floor())
    happened = ((interval == last) & (event > 0)).to(outputs.dtype)
    at_risk = (interval < survived).to(outputs.dtype) + happened
    losses = functional.binary_cross_entropy_with_logits(outputs, happened, reduction="none")
    return (at_risk * losses).sum(dim=1)
