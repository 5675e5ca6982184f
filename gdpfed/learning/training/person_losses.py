"""A model and a loss of rows, applied to persons with several: see `gdpfed.learning.data.persons`."""

import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.learning.data.persons import NO_ROW


class PersonModel(nn.Module):
    """A model of rows, applied to persons: (N, R, ...) to (N, R, outputs)."""

    def __init__(self, rows: nn.Module) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the model to every row."""
        outputs: torch.Tensor = self.rows(x.flatten(0, 1))
        return outputs.reshape(*x.shape[:2], *outputs.shape[1:])


def person_loss(loss: Loss) -> Loss:
    """Return the loss of persons: the sum over their rows, outputs (N, R, k) and labels (N, R) to (N,)."""

    def summed(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        there = ~y.isnan() if y.is_floating_point() else y != NO_ROW
        labels = y.nan_to_num() if y.is_floating_point() else y.clamp(min=0)
        rows = loss(outputs.flatten(0, 1), labels.flatten()).reshape(y.shape)
        return torch.where(there, rows, 0.0).sum(dim=1)

    return summed
