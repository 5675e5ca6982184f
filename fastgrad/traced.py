"""Read a model's forward pass as a list of steps, including branches that are joined later.

An `nn.Sequential` is read layer by layer. The forward pass of any other module is traced by torch.fx. Steps
are calls of modules that torch or this package has, and of functions that stand for one or add two results.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from fastgrad.lowered import NotLoweredError

EXAMPLES = -1
"""Stands for the model's input in place of a step's number."""


class Sum(nn.Module):
    """A step of a model that adds two results of the same shape."""


@dataclass(frozen=True, eq=False)
class Step:
    """One layer in a model's order of computation, with the earlier steps whose results are its inputs.

    `layer`: what it computes. `inputs`: the numbers of the steps whose results it takes, or EXAMPLES.
    """

    layer: nn.Module
    inputs: tuple[int, ...]


def steps_of(model: nn.Module) -> Sequence[Step]:
    """Return the steps of a model's forward pass, in order; the last step gives the model's output.

    Raises NotLoweredError: a forward pass that torch.fx cannot trace, a function that is not a layer, or a
    result that is not used.
    """
    layers = list(_in_a_row(model))
    if all(_is_layer(layer) for layer in layers):
        return [Step(layer, (number - 1,)) for number, layer in enumerate(layers)]
    root = nn.Sequential(model)
    tracer = fx.Tracer()
    tracer.is_leaf_module = lambda module, name: _is_layer(module)
    with _TRACING:
        try:
            nodes = list(tracer.trace(root).nodes)
        except Exception as error:  # The model's own code runs, and raises what it likes.
            words = " ".join(str(error).split())[:100]
            raise NotLoweredError(
                f"no compiled program exists for a forward pass that cannot be traced: {words}"
            ) from None
    numbers: dict[fx.Node, int] = {}
    steps: list[Step] = []
    for node in nodes:
        if node.op == "output":
            break
        if not node.users:
            raise NotLoweredError(f"no compiled program exists for a result that is not used: {node.name}")
        if node.op == "placeholder":
            numbers[node] = EXAMPLES
            continue
        given, layer = _layer_of(node, root)
        if not all(isinstance(each, fx.Node) for each in given):
            raise NotLoweredError(
                f"no compiled program exists for a layer {type(layer).__name__} of other inputs"
            )
        if type(layer) is nn.Identity:
            numbers[node] = numbers[given[0]]
            continue
        numbers[node] = len(steps)
        steps.append(Step(layer, tuple(numbers[each] for each in given)))
    return steps


def _in_a_row(model: nn.Module) -> Iterator[nn.Module]:
    if type(model) is not nn.Sequential:
        yield model
        return
    for layer in model:
        yield from _in_a_row(layer)


def _is_layer(module: nn.Module) -> bool:
    known = module.__module__.startswith(("torch.nn.", "fastgrad."))
    return known and not isinstance(module, nn.Sequential)


# While fx traces, it replaces what a call of any module does.
_TRACING = Lock()


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


_CALLS: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((functional.relu, torch.relu, torch.relu_, "relu", "relu_"), nn.ReLU),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten),
    functional.max_pool2d: nn.MaxPool2d,
    functional.avg_pool2d: nn.AvgPool2d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


def _layer_of(node: fx.Node, root: nn.Module) -> tuple[Sequence[Any], nn.Module]:
    """Return the inputs of a traced call, and the layer that the call stands for."""
    if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
        return node.args, root.get_submodule(str(node.target))
    if node.target in _SUMS and len(node.args) == 2 and not node.kwargs:
        return node.args, Sum()
    make, (given, *options) = _CALLS.get(node.target), node.args or (None,)
    if make is None:
        raise NotLoweredError(
            f"no compiled program exists for a call of {getattr(node.target, '__name__', node.target)}"
        )
    try:
        return [given], make(*options, **node.kwargs)
    except TypeError:
        raise NotLoweredError(f"no compiled program exists for a call of {node.name} with options") from None
