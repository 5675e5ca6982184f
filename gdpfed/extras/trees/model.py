"""The model of random trees: finds each record's leaf in every tree, and learns leaf values.

    f(x) = (1 / sqrt(K)) sum_k v_k[leaf_k(x)]

is linear in the leaf values v. So the gradient of a record has in each of K trees one leaf with g / sqrt(K),
g being the gradient of its loss by the outputs, and zeros elsewhere: its L2 norm is that of g, exactly,
however many trees there are.
"""

from math import prod, sqrt

import torch
from torch import nn

from gdpfed.errors import LearningError
from gdpfed.extras.trees.splits import MOST_DEPTH, MOST_TREES, Splits, drawn_splits, read_widths


class Leaves(nn.Module):
    """Encodes a record by its leaf in each of K trees of depth D: float[n, inputs] -> float[n, K 2^D].

    A tree's 2^D places hold 1 / sqrt(K) once, where the answers to its questions, as binary digits with the
    first one lowest, are the place's number; and else 0.
    """

    inputs: torch.Tensor
    thresholds: torch.Tensor
    digits: torch.Tensor
    numbers: torch.Tensor

    def __init__(self, splits: Splits) -> None:
        super().__init__()
        self.trees, self.depth = splits.inputs.shape
        self.register_buffer("inputs", torch.tensor(splits.inputs.reshape(-1)))
        self.register_buffer("thresholds", torch.tensor(splits.thresholds.reshape(-1)))
        digits = torch.tensor([float(2**level) for level in range(self.depth)])
        self.register_buffer("digits", digits, persistent=False)
        numbers = torch.tensor([float(place) for place in range(2**self.depth)])
        self.register_buffer("numbers", numbers, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return, for every leaf of K trees, 1 / sqrt(K) if the record reaches this leaf, and else 0."""
        answers = (x.index_select(1, self.inputs) > self.thresholds).to(x.dtype)
        places = answers.reshape(-1, self.trees, self.depth) @ self.digits.to(x.dtype)
        reached = (places.unsqueeze(-1) == self.numbers).to(x.dtype)
        return reached.flatten(1) / sqrt(self.trees)


def trees(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    trees: int = 200,
    depth: int = 2,
    columns: str = "",
    seed: int = 1,
) -> nn.Module:
    """Build the model of random trees; all leaf values start at 0.

    `trees`, `depth`: K and D. `columns`: how many inputs each column is, see `written`. `seed`: of splits.

    Raises LearningError: more trees or levels than there may be, or columns that are not those inputs.
    """
    for name, value, most in (("trees", trees, MOST_TREES), ("depth", depth, MOST_DEPTH)):
        if not 1 <= value <= most:
            raise LearningError(f"dataset.model_options.{name}={value} must be from 1 to {most}")
    splits = drawn_splits(read_widths(columns, prod(input_shape)), trees, depth, seed)
    values = nn.Linear(trees * 2**depth, num_classes, bias=False)
    nn.init.zeros_(values.weight)
    model = nn.Sequential()
    for name, layer in (("flatten", nn.Flatten()), ("leaves", Leaves(splits)), ("values", values)):
        model.add_module(name, layer)
    return model
