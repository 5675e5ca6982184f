"""Local steps of large models: a lane for each of some clients, all lanes recorded as one graph.

A small network's step is bound by the start of its kernels, so many clients share each of them. A large one
fills a GPU by itself, and the library's own convolutions are faster than products of patches with the weights
of many clients. Here a lane holds one client's model and trains it as a loop over clients would; lanes have a
stream each, so that a kernel which leaves part of the GPU idle has others beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.learning.models import trainable
from gdpfed.learning.models.build import DropoutKeys
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.step_recording import Replays
from gdpfed.methods.base import Theta
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples

MOST_LANES = 12
"""More gain nothing with ResNet-18 on an H100, and each has a model, gradients and activations in memory."""
TRIED_LANES = 2


class LaneRecorder(Protocol):
    """Records steps, as `Record` does, whose parts go side by side."""

    def __call__(self, step: Callable[[], None]) -> Replays:
        """Record a step; RuntimeError: it does something that no graph can."""

    def side_by_side(self, acts: Sequence[Callable[[], None]]) -> None:
        """Do all of these, in no order."""


@dataclass(eq=False)
class Lane:
    """One client's model with the optimizer of its step.

    `model`: trainable parameters are changed by a step. `optimizer`: v <- momentum v + g, p <- p - eta v.
    """

    model: nn.Module
    dropout: DropoutKeys
    parameters: list[nn.Parameter]
    optimizer: torch.optim.SGD

    @classmethod
    def of(cls, model: nn.Module, rate: torch.Tensor, momentum: float) -> "Lane":
        """A lane with a copy of a model; the rate is a tensor that may change between steps."""
        own = deepcopy(model)
        parameters = list(trainable(own).values())
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum, fused=True)
        return cls(own, DropoutKeys(own), parameters, optimizer)

    @torch.no_grad()
    def begin(self, parts: Sequence[torch.Tensor]) -> None:
        """Begin a client's round with these parameters and without momentum."""
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))
        for state in self.optimizer.state.values():
            if "momentum_buffer" in state:
                state["momentum_buffer"].zero_()

    def end(self) -> torch.Tensor:
        """The parameters, shape (d,)."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])


@dataclass(frozen=True)
class LanesInUse:
    """What lanes are for: one client's batch, and momentum."""

    x: tuple[int, ...]
    x_kind: torch.dtype
    y: tuple[int, ...]
    y_kind: torch.dtype
    momentum: float


@dataclass(eq=False)
class LaneInputs:
    """The batches of a step, a row for each lane; a graph reads them where they lie."""

    x: torch.Tensor
    y: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor


class LanedTraining(BatchedTraining):
    """tau steps of SGD for many clients, some of them side by side; other work as in `BatchedTraining`.

    Args:
        model, device, precision, loss: as of `BatchedTraining`.
        record: what records a step.
    """

    keeps_casts = False

    def __init__(
        self, model: nn.Module, device: torch.device, precision: str, loss: Loss, record: LaneRecorder
    ) -> None:
        super().__init__(model, device, precision, loss)
        self._record = record
        self._rate = torch.zeros((), device=device)
        self._use: LanesInUse | None = None
        self._inputs: LaneInputs
        self._lanes: list[Lane] = []
        self._graphs: dict[int, Replays] = {}

    def updates(
        self,
        theta: Theta,
        training: LocalTraining,
        examples: DeviceExamples,
        batches: Batches,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not training.is_sgd or added is not None:
            return super().updates(theta, training, examples, batches, added)
        clients = batches.positions.shape[1]
        starts = torch.from_numpy(theta).to(self.device).expand(clients, -1)
        weights = torch.from_numpy(batches.weights).to(self.device)
        keys = torch.from_numpy(batches.keys).to(self.device)
        found = torch.empty(starts.shape, dtype=torch.float64, device=self.device)
        for group in groups_of(clients):
            x, y = examples.take(batches.positions[:, group])
            graph = self._graph(x[0], y[0], training.momentum)
            self._rate.fill_(training.learning_rate)
            count = group.stop - group.start
            for lane, start in zip(self._lanes, starts[group], strict=False):
                lane.begin(start.split(self._sizes))
            held = self._inputs
            for step in range(len(x)):
                given = (x[step], y[step], weights[step, group], keys[step, group])
                for place, rows in zip((held.x, held.y, held.weights, held.keys), given, strict=True):
                    place[:count] = rows
                graph.replay()
            for row in range(count):
                place = found[group.start + row]
                torch.sub(self._lanes[row].end().double(), starts[group.start + row].double(), out=place)
        return found

    def tried(self, x: torch.Tensor, y: torch.Tensor) -> str:
        """Record a step of two lanes on given examples, (n, ...); return why that cannot be, or nothing."""
        inputs, labels = (torch.stack([given] * TRIED_LANES) for given in (x, y))
        try:
            self._graph(inputs, labels, momentum=0.0)
        except RuntimeError as error:
            return " ".join(str(error).split())[:200]
        finally:
            self.forget()
        return ""

    def forget(self) -> None:
        self._graphs.clear()
        self._lanes.clear()
        self._use = None

    def _graph(self, x: torch.Tensor, y: torch.Tensor, momentum: float) -> Replays:
        """The graph for one step of as many lanes as x and y have rows; their models have any parameters."""
        use = LanesInUse(x.shape[1:], x.dtype, y.shape[1:], y.dtype, momentum)
        if use != self._use:
            self.forget()
            self._use, self._inputs = use, self._new_inputs(use)
        count = len(x)
        if count not in self._graphs:
            while len(self._lanes) < count:
                self._lanes.append(Lane.of(self._model, self._rate, momentum))
            acts = [partial(self._take, lane, row) for row, lane in enumerate(self._lanes[:count])]
            self._graphs[count] = self._record(partial(self._record.side_by_side, acts))
        return self._graphs[count]

    def _new_inputs(self, use: LanesInUse) -> LaneInputs:
        def zeros(*size: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(MOST_LANES, *size, dtype=kind, device=self.device)

        return LaneInputs(
            zeros(*use.x, kind=use.x_kind),
            zeros(*use.y, kind=use.y_kind),
            zeros(use.y[0]),
            zeros(kind=torch.int64),
        )

    def _take(self, lane: Lane, row: int) -> None:
        """One step of a lane on its row of the inputs."""
        given = self._inputs
        lane.dropout.set(given.keys[row])
        with self._products():
            with self._lower():
                logits = lane.model(given.x[row])
            losses = self._loss(logits.float(), given.y[row])
            gradients = torch.autograd.grad((losses * given.weights[row]).sum(), lane.parameters)
        for parameter, gradient in zip(lane.parameters, gradients, strict=True):
            parameter.grad = gradient
        lane.optimizer.step()
        # A gradient that stays would keep its place in the memory that all graphs share.
        lane.optimizer.zero_grad(set_to_none=True)


def groups_of(num_clients: int) -> Iterator[slice]:
    """Clients in groups of nearly equal size, as few as `MOST_LANES` allows."""
    count = -(-num_clients // MOST_LANES)
    edges = [round(number * num_clients / count) for number in range(count + 1)] if count else []
    for begin, end in pairwise(edges):
        yield slice(begin, end)
