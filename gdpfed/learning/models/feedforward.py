"""Networks of linear layers and convolutions, whose layers have names, as their parameters do in a file."""

from collections import OrderedDict
from itertools import pairwise
from math import prod

import torch
from torch import nn


def named_layers(**layers: nn.Module) -> nn.Sequential:
    """The layers one after another, in the order in which they are given.

    ``named_layers(flatten=..., linear=...)`` has the parameters ``linear.weight`` and ``linear.bias``.
    """
    return nn.Sequential(OrderedDict(layers))


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression: d = (inputs + 1) classes."""
    return named_layers(flatten=nn.Flatten(), linear=nn.Linear(prod(input_shape), num_classes))


def mlp(input_shape: tuple[int, ...], num_classes: int, *, hidden_units: int = 64) -> nn.Module:
    """One hidden layer of rectified units."""
    return named_layers(
        flatten=nn.Flatten(),
        hidden=nn.Linear(prod(input_shape), hidden_units),
        relu=nn.ReLU(),
        output=nn.Linear(hidden_units, num_classes),
    )


def cnn2(input_shape: tuple[int, ...], num_classes: int, *, hidden_units: int = 32) -> nn.Module:
    """The network of TensorFlow Privacy's and Opacus's MNIST tutorials.

    Convolutions 8x8 and 4x4, both of stride 2 and followed by 2x2 pooling of stride 1, then one hidden
    layer: d = 26,010 for 28x28 grey pictures in ten classes.
    """
    features = {
        "convolution1": nn.Conv2d(input_shape[0], 16, kernel_size=8, stride=2, padding=3),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2, stride=1),
        "convolution2": nn.Conv2d(16, 32, kernel_size=4, stride=2),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2, stride=1),
        "flatten": nn.Flatten(),
    }
    return named_layers(
        **features,
        hidden=nn.Linear(num_features(named_layers(**features), input_shape), hidden_units),
        relu3=nn.ReLU(),
        output=nn.Linear(hidden_units, num_classes),
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
    layers: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise(channels), start=1):
        layers[f"convolution{number}"] = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
        layers |= {f"relu{number}": nn.ReLU(), f"pool{number}": nn.MaxPool2d(2)}
    features = named_layers(**layers, flatten=nn.Flatten())
    output = nn.Linear(num_features(features, input_shape), num_classes)
    return named_layers(**dict(features.named_children()), output=output)


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
