"""Two convolutions for small grey pictures."""

from math import prod

import torch
from torch import nn


def cnn2(input_shape: tuple[int, ...], num_classes: int, *, hidden_units: int = 32) -> nn.Module:
    """The network of TensorFlow Privacy's and Opacus's MNIST tutorials.

    Convolutions 8x8 and 4x4, both of stride 2 and followed by 2x2 pooling of stride 1, then one hidden
    layer: d = 26,010 for 28x28 grey pictures in ten classes.
    """
    features = nn.Sequential(
        nn.Conv2d(input_shape[0], 16, kernel_size=8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
    )
    return nn.Sequential(
        *features,
        nn.Linear(num_features(features, input_shape), hidden_units),
        nn.ReLU(),
        nn.Linear(hidden_units, num_classes),
    )


def num_features(layers: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return how many values these layers compute from one example."""
    with torch.no_grad():
        return prod(layers(torch.zeros(1, *input_shape)).shape)
