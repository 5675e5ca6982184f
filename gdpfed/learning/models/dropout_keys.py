"""Dropout keys: the same run seed gives the same model in every engine."""

import numpy as np
import numpy.typing as npt
from torch import nn

from fastgrad.modules import DrawnDropout

KEYS = 2**63
"""A key is a whole number from 0 to below this."""


def with_drawn_dropout(model: nn.Module) -> nn.Module:
    """The model, in which `DrawnDropout` stands in the place of every `nn.Dropout`."""
    number = 0
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, DrawnDropout(child.p, number))
                number += 1
    return model


def draw_keys(num_steps: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A key for each step of a client, shape (steps,)."""
    return rng.integers(KEYS, size=num_steps, dtype=np.int64)


class DropoutKeys:
    """The layers of a model that draw, and their keys; from now on they draw by them.

    Attributes:
        names: of the keys among the model's buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, DrawnDropout)}
        self._layers = tuple(layers.values())
        self.names = tuple(f"{name}.key" for name in layers)
        for layer in self._layers:
            layer.by_key = True

    def __bool__(self) -> bool:
        return bool(self.names)

    def set(self, key: int) -> None:
        """The key of the next step."""
        for layer in self._layers:
            layer.key.fill_(key)
