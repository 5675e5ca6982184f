"""The model of a statistics run, with one parameter for each cell and no useful predictions.

The sum of a run is added to the parameters, which begin at 0. So they are the released counts.
"""

import torch
from torch import nn


class Counts(nn.Module):
    """A model with one parameter for each counted cell; it predicts 0 and is not tested.

    `cells`: d. `outputs`: how many numbers labels of this kind need.
    """

    predicts_nothing = True

    def __init__(self, cells: int, outputs: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(cells))
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return zeros of shape (n, outputs)."""
        return x.new_zeros(len(x), self.outputs) + 0.0 * self.counts[:1]


def counts(input_shape: tuple[int, ...], num_classes: int, *, asked: str = "", cells: int = 1) -> nn.Module:
    """Build a model with one parameter for each counted cell (value or bin); `asked` names the statistics."""
    return Counts(cells, num_classes)
