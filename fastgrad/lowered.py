"""A model in the form that compiled loops need: layers with sizes, and the positions of their parameters."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

# What a pass takes for its buffers stays in the caches of a core.
CACHE_BYTES = 4 * 2**20
MOST_RECORDS = 64

Pair = tuple[int, int]
Shape = tuple[int, int, int]


class NotLoweredError(Exception):
    """Raised if a model cannot be computed by compiled loops (numba); the message says why."""


@dataclass(frozen=True)
class LoweredLayer(ABC):
    """A layer of a model, with the ReLU or pooling that is computed in the same pass.

    `compiled`: the module of its loops and the `fastgrad.layer.Layer` in it, which programs import where a
    model has such a layer: numba compiles the loops of a module at its import. `draws`: whether it draws by
    keys. `shape`: of the input: height, width, channels; of what is not a picture, (1, 1, features).
    """

    compiled: ClassVar[str]
    draws: ClassVar[bool] = False

    shape: Shape

    @property
    def output(self) -> Shape:
        """Height, width and channels of the layer's output."""
        return self.shape

    @property
    @abstractmethod
    def floats(self) -> int:
        """About how many floats one record needs in a layer's buffers, including a convolution's gradient."""


@dataclass(frozen=True)
class Affine(LoweredLayer):
    """A linear or convolution layer and the operations after it: out = pool(relu(W patch + b)).

    Attributes:
        kernel, stride, padding: of the patches; a linear layer has one patch, the whole input.
        outputs: how many channels there are after the weights.
        weight: where the weights begin among the parameters; shape (outputs, entries of a patch).
        bias: where the bias begins; None without one.
        rectify: whether ReLU follows.
        pool_stride: of the pooling that follows; None without one.
    """

    compiled: ClassVar[str] = "fastgrad.affine:AffineLayer"

    kernel: Pair
    stride: Pair
    padding: Pair
    outputs: int
    weight: int
    bias: int | None
    rectify: bool = False
    pool_stride: Pair | None = None

    @property
    def patch(self) -> int:
        """The number of entries of a patch under the kernel."""
        return self.kernel[0] * self.kernel[1] * self.shape[2]

    @property
    def places(self) -> Pair:
        """The numbers of patches of a picture, vertically and horizontally."""
        height, width = (
            (size + 2 * pad - kernel) // stride + 1
            for size, pad, kernel, stride in zip(
                self.shape[:2], self.padding, self.kernel, self.stride, strict=True
            )
        )
        return height, width

    @property
    def output(self) -> Shape:
        height, width = self.places
        if self.pool_stride is not None:
            height, width = (
                (size - 2) // by + 1 for size, by in zip(self.places, self.pool_stride, strict=True)
            )
        return height, width, self.outputs

    @property
    def floats(self) -> int:
        places, outputs = prod(self.places), prod(self.output)
        floats = prod(self.shape) + places * (self.patch + self.outputs) + 3 * outputs
        return floats + (self.outputs * self.patch if places > 1 else 0)


@dataclass(frozen=True)
class Norm(LoweredLayer):
    """Group normalisation (Wu and He, 2018), with ReLU if one follows.

    Attributes:
        groups: of channels that lie side by side.
        eps: is added to the variance.
        weight, bias: where gamma and beta begin among the parameters; shape (channels,). None without them.
        rectify: whether ReLU follows.
    """

    compiled: ClassVar[str] = "fastgrad.group_norm:NormLayer"

    groups: int
    eps: float
    weight: int | None
    bias: int | None
    rectify: bool = False

    @property
    def floats(self) -> int:
        return 2 * prod(self.shape) + 4 * self.shape[2]


@dataclass(frozen=True)
class Pooling(LoweredLayer):
    """Mean or maximum pooling: one value for each window and channel, with ReLU if one follows.

    `rows`, `columns`: where each window begins in the picture, and the first place behind it. `averages`:
    whether means are taken. `divisor`: of the sum over a window, for a mean; 0 for as many places as the
    window has. `rectify`: whether ReLU follows.
    """

    compiled: ClassVar[str] = "fastgrad.pooling:PoolingLayer"

    rows: tuple[Pair, ...]
    columns: tuple[Pair, ...]
    averages: bool
    divisor: int = 0
    rectify: bool = False

    @property
    def output(self) -> Shape:
        return len(self.rows), len(self.columns), self.shape[2]

    @property
    def floats(self) -> int:
        return 3 * prod(self.output)


