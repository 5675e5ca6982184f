"""Layers that torch lacks or computes slowly, and the loss whose gradient compiled loops compute.

Models use these layers, since compiled programs and closed forms recognise them.

torch's dropout draws from a generator of the process, which a run's seed does not set. It also draws
different numbers for many models at once than for one model. `DrawnDropout` drops entry number e of a batch
if the top bits of a mixed integer are below the rate p:

    h(k, l, e) = mix(mix(k + l g) + (e + 1) g),   dropped if floor(h / 2^40) < p 2^24

k is the key of the client's step, l the number of the layer in the model, mix the finaliser of SplitMix64 and
g its increment (Steele, Lea, Flood, OOPSLA 2014), all modulo 2^64.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fastgrad.im2col import pair
from fastgrad.lstm_scan import Scan, checked_scan, states_of

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(outputs, targets) to the loss of each record: (n, ...) and (n, ...) to (n,). It couples no records."""

INCREMENT = -0x61C8864680B583EB
"""The odd number nearest to 2^64 / golden ratio. It and the factors below are signed 64-bit integers."""
FIRST_FACTOR, SECOND_FACTOR = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
BITS, SHIFT = 24, 40
LARGEST_WINDOW = 4
"""torch pools wider windows, since `SlicePooling` would need too many operations for them."""


def mixed(z: Any) -> Any:
    """Mix the bits of int64 values by SplitMix64's finaliser; takes tensors, or numbers in compiled loops."""
    z = (z ^ (z >> 30 & 2**34 - 1)) * FIRST_FACTOR
    z = (z ^ (z >> 27 & 2**37 - 1)) * SECOND_FACTOR
    return z ^ (z >> 31 & 2**33 - 1)


def stays(base: Any, entry: Any, threshold: int) -> Any:
    """Whether dropout keeps an entry: whether the hash of ``base`` and ``entry`` reaches ``threshold``.

    ``base``: mix(k + l g), of the module's docstring. ``entry``: e + 1. Their types are those of `mixed`.
    """
    return (mixed(base + entry * INCREMENT) >> SHIFT & 2**BITS - 1) >= threshold


def offset_of(number: int) -> int:
    """Return the number that a dropout layer adds to the key, so that each layer drops different entries.

    It is l g in the formula of the module's docstring, as a signed integer.
    """
    return (number * INCREMENT + 2**63) % 2**64 - 2**63


def threshold_of(rate: float) -> int:
    """Return the smallest random value for which dropout at this rate keeps an entry."""
    return round(rate * (1 << BITS))


def scale_of(rate: float) -> float:
    """Return the factor for entries that dropout keeps: 1 / (1 - rate), or 0 if it keeps none."""
    return 0.0 if rate == 1 else 1 / (1 - rate)


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each record's loss, -log softmax(outputs)[target], in nats."""
    return functional.cross_entropy(outputs, targets, reduction="none")


class DrawnDropout(nn.Module):
    """Dropout whose random numbers follow from a given key or, without a key, from torch's generator.

    `rate`: the probability p that an entry is dropped. `number`: this layer's number l in the model. `key`:
    the key k of the local step, an int64 buffer without dimensions. `by_key`: whether the key is used.
    """

    key: torch.Tensor

    def __init__(self, rate: float, number: int) -> None:
        super().__init__()
        self.rate, self.number, self.by_key = rate, number, False
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input with dropout, in the same shape."""
        if not (self.training and self.by_key):
            return functional.dropout(x, self.rate, self.training)
        entries = torch.arange(1, x.numel() + 1, device=x.device).view(x.shape)
        kept = stays(mixed(self.key + offset_of(self.number)), entries, threshold_of(self.rate))
        return torch.where(kept, x * scale_of(self.rate), 0.0)


class LSTMLayer(nn.Module):
    """One LSTM layer (Hochreiter and Schmidhuber, 1997), written in operations that torch.func can vmap.

    ``torch.nn.LSTM`` cannot be vmapped over its parameters. It has the same gates: input, forget, cell,
    output. This layer has one bias where cuDNN has two; the forget gate's starts at 1 (Jozefowicz, 2015).
    """

    def __init__(self, input_size: int, hidden_units: int) -> None:
        super().__init__()
        self.hidden_units = hidden_units
        self.scan: Scan | None = None
        self.input_map = nn.Linear(input_size, 4 * hidden_units)
        self.hidden_map = nn.Linear(hidden_units, 4 * hidden_units, bias=False)
        bound = hidden_units**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        nn.init.ones_(self.input_map.bias[hidden_units : 2 * hidden_units])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (B, L, inputs) to (B, L, hidden units)."""
        from_inputs = self.input_map(inputs)
        if self.scan is None:
            return states_of(from_inputs, self.hidden_map)
        return self.scan(from_inputs, self.hidden_map.weight)


