"""Multinomial logistic regression."""

from math import prod

from torch import nn


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """d = (inputs + 1) classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes))
