"""A network with one hidden layer."""

from math import prod

from torch import nn


def mlp(input_shape: tuple[int, ...], num_classes: int, *, hidden_units: int = 64) -> nn.Module:
    """One hidden layer of rectified units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), hidden_units),
        nn.ReLU(),
        nn.Linear(hidden_units, num_classes),
    )
