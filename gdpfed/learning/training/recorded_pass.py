"""Cuts DP-SGD steps that run as CUDA graphs into parts (passes), and holds the tensors of each part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import NormalDist, median

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.learning.training.record_training import Positions, RecordHolder, unit_for
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.learning.training.step_recording import Replays, padded

Examples = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets on the device, shapes (n, ...)."""
Pass = tuple[npt.NDArray[np.int64], int]
"""Positions of records, shape (clients, width), or `EMPTY`, and the step's row of noise, or `EMPTY`."""
RARELY = 0.01
"""About the chance that a step of some clients takes a second pass."""
WIDTHS_AN_OCTAVE = 16
# One pass for all, unless more than this share of it would be places that no record fills.
MOST_EMPTY = 0.5
EMPTY = -1
"""In place of a position where no record is, and in place of a row of noise where a step goes on."""


@dataclass(frozen=True)
class Shape:
    """The tensor sizes for which a part (pass) of a DP-SGD step is recorded as one CUDA graph.

    `steps`: whose noise it holds at once, and as many passes. `examples`: shapes and kinds of inputs and
    targets, and where they lie if they stay there.
    """

    clients: int
    width: int
    steps: int
    momentum: float
    examples: tuple[tuple[tuple[int, ...], torch.dtype, int], ...]


@dataclass(eq=False)
class RecordedPass:
    """The tensors and the CUDA graph of one recorded part (pass) of a DP-SGD step.

    Attributes:
        ours: parameters, shape (clients, d).
        velocity: of momentum, shape (clients, d), or without entries.
        total: the sum of a step's passes so far, in integers, shape (clients, d), int64.
        examples: from which a pass gathers its records.
        places: positions in them of every pass, or `EMPTY`, shape (passes, clients, width).
        rows: of every pass the step's row of noise, or `EMPTY` where another pass of its step follows.
        noise: of every step, shape (steps, clients, d), float64.
        number: of the pass, shape (1,).
        bounds: clipping norms, shape (clients,), float64.
        unit: of the integers, shape (clients,), float64.
        stddevs, expected: of the noise, and sizes of batches, shape (clients, 1), float64.
        rate: the learning rate, one number.
    """

    ours: torch.Tensor
    velocity: torch.Tensor
    total: torch.Tensor
    examples: Examples
    places: torch.Tensor
    rows: torch.Tensor
    noise: torch.Tensor
    number: torch.Tensor
    bounds: torch.Tensor
    unit: torch.Tensor
    stddevs: torch.Tensor
    expected: torch.Tensor
    rate: torch.Tensor
    graph: Replays = field(init=False)

    def begin(
        self, ours: torch.Tensor, velocity: torch.Tensor, holders: Sequence[RecordHolder], rate: float
    ) -> None:
        """Copy clients' parameters and momentum vectors, both (clients, d), into the CUDA graph's tensors."""
        count = len(holders)
        self.ours[:count], self.ours[count:] = ours, ours[-1]
        self.velocity[:count], self.velocity[count:] = velocity, 0.0
        for each in (self.total, self.noise):
            each.zero_()
        self.places.fill_(EMPTY)
        self.rate.fill_(rate)
        steps = [holder.steps for holder in holders]
        for held, given in (
            (self.bounds, [each.clipping_norm for each in steps]),
            (self.unit, [unit_for(each.clipping_norm) for each in steps]),
            (self.stddevs[:, 0], [each.clipping_norm * each.noise_multiplier for each in steps]),
            (self.expected[:, 0], [holder.batches.expected_size for holder in holders]),
        ):
            held[:count], held[count:] = held.new_tensor(given), 1.0


def width_for(batches: Sequence[PoissonBatches], most: int) -> int:
    """Return how many records of each client to process at once, from sampling rates and record counts only.

    Of n clients it is the size that a batch exceeds with a chance of about `RARELY` / n, of the client with
    the largest; of the median client where most of it would be empty for the others.
    """
    spread = NormalDist().inv_cdf(1 - RARELY / len(batches))
    likely = [min(len(each), ceil(each.expected_size + spread * each.size_stddev)) for each in batches]
    width = max(likely)
    if sum(likely) < (1 - MOST_EMPTY) * width * len(likely):
        width = int(median(likely))
    width = padded(max(1, width), WIDTHS_AN_OCTAVE)
    return width if width <= most else ceil(width / ceil(width / most))


def passes_of(batches: Sequence[Positions], width: int, row: int) -> Iterator[Pass]:
    """Cut the clients' batches of one step into parts (passes); the last part adds the step's noise.

    Batches that are all empty take one, since their step has noise.
    """
    count = max(1, *(-(-len(batch) // width) for batch in batches))
    for number in range(count):
        places = np.full((len(batches), width), EMPTY, dtype=np.int64)
        for own, batch in zip(places, batches, strict=True):
            piece = batch[number * width : (number + 1) * width]
            own[: len(piece)] = piece
        yield places, row if number == count - 1 else EMPTY
