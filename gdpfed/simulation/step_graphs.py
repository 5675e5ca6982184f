"""Local SGD steps of many clients as recorded CUDA graphs, one graph for each shape of tensors.

What changes from step to step is copied into the tensors of a graph: examples, labels, weights, keys of
dropout and, once a round, parameters and the learning rate.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass, field

import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.errors import words_of
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.step_recording import Record, Replays, held_or_made, padded
from gdpfed.methods.base import Theta
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples

logger = logging.getLogger(__name__)

TRIED_CLIENTS = 2
SIZES_AN_OCTAVE = 4


@dataclass(frozen=True)
class Shape:
    """The key of a recorded SGD step: shapes, types, momentum, and whether a vector is added to gradients."""

    clients: int
    x: tuple[int, ...]
    x_kind: torch.dtype
    y: tuple[int, ...]
    y_kind: torch.dtype
    momentum: float
    adds: bool


@dataclass(eq=False)
class RecordedStep:
    """The tensors of a recorded SGD step and its CUDA graph; their rows stand for clients, or are padding.

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
        """Begin a round: load start parameters, shape (d,) or (clients, d), into the graph's tensors."""
        self.ours[:clients] = start
        self.ours[clients:] = start[..., -1, :] if start.ndim > 1 else start
        self.velocity.zero_()
        self.weights.zero_()
        self.minus_rate.fill_(-rate)
        if added is not None:
            self.added[:clients] = added


class GraphedTraining(BatchedTraining):
    """Trains many clients at once by SGD steps that are recorded CUDA graphs.

    Once a step cannot be recorded, no other is: all are called, and a line of the log says why.

    The parameters after a step are p + (-eta) v, rounded once, as those of a step that is not recorded: a GPU
    rounds twice where the sign stands apart from eta, as in addcmul with value -1.

    Args:
        model, device, precision, loss, apart: as of `BatchedTraining`.
        record: what records a step.
    """

    keeps_casts = False

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        precision: str,
        loss: Loss,
        record: Record,
        *,
        apart: bool = False,
    ) -> None:
        super().__init__(model, device, precision, loss, apart=apart)
        self._record = record
        self._steps: OrderedDict[Shape, RecordedStep] = OrderedDict()
        self._given_up = False

    def updates(
        self,
        theta: Theta,
        training: LocalTraining,
        examples: DeviceExamples,
        batches: Batches,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not training.is_sgd or self._given_up:
            return super().updates(theta, training, examples, batches, added)
        clients = batches.positions.shape[1]
        start = torch.from_numpy(theta).to(self.device)
        weights = torch.from_numpy(batches.weights).to(self.device)
        keys = torch.from_numpy(batches.keys).to(self.device)
        x, y = examples.take(batches.positions)
        try:
            step = self._step(self._shape(x[0], y[0], training, added is not None), theta.shape[-1])
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._given_up = True
            self.forget()
            said = words_of(error, 200)
            logger.warning("steps are called one by one from now on, to the same bits: %s", said)
            return super().updates(theta, training, examples, batches, added)
        step.begin(start, clients, training.learning_rate, added)
        for number in range(len(x)):
            for held, given in ((step.x, x), (step.y, y), (step.weights, weights), (step.keys, keys)):
                held[:clients] = given[number]
            step.graph.replay()
        return step.ours[:clients].double().sub_(start.double())

    def tried(self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, momentum: float) -> str:
        """Test whether a step on examples x and y can be a CUDA graph; return the error, "" if none."""
        training = LocalTraining(1, len(x), 1.0, momentum)
        inputs, labels = (torch.stack([given] * TRIED_CLIENTS) for given in (x, y))
        try:
            self._step(self._shape(inputs, labels, training, adds=False), len(theta))
        except RuntimeError as error:
            return words_of(error, 200)
        finally:
            self.forget()
        return ""

    def forget(self) -> None:
        self._steps.clear()

    def _shape(self, x: torch.Tensor, y: torch.Tensor, training: LocalTraining, adds: bool) -> Shape:
        clients = padded(len(x), SIZES_AN_OCTAVE)
        return Shape(clients, x.shape[1:], x.dtype, y.shape[1:], y.dtype, training.momentum, adds)

    def _step(self, shape: Shape, dimension: int) -> RecordedStep:
        def make() -> RecordedStep:
            step = self._new_step(shape, dimension)
            step.graph = self._record(lambda: self._take(step, shape))
            return step

        return held_or_made(self._steps, shape, make)

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
        """Take one SGD step on the graph's tensors: v <- momentum v + g, p <- p - eta v."""
        gradient = self.gradients(step.ours, step.x, step.y, step.weights, step.keys)
        with torch.no_grad():
            if shape.adds:
                gradient = gradient + step.added
            if shape.momentum:
                gradient = step.velocity.mul_(shape.momentum).add_(gradient)
            step.ours.addcmul_(gradient, step.minus_rate)
