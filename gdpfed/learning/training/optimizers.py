"""Optimizers for local training and schedules for its learning rate, by name.

An optimizer is a function ``(parameters, lr, **options) -> torch.optim.Optimizer``, like torch's own classes.
Its parameters are vectors of shape (d,), one for each client. An optimizer of this project gets those of many
clients; any other one gets a single client's, so that it can couple none. Its options are numbers. A schedule
is a function ``(round_index, num_rounds) -> factor``.
Another package adds one as an entry point of the group ``gdpfed.optimizers`` or ``gdpfed.schedules``, or for
one process with ``register``. No privacy accounting depends on them: the result of training is clipped and
noised afterwards, or the gradients were noised before.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gdpfed.errors import LearningError, words_of
from gdpfed.registry import Registry, is_ours

Rows = slice | list[int]
OPTIMIZERS: Registry[Callable[..., torch.optim.Optimizer]] = Registry(
    "optimizer", "gdpfed.optimizers", error=LearningError
)
SCHEDULES: Registry[Callable[[int, int], float]] = Registry(
    "schedule", "gdpfed.schedules", error=LearningError
)


@dataclass(frozen=True)
class LocalTraining:
    """The settings of local training in one round: tau steps at this round's learning rate eta_t.

    `optimizer`: its name. `optimizer_options`: JSON with numbers by name; "" without options. `proximal`: mu
    of FedProx (Li et al., arXiv:1812.06127), which adds mu (theta_i - theta) to every gradient.
    """

    local_steps: int
    batch_size: int
    learning_rate: float
    momentum: float
    optimizer: str = "sgd"
    optimizer_options: str = ""
    proximal: float = 0.0

    @property
    def is_sgd(self) -> bool:
        """Whether training is plain SGD, with or without momentum: no other option and no proximal term."""
        return self.optimizer == "sgd" and not self.optimizer_options and self.proximal == 0


class Descent:
    """Takes one round's optimizer steps on the parameters of one client, (d,), or of several, (clients, d).

    `parameters`: the start models of the clients; the steps change them in place. `added`: added to every
    gradient, of the shape of `parameters`; None for nothing.
    """

    def __init__(
        self, parameters: torch.Tensor, training: LocalTraining, added: torch.Tensor | None = None
    ) -> None:
        self._parameters, self._training, self._added = parameters, training, added
        self._start = parameters.clone() if training.proximal else None
        self._velocity = torch.zeros_like(parameters) if training.momentum else None
        self._rows = list(parameters.view(-1, parameters.shape[-1]))
        self._optimizers: list[torch.optim.Optimizer] = []
        if training.optimizer != "sgd" or training.optimizer_options:
            together = is_ours(OPTIMIZERS.get(training.optimizer))
            every = [self._rows] if together else [[row] for row in self._rows]
            self._optimizers = [make_optimizer(rows, training) for rows in every]

    @torch.no_grad()
    def step(self, gradient: torch.Tensor, among: Rows = slice(None)) -> None:
        """Take one optimizer step along these gradients, for all clients or only for those in `among`.

        For sgd without options, it is the step of torch.optim.SGD: v <- momentum * v + g, p <- p - eta v.
        """
        whole = isinstance(among, slice)
        ours = self._parameters if whole else self._parameters[among]
        if self._added is not None:
            gradient = gradient + self._added[among]
        if self._start is not None:
            gradient = gradient + self._training.proximal * (ours - self._start[among])
        if self._optimizers:
            self._step_optimizers(gradient, among)
            return
        if self._velocity is not None:
            velocity = self._velocity if whole else self._velocity[among]
            gradient = velocity.mul_(self._training.momentum).add_(gradient)
            if not whole:
                self._velocity[among] = gradient
        ours.sub_(gradient, alpha=self._training.learning_rate)
        if not whole:
            self._parameters[among] = ours

    def _step_optimizers(self, gradient: torch.Tensor, among: Rows) -> None:
        """Take a torch optimizer's step for the clients in `among`; other clients' models do not change."""
        chosen = list(range(len(self._rows)))[among] if isinstance(among, slice) else among
        for row in self._rows:
            row.grad = None
        for k, own in zip(chosen, gradient.view(-1, gradient.shape[-1]), strict=True):
            self._rows[k].grad = own
        for k in chosen if len(self._optimizers) > 1 else [0]:
            self._optimizers[k].step()


def difference(ends: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return ends - starts in float64, on their device; shapes that broadcast.

    On a CPU numpy widens both piece by piece: whole copies in float64 take many times as long.
    """
    if ends.device.type != "cpu":
        return ends.double() - starts.double()
    # numpy would warn of infinity minus infinity, and so say something of the data.
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.subtract(ends.numpy(), starts.numpy(), dtype=np.float64))


def make_optimizer(rows: Sequence[torch.Tensor], training: LocalTraining) -> torch.optim.Optimizer:
    """Make the optimizer that the settings name, for parameter vectors of shape (d,), one for each client.

    Raises LearningError: it does not take these options.
    """
    options = json.loads(training.optimizer_options or "{}")
    if training.momentum:
        options["momentum"] = training.momentum
    try:
        return OPTIMIZERS.get(training.optimizer)(rows, lr=training.learning_rate, **options)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{name}={value:g}" for name, value in options.items()) or "no options"
        raise LearningError(
            f"training.optimizer={training.optimizer} does not take {given} "
            f"({words_of(error)}): change training.optimizer_options; training.momentum=0 goes with any"
        ) from error


def check_training(training: LocalTraining) -> None:
    """Raise LearningError if the optimizer is unknown, or fails in a step."""
    try:
        Descent(torch.ones(1, 3), training).step(torch.ones(1, 3))
    except LearningError:
        raise
    except Exception as error:
        raise LearningError(
            f"training.optimizer={training.optimizer} cannot step along a given gradient "
            f"({words_of(error)}): choose another one"
        ) from error


def sgd(parameters: Sequence[torch.Tensor], lr: float, **options: Any) -> torch.optim.Optimizer:
    """torch.optim.SGD, with its options: weight_decay, dampening, nesterov."""
    return torch.optim.SGD(parameters, lr=lr, **options)


def adam(
    parameters: Sequence[torch.Tensor], lr: float, *, beta1: float = 0.9, beta2: float = 0.999, **options: Any
) -> torch.optim.Optimizer:
    """torch.optim.Adam (Kingma and Ba, arXiv:1412.6980), with its options: eps, weight_decay, amsgrad."""
    return torch.optim.Adam(parameters, lr=lr, betas=(beta1, beta2), **options)


def adamw(
    parameters: Sequence[torch.Tensor], lr: float, *, beta1: float = 0.9, beta2: float = 0.999, **options: Any
) -> torch.optim.Optimizer:
    """torch.optim.AdamW (Loshchilov and Hutter, arXiv:1711.05101): Adam with decoupled weight decay."""
    return torch.optim.AdamW(parameters, lr=lr, betas=(beta1, beta2), **options)


OPTIMIZERS.register("adam", adam)
OPTIMIZERS.register("adamw", adamw)
OPTIMIZERS.register("sgd", sgd)
SCHEDULES.register("constant", lambda index, rounds: 1.0)
SCHEDULES.register("cosine", lambda index, rounds: (1 + math.cos(math.pi * index / rounds)) / 2)
SCHEDULES.register("linear", lambda index, rounds: 1 - index / rounds)
