"""Local training at a client, and clipping of the update (the trained model minus the initial model)."""

from math import isfinite

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.modules import Loss, cross_entropy
from gdpfed.learning.data import Split
from gdpfed.learning.models import assign, trainable
from gdpfed.learning.models.build import DropoutKeys, draw_keys
from gdpfed.learning.training.optimizers import Descent, LocalTraining, difference


def local_update(
    model: nn.Module,
    theta: npt.NDArray[np.float32],
    data: Split,
    training: LocalTraining,
    *,
    rng: np.random.Generator,
    device: torch.device,
    loss: Loss = cross_entropy,
    added: torch.Tensor | None = None,
) -> torch.Tensor:
    """Train tau local steps from the global parameters theta; return the client's update theta_i - theta.

    Args:
        model: the architecture; its parameters are overwritten.
        theta: float32[d], the global parameters.
        data: the client's own examples; without examples, the steps follow only ``added``, if there is one.
        rng: draws the batches, and after them the keys of dropout.
        loss: returns one loss for each record; a step follows the gradient of their mean.
        added: a vector that is added to every gradient, float32[d] on ``device``; None for no such vector.

    Returns:
        float64[d], the update, on ``device``; it may hold NaN where training diverged.
    """
    start = torch.from_numpy(theta.copy()).to(device)
    ours = start.clone()
    descent = Descent(ours, training, added)
    if len(data) == 0:
        for _ in range(training.local_steps if added is not None else 0):
            descent.step(torch.zeros_like(ours))
        return difference(ours, start)
    model.to(device).train()
    assign(model, ours)  # As views: the steps change the model.
    x, y = torch.from_numpy(data.x).to(device), torch.from_numpy(data.y).to(device)
    parts = list(trainable(model).values())
    batches, dropout = draw_batches(len(data), training, rng), DropoutKeys(model)
    keys = draw_keys(training.local_steps, rng).tolist() if dropout else [0] * training.local_steps
    for batch, key in zip(map(torch.from_numpy, batches), keys, strict=True):
        dropout.set(key)
        gradients = torch.autograd.grad(loss(model(x[batch]), y[batch]).mean(), parts, materialize_grads=True)
        descent.step(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return difference(ours, start)


def draw_batches(
    num_examples: int, training: LocalTraining, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw tau batches from repeated passes over shuffled data; return positions, int64[tau, batch size]."""
    size = min(training.batch_size, num_examples)
    passes = -(-training.local_steps * size // num_examples)
    # One call draws the same permutations as one call for each pass would.
    orders = rng.permuted(np.tile(np.arange(num_examples), (passes, 1)), axis=1)
    return orders.reshape(-1)[: training.local_steps * size].reshape(training.local_steps, size)


def clip(update: torch.Tensor, clipping_norm: float) -> torch.Tensor:
    """Scale an update to L2 norm at most ``clipping_norm``: the factor is min(1, C / ||Delta||).

    A zero update stays zero. An update that is not finite becomes zero, so that a client whose training
    diverged neither makes the sum useless nor can be recognised.

    Args:
        update: float64[d].
        clipping_norm: C > 0; infinite leaves a finite update as it is.

    Returns:
        float64[d].
    """
    norm = float(torch.linalg.vector_norm(update))
    if not isfinite(norm):
        return torch.zeros_like(update)
    return update * (clipping_norm / norm) if norm > clipping_norm else update


def with_indicator(updates: torch.Tensor, bounds: torch.Tensor, share: float) -> torch.Tensor:
    """Clip each update, and append a coordinate whose sign says whether clipping changed the update.

    The update is clipped to norm sqrt(1 - rho^2) B_i. The last coordinate is rho B_i, or -rho B_i if clipping
    changed the update. So each row of the result has norm at most B_i, and later clipping does not change it.
    An update that is not finite becomes zero, and counts as clipped.

    Source: Andrew et al., "Differentially Private Learning with Adaptive Clipping", arXiv:1905.03871,
    Algorithm 1, with b - 1/2 in place of the indicator b, so that an absent client counts for neither side.
    `updates`: Delta_i, shape (clients, d), float64. `bounds`: B_i, shape (clients, 1). `share`: rho. Returns
    shape (clients, d + 1), float64.
    """
    norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    most = bounds * (1 - share**2) ** 0.5
    factors = (most / norms).clamp(max=1.0).nan_to_num(nan=1.0)
    clipped = (updates * factors).masked_fill(~norms.isfinite(), 0.0)
    signs = torch.where(norms <= most, 1.0, -1.0)
    return torch.cat([clipped, share * bounds * signs], dim=1)
