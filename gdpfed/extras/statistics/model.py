"""The model of a run of statistics: as many parameters as there are cells, and nothing that they predict.

The sum of a run is added to the parameters, which begin at 0. So they are the released counts.
"""

import torch
from torch import nn


class Counts(nn.Module):
    """One parameter a cell, at 0; its answers are 0 whatever it is asked, and are not tested.

    `cells`: d. `outputs`: how many numbers labels of this kind need.
    """

    predicts_nothing = True

    def __init__(self, cells: int, outputs: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(cells))
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros of shape (n, outputs)."""
        return x.new_zeros(len(x), self.outputs) + 0.0 * self.counts[:1]


def counts(input_shape: tuple[int, ...], num_classes: int, *, asked: str = "", cells: int = 1) -> nn.Module:
    """Build the model; `asked`: what is counted, as JSON of `Asked`; `cells`: how many cells that are."""
    return Counts(cells, num_classes)
