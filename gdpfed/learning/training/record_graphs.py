"""Records steps of DP-SGD as CUDA graphs, which a GPU repeats without running Python.

A step is that of `record_training.py`, by the same formula and from the same bits in the same order: batch,
noise, batch, noise. What is different is how it is carried out. A graph is for one shape, so a batch is
padded to a width, with places that no record fills and that count 0. The width follows from rates and numbers
of records alone, which are public, and no batch is ever cut to it:

* A batch of m records takes ceil(m / width) passes, at least one. Pass j takes the records j width to
  (j + 1) width of the batch, so every record of it is in exactly one pass.
* Every pass adds its clipped sum, in integers, to the step's total. Only the last one adds the noise, divides
  by the expected batch, moves the parameters and sets the total to 0.

So what is noised is the sum over the whole batch, whatever the width is, and no accounting needs to know how
likely a larger draw is. The number of passes shows in the time of a step alone, as the size of a batch does
without graphs; neither a simulation nor a node tells anyone the time of a single step.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.errors import words_of
from gdpfed.learning.training.optimizers import LocalTraining, difference
from gdpfed.learning.training.record_training import (
    EXACT_BYTES,
    Positions,
    RecordGradients,
    RecordHolder,
    Take,
)
from gdpfed.learning.training.recorded_pass import (
    EMPTY,
    Examples,
    Pass,
    RecordedPass,
    Shape,
    passes_of,
    width_for,
)
from gdpfed.learning.training.secret_draws import PoissonBatches, fill, noise_shape, normal_of
from gdpfed.learning.training.step_recording import Record, held_or_made, padded
from gdpfed.record_steps import RecordSteps

CLIENTS_AN_OCTAVE = 4
STEPS_AHEAD = 4
"""Steps whose bits are drawn at once: while the device computes some, the next ones are drawn."""
MOST_UNDER_WAY = 2
"""How many times the steps that are drawn at once the host may be ahead of the device."""
NOISE_BYTES, NOISE_SHARE = 256 * 2**20, 1 / 16
"""Of the noise that is drawn ahead, which takes seven times as much while it is made, and of the memory."""


class RecordGraphs:
    """Takes DP-SGD steps on records by replaying recorded CUDA graphs.

    Args:
        gradients: of the model.
        record: what records a pass; None calls it each time, to the same bits.
        examples: on the device, to which positions lead; None where each pass is given its records.
    """

    def __init__(
        self, gradients: RecordGradients, record: Record | None, examples: Examples | None = None
    ) -> None:
        self._gradients, self._record, self._examples = gradients, record, examples
        self._device = gradients.device
        self._held: OrderedDict[Shape, RecordedPass] = OrderedDict()
        self._most_records: int | None = None
        self._noise_bytes = NOISE_BYTES

    def updates(
        self,
        theta: npt.NDArray[np.float32],
        training: LocalTraining,
        holders: Sequence[RecordHolder],
        take: Take,
    ) -> torch.Tensor:
        """Return each client's update theta_i - theta after its DP-SGD steps, with or without momentum."""
        start = torch.from_numpy(theta.copy()).to(self._device)
        ours = start.expand(len(holders), -1).clone()
        velocity = torch.zeros(len(ours), ours.shape[1] if training.momentum else 0, device=self._device)
        ends = sorted({holder.steps.num_steps for holder in holders if len(holder.records)})
        for begin, end in zip([0, *ends], ends, strict=False):
            now = [k for k, each in enumerate(holders) if len(each.records) and each.steps.num_steps > begin]
            taking_part = [holders[k] for k in now]
            held = self._pass_for(taking_part, training.momentum, take)
            held.begin(ours[now], velocity[now], taking_part, training.learning_rate)
            self._run(held, taking_part, end - begin, take)
            ours[now], velocity[now] = held.ours[: len(now)], held.velocity[: len(now)]
        return difference(ours, start)

    def forget(self) -> None:
        """Free the memory of all recorded CUDA graphs."""
        self._held.clear()

    def _run(self, held: RecordedPass, holders: Sequence[RecordHolder], num_steps: int, take: Take) -> None:
        """Take DP-SGD steps, while the CPU draws batches and noise for the next ones."""
        ahead, width = len(held.noise), held.places.shape[2]
        under_way: deque[torch.cuda.Event] = deque()
        for begin in range(0, num_steps, ahead):
            if len(under_way) == MOST_UNDER_WAY:
                # What was drawn for these steps is in memory until the device has read it.
                under_way.popleft().synchronize()
            batches, words = self._draws(holders, min(ahead, num_steps - begin), held.ours.shape[1])
            noise = normal_of(self._sent(words), held.ours.shape[1])
            held.noise[: len(noise), : len(holders)] = noise.mul_(held.stddevs[: len(holders)])
            passes = [each for row, step in enumerate(batches) for each in passes_of(step, width, row)]
            at_once = ahead if self._examples is not None else 1
            for first in range(0, len(passes), at_once):
                self._replay(held, passes[first : first + at_once], take)
            if self._on_gpu:
                under_way.append(torch.cuda.current_stream(self._device).record_event())

    def _draws(
        self, holders: Sequence[RecordHolder], steps: int, dimension: int
    ) -> tuple[list[list[Positions]], torch.Tensor]:
        """Draw batches and noise bits for some steps of several clients."""
        # What is left of a client without noise is multiplied by 0.
        words = torch.empty(
            (steps, len(holders), *noise_shape(dimension)), dtype=torch.int64, pin_memory=self._on_gpu
        )
        batches = []
        for step in words:
            drawn = []
            for own, holder in zip(step, holders, strict=True):
                drawn.append(holder.draw())
                if holder.steps.noise_multiplier:
                    fill(own, holder.random_bytes)
            batches.append(drawn)
        return batches, words

    def _replay(self, held: RecordedPass, passes: Sequence[Pass], take: Take) -> None:
        places = np.stack([each for each, _ in passes])
        if self._examples is None:
            ((given, _),) = passes
            for ours, theirs in zip(held.examples, take(given.clip(min=0)), strict=True):
                ours[: given.size] = theirs.flatten(0, 1)
            places = np.where(places == EMPTY, EMPTY, np.arange(given.size).reshape(given.shape))
        held.places[: len(passes), : places.shape[1]] = self._sent(torch.from_numpy(places))
        held.rows[: len(passes)] = self._sent(torch.tensor([row for _, row in passes]))
        held.number.zero_()
        for _ in passes:
            held.graph.replay()

    def _sent(self, values: torch.Tensor) -> torch.Tensor:
        """Copy values to the device without waiting until they are there."""
        if not self._on_gpu:
            return values
        return values.pin_memory().to(self._device, non_blocking=True)

    @property
    def _on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def _pass_for(self, holders: Sequence[RecordHolder], momentum: float, take: Take) -> RecordedPass:
        """Return a CUDA graph for a part of a step; if GPU memory runs out, record it for fewer records."""
        examples = self._examples or take(holders[0].records[:1])
        while True:
            shape = self._shape(holders, momentum, examples)
            try:
                return self._recorded(shape, examples)
            except torch.cuda.OutOfMemoryError:
                self.forget()
                if shape.width == 1:
                    raise
                self._most_records = shape.clients * shape.width // 2

    def _shape(self, holders: Sequence[RecordHolder], momentum: float, examples: Examples) -> Shape:
        if self._most_records is None:
            # Once, since graphs take memory, and other widths would be other graphs.
            least = EXACT_BYTES * sum(self._gradients.sizes)
            self._most_records = self._gradients.records_at_once(least_bytes=least)
            self._noise_bytes = min(NOISE_BYTES, int(NOISE_SHARE * self._gradients.memory_budget()))
        clients = padded(len(holders), CLIENTS_AN_OCTAVE)
        width = width_for([holder.batches for holder in holders], max(1, self._most_records // clients))
        steps = self._noise_bytes // (8 * clients * sum(self._gradients.sizes))
        kinds = [
            (each.shape[1:], each.dtype, each.data_ptr() if self._examples is not None else 0)
            for each in examples
        ]
        return Shape(clients, width, max(1, min(STEPS_AHEAD, steps)), momentum, tuple(kinds))

    def _recorded(self, shape: Shape, examples: Examples) -> RecordedPass:
        def make() -> RecordedPass:
            held = self._new_pass(shape, examples)
            act = partial(self._pass, held, shape.momentum)
            held.graph = Called(act) if self._record is None else self._record(act)
            return held

        return held_or_made(self._held, shape, make)

    def _new_pass(self, shape: Shape, examples: Examples) -> RecordedPass:
        dimension = sum(self._gradients.sizes)

        def filled(*size: int, value: float = 0, kind: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.full(size, value, dtype=kind, device=self._device)

        if self._examples is None:
            size = shape.clients * shape.width
            x, y = (filled(size, *each.shape[1:], kind=each.dtype) for each in examples)
            examples = x, y
        return RecordedPass(
            ours=filled(shape.clients, dimension),
            velocity=filled(shape.clients, dimension if shape.momentum else 0),
            total=filled(shape.clients, dimension, kind=torch.int64),
            examples=examples,
            places=filled(shape.steps, shape.clients, shape.width, value=EMPTY, kind=torch.int64),
            rows=filled(shape.steps, kind=torch.int64),
            noise=filled(shape.steps, shape.clients, dimension, kind=torch.float64),
            number=filled(1, kind=torch.int64),
            bounds=filled(shape.clients, value=1, kind=torch.float64),
            unit=filled(shape.clients, value=1, kind=torch.float64),
            stddevs=filled(shape.clients, 1, value=1, kind=torch.float64),
            expected=filled(shape.clients, 1, value=1, kind=torch.float64),
            rate=filled(),
        )

    def _pass(self, held: RecordedPass, momentum: float) -> None:
        """Add up clipped gradients of a part of a batch; after the last part, add noise and take the step."""
        # Warm-up and recording go through the first place again and again.
        number = held.number.remainder(len(held.rows))
        places = held.places.index_select(0, number)[0]
        where = places.clamp(min=0).flatten()
        x, y = (each.index_select(0, where).view(*places.shape, *each.shape[1:]) for each in held.examples)
        present = places != EMPTY
        sums = self._gradients.truncated_sums(held.ours, x, y, present, held.bounds, held.unit)
        with torch.no_grad():
            row = held.rows.index_select(0, number)
            is_last = row != EMPTY
            total = held.total.add_(sums)
            noise = held.noise.index_select(0, row.clamp(min=0))[0]
            noised = ((total.double() * held.unit[:, None] + noise) / held.expected).float()
            if momentum:
                noised = held.velocity * momentum + noised
                held.velocity.copy_(torch.where(is_last, noised, held.velocity))
            moved = torch.addcmul(held.ours, noised, held.rate, value=-1)
            held.ours.copy_(torch.where(is_last, moved, held.ours))
            total.masked_fill_(is_last, 0)
            held.number.add_(1)

    def tried(self, theta: npt.NDArray[np.float32], x: torch.Tensor, y: torch.Tensor) -> str:
        """Try to record DP-SGD steps on `x`, `y` as CUDA graphs; return "" on success, else an error text.

        They are compared, bit for bit, with the same passes that are called one by one.
        """
        steps = RecordSteps(num_steps=3, batch_rates=(0.5,), clipping_norm=1.0, noise_multiplier=1.0)
        training, groups = LocalTraining(1, 1, 0.1, 0.5), np.zeros(len(x), np.int64)

        def take(places: Positions) -> Examples:
            where = torch.from_numpy(places).to(self._device)
            return x.to(self._device)[where], y.to(self._device)[where]

        def end_of(graphs: RecordGraphs) -> torch.Tensor:
            batches = PoissonBatches(steps.batch_rates, groups)
            holder = RecordHolder(np.arange(len(x)), steps, batches, np.random.default_rng(0).bytes)
            return graphs.updates(theta, training, [holder], take)

        # Layers that draw, such as dropout, draw nothing here.
        self._gradients.model.eval()
        try:
            recorded, called = (end_of(RecordGraphs(self._gradients, each)) for each in (self._record, None))
        except RuntimeError as error:
            return words_of(error, 200)
        finally:
            self._gradients.model.train()
        return "" if torch.equal(recorded, called) else "its replays have other bits than its calls"


@dataclass(frozen=True)
class Called:
    """Stands in for a CUDA graph where none is recorded: `replay` calls the Python function."""

    act: Callable[[], None]

    def replay(self) -> None:
        """Take the training steps by calling their Python function, since no CUDA graph is recorded."""
        self.act()
