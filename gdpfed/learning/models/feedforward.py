"""Networks of linear layers and convolutions."""

from itertools import pairwise
from math import prod

import torch
from torch import nn


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression: d = (inputs + 1) classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes))


def mlp(input_shape: tuple[int, ...], num_classes: int, *, hidden_units: int = 64) -> nn.Module:
    """One hidden layer of rectified units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), hidden_units),
        nn.ReLU(),
        nn.Linear(hidden_units, num_classes),
    )


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


def resnet18(input_shape: tuple[int, ...], num_classes: int, *, channels_per_group: int = 2) -> nn.Module:
    """torchvision's ResNet-18 (He et al., 2016) for 32x32 pixels, with two changes.

    GroupNorm (Wu and He, 2018) takes the place of BatchNorm, whose running statistics neither clipping nor
    noise covers.
    The first convolution is 3x3 of stride 1 and not followed by pooling, as is usual for 32x32 pixels.
    """
    from torchvision.models import resnet18 as torchvision_resnet18

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(channels // channels_per_group, channels)

    model: nn.Module = torchvision_resnet18(num_classes=num_classes, norm_layer=norm)
    model.conv1 = nn.Conv2d(input_shape[0], 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model