@dataclass(frozen=True)
class Join(LoweredLayer):
    """The sum of two branches of a network, with ReLU if one follows.

    `rectify`: whether ReLU follows.
    """

    compiled: ClassVar[str] = "fastgrad.join:JoinLayer"

    rectify: bool = False

    @property
    def floats(self) -> int:
        return 3 * prod(self.shape)


@dataclass(frozen=True)
class Dropout(LoweredLayer):
    """Dropout whose random choices follow from a key (`fastgrad.modules`).

    `rate`: the probability that an entry is left out. `number`: of the layer in its model. `entries`: which
    of a record's entries each is in the model's order.
    """

    compiled: ClassVar[str] = "fastgrad.dropout:DropoutLayer"
    draws: ClassVar[bool] = True

    rate: float
    number: int
    entries: tuple[int, ...]

    @property
    def floats(self) -> int:
        return 3 * prod(self.shape)


@dataclass(frozen=True)
class LSTM:
    """The sizes of one LSTM layer, and where its parameters begin in the vector of all parameters.

    `inputs`, `units`: entries at a position, of its input and of its state. `from_inputs`: where its weights
    by the input begin among the parameters; shape (4 units, inputs). `bias`: where the bias begins; shape (4
    units,). `from_states`: where its weights by the state begin; shape (units, 4 units).
    """

    inputs: int
    units: int
    from_inputs: int
    bias: int
    from_states: int


@dataclass(frozen=True)
class EmbeddingLSTM:
    """Layers that read a text: an embedding and LSTM layers; the result is the state at the last position.

    `length`: characters of an example. `vocabulary`, `width`: rows of the embedding, and entries of a row.
    `table`: where the embedding begins among the parameters; shape (vocabulary, width). `recurrences`: the
    LSTM layers in their order.
    """

    length: int
    vocabulary: int
    width: int
    table: int
    recurrences: tuple[LSTM, ...] = ()


@dataclass(frozen=True, eq=False)
class LoweredModel:
    """A model as a sequence of layers for compiled loops (numba).

    `stages`: in their order. `inputs`: the numbers of the stages whose results each one takes; -1 for what
    comes before all. `input_shape`: of one example, as the model takes it. `order`: where each
    parameter of the program stands in theta, shape (d,). `reading`: what comes before the stages; None where
    examples are pictures or rows of numbers.
    """

    stages: tuple[LoweredLayer, ...]
    inputs: tuple[tuple[int, ...], ...]
    input_shape: tuple[int, ...]
    order: npt.NDArray[np.int64]
    reading: EmbeddingLSTM | None = None

    @cached_property
    def inverse(self) -> npt.NDArray[np.int64]:
        """For each parameter in the model's order, its index in the compiled loops' order: shape (d,)."""
        return np.argsort(self.order)

    @property
    def draws(self) -> bool:
        """Whether a layer, such as dropout, draws random numbers from keys."""
        return any(stage.draws for stage in self.stages)

    @property
    def bytes_a_record(self) -> int:
        """Roughly the number of bytes in a record's buffers.

        A text is read position by position, and one of them is what is to stay in cache.
        """
        layers = self.reading.recurrences if self.reading else ()
        floats = sum(2 * layer.inputs + 8 * layer.units for layer in layers)
        return 4 * (floats + sum(stage.floats for stage in self.stages))

    @property
    def has_pictures(self) -> bool:
        """Whether the input is pictures rather than one row of numbers."""
        return len(self.input_shape) == 3 and self.stages[0].shape[:2] == self.input_shape[1:]

    @property
    def most_records(self) -> int:
        """The largest number of records, a power of two up to 64, whose buffers fit into the cache."""
        most = MOST_RECORDS
        while most > 1 and most * self.bytes_a_record > CACHE_BYTES:
            most //= 2
        return most


def pieces_of(count: int, most: int) -> Iterator[slice]:
    """Yield slices that cover `count` records: of `most` records, then of half as many, and so on."""
    begin, size = 0, most
    while begin < count:
        while size > count - begin:
            size //= 2
        yield slice(begin, begin + size)
        begin += size
