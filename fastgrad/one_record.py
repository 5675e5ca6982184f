"""Tell models that look at one record alone from others, and give a loss each record as a batch of one."""

from copy import deepcopy

import torch
from torch import nn
from torch.func import vmap

from fastgrad.lowered import NotLoweredError
from fastgrad.modules import DrawnDropout, LastPosition, Loss, LSTMLayer, UnitInputs
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
    """Whether a model is a sequence of known layers, or can be traced as one: then it couples no records."""
    model = deepcopy(model).train()
    if any(_is_changed(module) for module in model.modules()):
        return False
    try:
        layers = [step.layer for step in steps_of(model)]
    except NotLoweredError:
        return False
    return all(type(each) in KNOWN for layer in layers for each in layer.modules()) and not any(
        isinstance(layer, nn.Flatten) and layer.start_dim < 1 for layer in layers
    )


def record_by_record(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> Loss:
    """Return a loss that calls another one with every record as a batch of one, so that it couples none.

    torch goes through the records at once, by vmap, if it does so with the same figures; else Python goes
    through one after the other. `outputs`, `targets`: some records to try that, shape (n, ...).
    """

    def of_one(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(output[None], target[None])[0]

    def in_turn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.stack([of_one(*each) for each in zip(outputs, targets, strict=True)])

    at_once: Loss = vmap(of_one, randomness="different")
    expected = in_turn(outputs, targets)
    try:
        found = at_once(outputs, targets)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return in_turn
    return at_once if torch.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True) else in_turn


def _is_changed(module: nn.Module) -> bool:
    """Whether a module computes something else than its class does: by a hook, or a function of its own."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module)