def fuse_recurrences(model: nn.Module, device: torch.device) -> None:
    """Make a model's LSTM layers use the device's fused kernels, if a check finds them right.

    They can be differentiated only once, so gradients of single records use the layer's plain operations.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, LSTMLayer)]
    # Another map, such as a product of two matrices, has no weight to hand over.
    layers = [
        layer for layer in layers if type(layer.hidden_map) is nn.Linear and layer.hidden_map.bias is None
    ]
    if layers:
        scan = checked_scan(device)
        for layer in layers:
            layer.scan = scan


class SlicePooling(TorchFunctionMode):
    """A context in which CPUs compute maximum pooling by slices, if torch would give the same numbers.

    torch compares the pixels of a window one after the other, and keeps the index of the largest. Evaluation
    needs only the value, so this class compares whole rows and then whole columns: k - 1 vector operations
    each for windows of k x k. Cases left to torch: GPUs, gradients, padding, dilation, ceil_mode, indices,
    and windows wider than `LARGEST_WINDOW`.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute a maximum pooling by slices where that is exact, and pass every other call on to torch."""
        options = dict(kwargs or {})
        if func is functional.max_pool2d:
            pooled = _pooled(*args, **options)
            if pooled is not None:
                return pooled
        return func(*args, **options)


def _pooled(
    input: torch.Tensor,
    kernel_size: int | tuple[int, ...],
    stride: int | tuple[int, ...] | None = None,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor | None:
    """Return the maximum of each window, computed by slices; None in cases that are left to torch."""
    size, by = pair(kernel_size), pair(stride or kernel_size)
    plain = pair(padding) == (0, 0) and pair(dilation) == (1, 1) and not (ceil_mode or return_indices)
    fits = all(
        wide <= min(length, LARGEST_WINDOW) for wide, length in zip(size, input.shape[-2:], strict=True)
    )
    if not (plain and fits and input.device.type == "cpu") or torch.is_grad_enabled():
        return None
    for dimension in (-2, -1):
        wide, step = size[dimension], by[dimension]
        reach = (input.shape[dimension] - wide) // step * step + 1
        moved = input.movedim(dimension, 0)
        # One part for each place in a window: the windows start every `step` entries.
        parts = [moved[start : start + reach : step] for start in range(wide)]
        input = reduce(torch.maximum, parts).movedim(0, dimension)
    return input


class LastPosition(nn.Module):
    """Takes the features at a text's last position: (B, L, features) to (B, features)."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the features after the last character."""
        return states[:, -1]


class UnitInputs(nn.Module):
    """Scales every input to L2 norm 1 and appends a constant b: the result has norm sqrt(1 + b^2).

    An input of zeros stays zero before b is appended, so its norm is b. `constant`: b; its weights in the
    next layer take the place of a bias.
    """

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale each row to L2 norm 1 and append a constant: shape (n, inputs) to (n, inputs + 1)."""
        return nn.functional.pad(nn.functional.normalize(x, dim=1), (0, 1), value=self.constant)
