"""Local steps as graphs: what a GPU computes in a step is recorded once a shape, and repeated without Python.

A small network's step is some hundred kernels of microseconds each, for which a GPU waits: Python starts one
after the other. A graph of all of them starts at once. It repeats them on the tensors that it was recorded
on, so what changes from step to step is copied into these: examples, labels, weights, keys of dropout and,
once a round, parameters and the learning rate.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.methods.base import Theta
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples

WARM_UPS = 2
"""Steps before one is recorded: libraries choose their kernels and take their memory in the first ones."""
MOST_SHAPES = 8
"""Graphs that are kept, each with its memory; of more shapes the one that was used longest ago goes."""
TRIED_CLIENTS = 2
SIZES_AN_OCTAVE = 4


class Replays(Protocol):
    """A recorded step."""

    def replay(self) -> None:
        """Do it again, on the tensors that it was recorded on."""


Record = Callable[[Callable[[], None]], Replays]
"""Records a step, which may be carried out some times for it."""


class CudaGraphs:
    """Records steps as graphs of CUDA on one device.

    All share one pool of memory, since a step leaves nothing in it: each may use what another one used.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._streams: list[torch.cuda.Stream] = []

    def __call__(self, step: Callable[[], None]) -> Replays:
        """Record a step; RuntimeError: it does something that no graph can, as to wait for the device."""
        current, aside = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                step()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Engines of other GPUs go on in threads of their own.
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            step()
        return graph

    def side_by_side(self, acts: Sequence[Callable[[], None]]) -> None:
        """Do all of these, each on a stream of its own; they begin after, and end before, what is around."""
        current = torch.cuda.current_stream(self._device)
        while len(self._streams) < len(acts):
            self._streams.append(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]
        streams = self._streams[: len(acts)]
        for act, stream in zip(acts, streams, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                act()
        for stream in streams:
            current.wait_stream(stream)


def padded(num_clients: int) -> int:
    """The number of clients of a graph for so many: of 4, 5, 6 and 7 times powers of two the next one.

    A graph is for one number of clients, and cohorts differ. So there are few shapes, and at most a quarter
    is computed in vain.
    """
    unit = 1
    while unit * 2 * SIZES_AN_OCTAVE <= num_clients:
        unit *= 2
    return -(-num_clients // unit) * unit


@dataclass(frozen=True)
class Shape:
    """What a graph is for: sizes, kinds of numbers, and what a step does beside its gradient."""

    clients: int
    x: tuple[int, ...]
    x_kind: torch.dtype
    y: tuple[int, ...]
    y_kind: torch.dtype
    momentum: float
    adds: bool


@dataclass(eq=False)
class RecordedStep:
    """The tensors of a step and its graph; all have a row for each client, those of the padding too.

    `ours`: parameters, shape (clients, d). `added`: to every gradient. `minus_rate`: -eta, one number.
    """

    ours: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor
    velocity: torch.Tensor
    added: torch.Tensor
    minus_rate: torch.Tensor
    graph: Replays = field(init=False)

    def begin(self, start: torch.Tensor, clients: int, rate: float, added: torch.Tensor | None) -> None:
        """Begin a round: parameters of shape (d,) or (clients, d); the padding has examples of weight 0."""
        self.ours[:clients] = start
        self.ours[clients:] = start[..., -1, :] if start.ndim > 1 else start
        self.velocity.zero_()
        self.weights.zero_()
        self.minus_rate.fill_(-rate)
        if added is not None:
            self.added[:clients] = added


class GraphedTraining(BatchedTraining):
    """tau steps of SGD for many clients, each step a graph; other optimizers as in `BatchedTraining`.

    The parameters after a step are p + (-eta) v, rounded once, as those of a step that is not recorded: a GPU
    rounds twice where the sign stands apart from eta, as in addcmul with value -1.

    Args:
        model, device, precision, loss: as of `BatchedTraining`.
        record: what records a step.
    """

    keeps_casts = False

    def __init__(
        self, model: nn.Module, device: torch.device, precision: str, loss: Loss, record: Record
    ) -> None:
        super().__init__(model, device, precision, loss)
        self._record = record
        self._steps: OrderedDict[Shape, RecordedStep] = OrderedDict()

    def updates(
        self,
        theta: Theta,
        training: LocalTraining,
        examples: DeviceExamples,
        batches: Batches,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not training.is_sgd:
            return super().updates(theta, training, examples, batches, added)
        clients = batches.positions.shape[1]
        start = torch.from_numpy(theta).to(self.device)
        weights = torch.from_numpy(batches.weights).to(self.device)
        keys = torch.from_numpy(batches.keys).to(self.device)
        x, y = examples.take(batches.positions)
        step = self._step(self._shape(x[0], y[0], training, added is not None), theta.shape[-1])
        step.begin(start, clients, training.learning_rate, added)
        for number in range(len(x)):
            for held, given in ((step.x, x), (step.y, y), (step.weights, weights), (step.keys, keys)):
                held[:clients] = given[number]
            step.graph.replay()
        return step.ours[:clients].double() - start.double()

    def tried(self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, momentum: float) -> str:
        """Record a step on given examples, (n, ...) and (n, ...); return why that cannot be, or nothing."""
        training = LocalTraining(1, len(x), 1.0, momentum)
        inputs, labels = (torch.stack([given] * TRIED_CLIENTS) for given in (x, y))
        try:
            self._step(self._shape(inputs, labels, training, adds=False), len(theta))
        except RuntimeError as error:
            return " ".join(str(error).split())[:200]
        finally:
            self.forget()
        return ""

    def forget(self) -> None:
        self._steps.clear()

    def _shape(self, x: torch.Tensor, y: torch.Tensor, training: LocalTraining, adds: bool) -> Shape:
        clients = padded(len(x))
        return Shape(clients, x.shape[1:], x.dtype, y.shape[1:], y.dtype, training.momentum, adds)

    def _step(self, shape: Shape, dimension: int) -> RecordedStep:
        if shape in self._steps:
            self._steps.move_to_end(shape)
            return self._steps[shape]
        if len(self._steps) == MOST_SHAPES:
            self._steps.popitem(last=False)
        step = self._new_step(shape, dimension)
        step.graph = self._record(lambda: self._take(step, shape))
        self._steps[shape] = step
        return step

    def _new_step(self, shape: Shape, dimension: int) -> RecordedStep:
        def zeros(*size: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape.clients, *size, dtype=kind, device=self.device)

        return RecordedStep(
            ours=zeros(dimension),
            x=zeros(*shape.x, kind=shape.x_kind),
            y=zeros(*shape.y, kind=shape.y_kind),
            weights=zeros(shape.y[0]),
            keys=zeros(kind=torch.int64),
            velocity=zeros(dimension if shape.momentum else 0),
            added=zeros(dimension if shape.adds else 0),
            minus_rate=torch.zeros((), device=self.device),
        )

    def _take(self, step: RecordedStep, shape: Shape) -> None:
        """One step on the tensors: v <- momentum v + g, p <- p - eta v."""
        gradient = self.gradients(step.ours, step.x, step.y, step.weights, step.keys)
        with torch.no_grad():
            if shape.adds:
                gradient = gradient + step.added
            if shape.momentum:
                gradient = step.velocity.mul_(shape.momentum).add_(gradient)
            step.ours.addcmul_(gradient, step.minus_rate)
