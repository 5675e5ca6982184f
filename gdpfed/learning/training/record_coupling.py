"""Refuses models and losses in which a record's loss depends on the other records of its batch.

Clipping bounds what a record adds to a batch's sum of gradients. Where a record also moves the gradients of
others, as through the statistics of a batch, that bound says nothing.
"""

import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.errors import LearningError

REMEDY = "use a layer that looks at one record alone, such as GroupNorm"
TRIALS = 3


def refuse_coupled_records(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> None:
    """Refuse a model in which one record of a batch moves the loss of another.

    Layers that are known to couple records are found by their type; others by trying: one record of the
    batch is replaced, and the losses of all others have to stay as they are.

    Args:
        model: in whichever mode; it is tried in training mode, and left as it was.
        loss: of shape (n,), one figure a record.
        x, y: some records to try with, at least two; they need not be anybody's.

    Raises:
        LearningError: names the layer, or says that the records are coupled.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise LearningError(
                f"the model's layer {name} ({type(layer).__name__}) normalises by the statistics of a batch, "
                f"so a record moves the gradients of others and clipping bounds nothing: {REMEDY}"
            )
    was_training = model.training
    model.train()
    # Each time the same draws, so that a layer that draws, such as dropout, draws the same for all.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        expected = _losses(model, loss, x, y)
        if expected.shape != y.shape[:1]:
            raise LearningError(
                f"the loss has shape {tuple(expected.shape)} for {len(y)} records; it must be one figure for "
                "each record"
            )
        moved = any(
            not torch.allclose(_losses(model, loss, *other)[1:], expected[1:], rtol=1e-4, atol=1e-6)
            for other in _with_other_first_records(x, y)
        )
    model.train(was_training)
    if moved:
        raise LearningError(
            "the model or its loss couples records: replacing one record of a batch changed the loss of "
            f"another, so clipping bounds nothing; {REMEDY}"
        )


def _losses(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return loss(model(x), y)


def _with_other_first_records(x: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batch with a first record that is another, and farther and farther off where it is of floats."""
    batches = []
    for trial in range(1, TRIALS + 1):
        other_x, other_y = x.clone(), y.clone()
        other_x[0] = x[trial % len(x)] * (10.0**trial if x.is_floating_point() else 1)
        other_y[0] = y[trial % len(y)]
        batches.append((other_x, other_y))
    return batches
