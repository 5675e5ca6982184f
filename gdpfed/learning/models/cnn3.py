"""Three convolutions for small colour pictures."""

from itertools import pairwise

from torch import nn

from gdpfed.learning.models.cnn2 import num_features


def cnn3(input_shape: tuple[int, ...], num_classes: int, *, width: int = 16) -> nn.Module:
    """Convolutions 3x3 to width, 2 width and 4 width channels, each with 2x2 pooling, and one linear layer.

    d = 33,834 for 32x32 colour pictures in ten classes.
    """
    channels = (input_shape[0], width, 2 * width, 4 * width)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers += [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    features = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*features, nn.Linear(num_features(features, input_shape), num_classes))
