"""Tell whether a model's layers treat each record alone, or may couple the records of a batch."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import nn

from fastgrad.lowered import NotLoweredError
from fastgrad.modules import DrawnDropout, LastPosition, LSTMLayer, UnitInputs
from fastgrad.traced import EXAMPLES, Step, Sum, steps_of

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


TRIED_RECORDS = 2, 3
"""How many records are tried. A result with the same first dimension for both has not one row a record."""


def has_known_layers(model: nn.Module, x: torch.Tensor) -> bool:
    """Whether a model provably consists of known layers, so that no record affects another's result.

    Such a layer computes a row from that row alone. So what is left to show is that each step's result has a
    row for each record, and that two results are added row by row: of one shape, since others would be spread
    over all records. `x`: some inputs of the model; only their shape and the values of the first one matter.
    """
    model = deepcopy(model).train()
    # A hook or a forward of its own computes something else than the module's class.
    if any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
        for module in model.modules()
    ):
        return False
    try:
        steps = steps_of(model)
    except NotLoweredError:
        return False
    layers = [step.layer for step in steps]
    if not all(type(each) in KNOWN for layer in layers for each in layer.modules()) or any(
        isinstance(layer, nn.Flatten) and layer.start_dim < 1 for layer in layers
    ):
        return False
    model.eval()  # Layers that draw would take from torch's generator.
    copies = (x[:1].repeat(number, *[1] * (x.ndim - 1)) for number in TRIED_RECORDS)
    return all(_goes_row_by_row(steps, each) for each in copies)


@torch.no_grad()
def _goes_row_by_row(steps: Sequence[Step], x: torch.Tensor) -> bool:
    """Whether the result of every step has as many rows as the inputs, and sums are of one shape."""
    results = {EXAMPLES: x}
    for number, step in enumerate(steps):
        given = [results[earlier] for earlier in step.inputs]
        if len({each.shape for each in given}) > 1:
            return False
        try:
            found = given[0] + given[1] if isinstance(step.layer, Sum) else step.layer(*given)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return False
        if not isinstance(found, torch.Tensor) or found.shape[:1] != x.shape[:1]:
            return False
        results[number] = found
    return True
