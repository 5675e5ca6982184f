"""Tell whether a model's layers treat each record alone, or may couple the records of a batch."""

from copy import deepcopy

from torch import nn

from fastgrad.lowered import NotLoweredError
from fastgrad.modules import DrawnDropout, LastPosition, LSTMLayer, UnitInputs
from fastgrad.traced import Sum, steps_of

KNOWN: frozenset[type[nn.Module]] = frozenset(
    (
        *(nn.Linear, nn.Conv2d, nn.Embedding, nn.GroupNorm, nn.Identity, nn.Dropout, nn.Flatten),
        *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
        *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Softplus, nn.Softsign),
        *(DrawnDropout, LSTMLayer, LastPosition, UnitInputs, Sum),
    )
)
"""Layers that compute a record's result from that record alone, whatever the others are."""


def has_known_layers(model: nn.Module) -> bool:
    """Whether a model provably consists of known layers, so that no record affects another's result."""
    model = deepcopy(model).train()
    # A hook or a forward of its own computes something else than the module's class.
    if any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
        for module in model.modules()
    ):
        return False
    try:
        layers = [step.layer for step in steps_of(model)]
    except NotLoweredError:
        return False
    return all(type(each) in KNOWN for layer in layers for each in layer.modules()) and not any(
        isinstance(layer, nn.Flatten) and layer.start_dim < 1 for layer in layers
    )
