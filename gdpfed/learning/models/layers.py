"""Models of layers with names, which become the names of their parameters in a file of weights."""

from collections import OrderedDict

from torch import nn


def named_layers(**layers: nn.Module) -> nn.Sequential:
    """The layers one after another, in the order in which they are given.

    ``named_layers(flatten=..., linear=...)`` has the parameters ``linear.weight`` and ``linear.bias``.
    """
    return nn.Sequential(OrderedDict(layers))
