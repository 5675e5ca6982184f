"""Dropout whose draws follow from a key, so that one seed of a run gives one model whoever trains it.

torch's dropout draws from a generator of the process, which no seed of a run sets, and draws otherwise for
many clients at once than for one. Here entry number e of a batch is left out if the top bits of a mixed
integer are below the rate p:

    h(k, l, e) = mix(mix(k + l g) + (e + 1) g),   left out if floor(h / 2^40) < p 2^24

k is the key of the client's step, l the number of the layer in the model, mix the finaliser of SplitMix64 and
g its increment (Steele, Lea, Flood, OOPSLA 2014), all modulo 2^64.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

INCREMENT = -0x61C8864680B583EB
"""The odd number next to 2^64 over the golden ratio, as a signed integer of 64 bits, as are the others."""
FIRST_FACTOR, SECOND_FACTOR = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
BITS, SHIFT = 24, 40
KEYS = 2**63
"""A key is a whole number from 0 to below this."""


def mixed(z: Any) -> Any:
    """The finaliser of SplitMix64, of int64: tensors, and numbers of compiled loops alike."""
    z = (z ^ (z >> 30 & 2**34 - 1)) * FIRST_FACTOR
    z = (z ^ (z >> 27 & 2**37 - 1)) * SECOND_FACTOR
    return z ^ (z >> 31 & 2**33 - 1)


def stays(base: Any, entry: Any, threshold: int) -> Any:
    """Whether entry number e, counted from 1, is not left out, from mix(k + l g); types are as of `mixed`."""
    return (mixed(base + entry * INCREMENT) >> SHIFT & 2**BITS - 1) >= threshold


def offset_of(number: int) -> int:
    """l g of a layer, as a signed integer."""
    return (number * INCREMENT + 2**63) % 2**64 - 2**63


def threshold_of(rate: float) -> int:
    """What the bits of an entry that stays are not below."""
    return round(rate * (1 << BITS))


def scale_of(rate: float) -> float:
    """What an entry that stays is multiplied by, so that the mean stays; 0 where none does."""
    return 0.0 if rate == 1 else 1 / (1 - rate)


class DrawnDropout(nn.Module):
    """`nn.Dropout` that draws by a key where it is given one, and by torch's generator where not.

    Args:
        rate: the probability p that an entry is left out.
        number: of this layer in its model.

    Attributes:
        key: of the step, a buffer without dimensions, int64.
        by_key: whether it draws by the key.
    """

    key: torch.Tensor

    def __init__(self, rate: float, number: int) -> None:
        super().__init__()
        self.rate, self.number, self.by_key = rate, number, False
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes (batch, ...) to the same."""
        if not (self.training and self.by_key):
            return functional.dropout(x, self.rate, self.training)
        entries = torch.arange(1, x.numel() + 1, device=x.device).view(x.shape)
        kept = stays(mixed(self.key + offset_of(self.number)), entries, threshold_of(self.rate))
        return torch.where(kept, x * scale_of(self.rate), 0.0)


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
