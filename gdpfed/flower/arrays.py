"""A model of which only the arrays are known: names, types, shapes, and their values in one vector, theta.

Plan, ledger, files and audit take a run as one of a data set and a model, chosen by name. The data set
``flower_app`` has no records, since each client's own function reads its own, and the model
``flower_arrays`` has nothing but parameters, since that function computes with them. The process that begins
a run places the first arrays; one without them cannot build the model, so it cannot train in its place.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset, DataSource, Split
from gdpfed.learning.models import assign, trainable

DATASET, MODEL = "flower_app", "flower_arrays"
TYPES = ("float16", "float32", "float64")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What PyTorch calls the arrays in which BatchNorm counts, and which no step trains."""
Numbers = npt.NDArray[Any]
Theta = npt.NDArray[np.float32]

_STARTS: dict[str, Theta] = {}


@dataclass(frozen=True)
class Layout:
    """The arrays of a model in the app's own order: name, data type and shape of each."""

    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Numbers]) -> "Layout":
        """Return the layout (names, types, shapes) of a model's arrays.

        Raises LearningError: there are none, one holds other than real numbers of a usual size, or one is a
        statistic of the records, such as BatchNorm keeps.
        """
        for name, each in arrays.items():
            if name.rpartition(".")[2] in STATISTICS:
                raise LearningError(
                    f"array '{name}' is a statistic of single clients' records, which noise makes worthless: "
                    f"replace BatchNorm by GroupNorm, or leave {' and '.join(STATISTICS)} out of the arrays"
                )
            if each.dtype.name not in TYPES:
                raise LearningError(
                    f"array '{name}' holds {each.dtype}, and only {', '.join(TYPES)} can be trained under "
                    "noise: leave it out of the arrays"
                )
            if not np.isfinite(each).all():
                raise LearningError(
                    f"array '{name}' holds values that are not finite: begin with finite values"
                )
        return cls(tuple((name, each.dtype.name, each.shape) for name, each in arrays.items())).checked()

    @classmethod
    def from_json(cls, text: str) -> "Layout":
        """Read the names, types and shapes of arrays (layout) from a text that :meth:`to_json` wrote.

        Raises LearningError: the text is not a layout.
        """
        try:
            read = tuple(
                (str(name), str(kind), tuple(map(int, sizes))) for name, kind, sizes in json.loads(text)
            )
        except (ValueError, TypeError):
            read = ()
        if any(kind not in TYPES or min(sizes, default=0) < 0 for _, kind, sizes in read):
            read = ()
        return cls(read).checked()

    def to_json(self) -> str:
        """Return the names, types and shapes of the arrays (layout) as one line of JSON."""
        return json.dumps(self.arrays, separators=(",", ":"))

    def checked(self) -> "Layout":
        """Check the arrays' names, types and shapes, and return them; raise LearningError if invalid."""
        if not sum(prod(sizes) for _, _, sizes in self.arrays):
            raise LearningError(
                f"dataset.model={MODEL} has no arrays: a run of it is begun and resumed by the app's own "
                "strategy, gdpfed.flower.GDPFed"
            )
        _ = self.order
        return self

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The names of the arrays, in the order of their values in the parameter vector theta."""
        with torch.device("meta"):
            return tuple(trainable(ArrayModel(self)))

    def vector(self, arrays: Mapping[str, Numbers]) -> npt.NDArray[np.float64]:
        """Join all arrays to one vector of shape (d,), float64.

        Raises LearningError: they are not those of the layout.
        """
        shapes = {name: sizes for name, _, sizes in self.arrays}
        given = {name: each.shape for name, each in arrays.items()}
        if given != shapes:
            raise LearningError(
                f"the arrays are {given}, and the model's are {shapes}: give arrays of these shapes"
            )
        return np.concatenate([np.asarray(arrays[name], np.float64).reshape(-1) for name in self.order])

    def arrays_of(self, theta: npt.NDArray[Any]) -> dict[str, Numbers]:
        """Split a vector of shape (d,) into the app's arrays, each with its own type."""
        kinds = {name: (kind, sizes) for name, kind, sizes in self.arrays}
        ends = np.cumsum([prod(kinds[name][1]) for name in self.order])
        parts = dict(zip(self.order, np.split(theta, ends[:-1]), strict=True))
        return {name: parts[name].astype(kind).reshape(sizes) for name, (kind, sizes) in kinds.items()}


def tied(arrays: Mapping[str, Numbers]) -> tuple[str, str] | None:
    """Return the names of two arrays that start with equal values, as shared weights do; None if none do.

    Constant arrays, such as biases of zero, are equal by chance and do not count.
    """
    seen: dict[tuple[tuple[int, ...], bytes], str] = {}
    for name, each in arrays.items():
        if each.size > 1 and (each != each.flat[0]).any():
            first = seen.setdefault((each.shape, each.tobytes()), name)
            if first != name:
                return first, name
    return None


class ArrayModel(nn.Module):
    """A module whose parameters are an app's arrays, all zero; a dot in a name makes a submodule.

    Raises LearningError: a name that is empty, or one that is another's and a dot at its beginning.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        for name, _, sizes in layout.arrays:
            holder: nn.Module = self
            *path, last = name.split(".")
            try:
                for step in path:
                    if step not in holder._modules:
                        holder.add_module(step, nn.Module())
                    holder = holder.get_submodule(step)
                holder.register_parameter(last, nn.Parameter(torch.zeros(sizes)))
            except (KeyError, AttributeError):
                raise LearningError(
                    f"array '{name}' cannot be stored beside the others under this name: give it another name"
                ) from None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return zeros, since only the user's app can compute predictions from its arrays."""
        return x.new_zeros(len(x), 1)


def place_start(layout: Layout, arrays: Mapping[str, Numbers]) -> str:
    """Store a run's initial arrays in this process; return their name, a SHA-256 in hexadecimal."""
    theta = layout.vector(arrays).astype(np.float32)
    name = sha256(theta.tobytes()).hexdigest()
    _STARTS[name] = theta
    return name


def flower_arrays(
    input_shape: tuple[int, ...], num_classes: int, *, layout: str = "", start: str = "", told: str = ""
) -> nn.Module:
    """Build a torch module whose parameters are an app's arrays, with the values stored in this process.

    `layout`: of the arrays. `start`: what names the first ones. `told`: what the function is told, as JSON.

    Raises LearningError: arrays that nobody has placed in this process.
    """
    model = ArrayModel(Layout.from_json(layout))
    if any(parameter.is_meta for parameter in model.parameters()):
        return model
    if start not in _STARTS:
        raise LearningError(
            f"dataset.model={MODEL} is trained by the functions of a Flower app alone: begin and resume its "
            "run by gdpfed.flower.GDPFed, and use its arrays there"
        )
    assign(model, torch.from_numpy(_STARTS[start].copy()))
    return model


def no_records(source: DataSource) -> Dataset:
    """Return a data set without records, since the app's own function reads the training records.

    Raises LearningError: a setting, of which it has none.
    """
    source.allow()
    nothing = Split(np.zeros((0, 1), np.float32), np.zeros(0, np.float32))
    return Dataset(nothing, nothing, num_classes=1)
