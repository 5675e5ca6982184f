"""Networks with named layers, whose names are also the names of parameters in a file."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from math import floor, prod, sqrt

import torch
from torch import nn

from fastgrad.modules import LastPosition, LSTMLayer, UnitInputs
from gdpfed.late_import import late_import
from gdpfed.learning.models.build import MOST_LAYERS


def named_layers(**layers: nn.Module) -> nn.Sequential:
    """Join layers, each given by its name, to a sequence in the given order.

    ``named_layers(flatten=..., linear=...)`` has the parameters ``linear.weight`` and ``linear.bias``.
    """
    return nn.Sequential(OrderedDict(layers))


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression, with d = (inputs + 1) x classes parameters."""
    return named_layers(flatten=nn.Flatten(), linear=nn.Linear(prod(input_shape), num_classes))


def mlp(input_shape: tuple[int, ...], num_classes: int, *, hidden_units: int = 64) -> nn.Module:
    """A multilayer perceptron with one hidden layer of rectified units."""
    return named_layers(
        flatten=nn.Flatten(),
        hidden=nn.Linear(prod(input_shape), hidden_units),
        relu=nn.ReLU(),
        output=nn.Linear(hidden_units, num_classes),
    )


def cnn2(input_shape: tuple[int, ...], num_classes: int, *, hidden_units: int = 32) -> nn.Module:
    """A network with two convolutions, as in the MNIST tutorials of TensorFlow Privacy and Opacus.

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
    """Three 3x3 convolutions with width, 2 width and 4 width channels and 2x2 pooling; then a linear layer.

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


def fcn(input_shape: tuple[int, ...], num_classes: int, *, width: int = 16) -> nn.Module:
    """Two 3x3 convolutions and a 1x1 one: K outputs for every pixel, from the 5x5 pixels around it."""
    channels = input_shape[0]
    return named_layers(
        conv1=nn.Conv2d(channels, width, 3, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(width, width, 3, padding=1),
        relu2=nn.ReLU(),
        output=nn.Conv2d(width, num_classes, 1),
    )


def resnet18(input_shape: tuple[int, ...], num_classes: int, *, channels_per_group: int = 2) -> nn.Module:
    """torchvision's ResNet-18 (He et al., 2016), changed to GroupNorm and to a first layer for 32x32 pixels.

    GroupNorm (Wu and He, 2018) takes the place of BatchNorm, whose running statistics neither clipping nor
    noise covers. The first convolution is 3x3 of stride 1 and without pooling, as usual for 32x32 pixels.
    """
    from torchvision.models import resnet18 as torchvision_resnet18

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(channels // channels_per_group, channels)

    model: nn.Module = torchvision_resnet18(num_classes=num_classes, norm_layer=norm)
    model.conv1 = nn.Conv2d(input_shape[0], 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def lstm(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding_size: int = 8,
    hidden_units: int = 256,
    num_layers: int = 2,
) -> nn.Module:
    """LEAF's model for Shakespeare (Caldas et al., 2018): an embedding, LSTM layers, and a linear layer.

    The linear layer takes the last position's features. Inputs are tokens, of shape (B, sequence length),
    int64; the classes are the same tokens.
    """
    if num_layers > MOST_LAYERS:
        raise ValueError(f"use at most {MOST_LAYERS} layers")
    sizes = [embedding_size] + [hidden_units] * num_layers
    embedding = nn.Embedding(num_classes, embedding_size)
    layers = [LSTMLayer(inputs, outputs) for inputs, outputs in pairwise(sizes)]
    return named_layers(
        embedding=embedding,
        **{f"lstm{number}": layer for number, layer in enumerate(layers, start=1)},
        last_position=LastPosition(),
        output=nn.Linear(hidden_units, num_classes),
    )


def ngram(input_shape: tuple[int, ...], num_classes: int, *, characters: int = 3) -> nn.Module:
    """Logistic regression on the last characters, which is convex and so learns in few rounds.

    Each of the last characters has a table of scores and adds one row of it: d = characters classes^2. All
    scores begin at 0. Inputs are tokens, shape (B, sequence length), int64; the classes are the same tokens.
    """
    if not 1 <= characters <= input_shape[0]:
        raise ValueError(f"characters={characters} must be from 1 to {input_shape[0]}, the sequence length")
    rows = nn.Embedding(characters * num_classes, num_classes)
    nn.init.zeros_(rows.weight)
    return named_layers(characters=LastCharacters(characters, num_classes), scores=rows, added=Added())


class LastCharacters(nn.Module):
    """A layer that returns a text's last n characters as indices that depend on place: (B, L) to (B, n)."""

    def __init__(self, characters: int, vocabulary: int) -> None:
        super().__init__()
        self.characters, self.vocabulary = characters, vocabulary

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return, for each of the last n characters, its code + (its place, from 0) * (vocabulary size)."""
        last = inputs[:, -self.characters :]
        return last + self.vocabulary * torch.arange(self.characters, device=inputs.device)


class Added(nn.Module):
    """A layer that adds up the scores of all characters: (B, n, classes) to (B, classes)."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``scores`` over the characters (dimension 1), shape (B, classes)."""
        return scores.sum(dim=1)


stats = late_import("scipy.stats")


def softmax(input_shape: tuple[int, ...], num_classes: int, *, bias_input: float = 0.1) -> nn.Module:
    """Softmax regression with d = (inputs + 1) x classes; an extra constant input replaces the bias."""
    inputs = prod(input_shape) + 1
    return named_layers(
        flatten=nn.Flatten(),
        unit_inputs=UnitInputs(bias_input),
        linear=nn.Linear(inputs, num_classes, bias=False),
    )


@dataclass(frozen=True)
class ConvexBounds:
    """Bounds on the gradient norm and smoothness of a record's cross-entropy, for a convex model.

    `gradient_norm`: C_x, the largest norm of a record's gradient. `smoothness`: beta, a Lipschitz constant of
    the gradient in the parameters.
    """

    gradient_norm: float
    smoothness: float

    def largest_batch(self, learning_rate: float, batch_rate: float, num_records: int) -> int:
        """Return the largest batch size for which a gradient step cannot drive two models further apart."""
        return floor(2 * batch_rate * num_records / (learning_rate * self.smoothness) * (1 + 1e-12))

    def chance_of_long_step(self, learning_rate: float, batch_rate: float, num_records: int) -> float:
        """Return the probability of a batch above `largest_batch`, whose step may drive two models apart."""
        largest = self.largest_batch(learning_rate, batch_rate, num_records)
        if largest >= num_records:
            return 0.0
        return float(stats.binom.sf(largest, num_records, batch_rate))


def convex_bounds(model: nn.Module) -> ConvexBounds | None:
    """Bound gradient norm and smoothness of a model made by `softmax`; None for other models.

    The gradient is (p - y) times the input, and ||p - y|| <= sqrt(2). The Hessian in the scores is diag(p) -
    p p^T, whose largest eigenvalue is at most 1/2.
    """
    layers = list(model.children()) if type(model) is nn.Sequential else []
    if [type(layer) for layer in layers] != [nn.Flatten, UnitInputs, nn.Linear]:
        return None
    _, inputs, last = layers
    if not isinstance(inputs, UnitInputs) or last.bias is not None:
        return None
    square = 1 + inputs.constant**2
    return ConvexBounds(gradient_norm=sqrt(2 * square), smoothness=square / 2)
