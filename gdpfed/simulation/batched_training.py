"""Local SGD of many clients at once: their batches, stacked parameters, and one step for all."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fastgrad.im2col import is_plain, unfolded_conv2d
from fastgrad.lowered import LoweredModel, pieces_of
from fastgrad.modules import Loss, cross_entropy, fuse_recurrences
from fastgrad.precision import float32_products, one_thread
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.works.update import batch_generator
from gdpfed.late_import import late_import
from gdpfed.learning.data import Split
from gdpfed.learning.models import trainable
from gdpfed.learning.models.build import DropoutKeys, draw_keys
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import draw_batches
from gdpfed.learning.training.optimizers import Descent, LocalTraining, difference
from gdpfed.methods.base import Theta

if TYPE_CHECKING:
    from fastgrad.program import Program


class DeviceExamples:
    """The training examples, stored once for all clients: in GPU memory, or in main memory for a CPU.

    `resident`: inputs and labels in GPU memory; None on a CPU.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self._train = task.load().train
        self._device = device
        self.resident: tuple[torch.Tensor, torch.Tensor] | None = None
        if device.type != "cpu":
            everything = self._train.take(np.arange(len(self._train)))
            self.resident = self._moved(everything)

    def take(self, positions: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels at these positions, on the device; shapes (*positions.shape, ...)."""
        if self.resident is None:
            x, y = self._moved(self._train.take(positions.reshape(-1)))
        else:
            where = torch.from_numpy(positions.reshape(-1)).to(self._device)
            x, y = (each[where] for each in self.resident)
        return x.view(*positions.shape, *x.shape[1:]), y.view(*positions.shape, *y.shape[1:])

    def _moved(self, examples: Split) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(examples.x).to(self._device), torch.from_numpy(examples.y).to(self._device)


@dataclass(frozen=True, eq=False)
class Batches:
    """The training batches of some clients, one for each local step.

    A client with fewer examples than a batch holds takes all of them. One of its own, with weight 0, fills
    the rest of its batch: 0 times infinity is NaN, so another client's example could count in spite of its
    weight. A client without examples has only weights of 0, and its gradients are 0. `positions`: in the
    training split, shape (steps, clients, batch size), int64; a batch has no more places than the largest
    client could fill. `weights`: of every example in its client's loss; a step's weights add up to 1 or are
    all 0. `keys`: by which dropout draws, shape (steps, clients), int64; 0 where it does not.
    """

    positions: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    keys: npt.NDArray[np.int64]

    @classmethod
    def draw(cls, order: TrainingOrder, clients: Sequence[int], *, with_keys: bool = False) -> "Batches":
        """Draw the batches that these clients would draw on their nodes, with keys for dropout layers."""
        width = min(order.training.batch_size, order.task.largest_part())
        shape = (order.training.local_steps, len(clients), width)
        positions, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        keys = np.zeros(shape[:2], np.int64)
        for column, client_id in enumerate(clients):
            own = order.task.client_indices(client_id)
            if len(own) == 0:
                continue
            size = min(order.training.batch_size, len(own))
            rng = batch_generator(order, client_id)
            drawn = draw_batches(len(own), order.training, rng)
            if with_keys:
                keys[:, column] = draw_keys(order.training.local_steps, rng)
            positions[:, column] = own[0]
            positions[:, column, :size] = own[drawn]
            weights[:, column, :size] = 1 / size
        return cls(positions, weights, keys)


class BatchedOperations(TorchFunctionMode):
    """While active, computes 2-d convolutions as matrix products, which are faster for many clients.

    The values are the same; vmap turns these forms into one operation for all clients, and the others into
    slow ones or a loop. Every other call passes through.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is functional.conv2d and is_plain(*args, **given):
            return unfolded_conv2d(*args[:5], **{key: given[key] for key in given.keys() & _USED})
        if (
            func is functional.adaptive_avg_pool2d
            and len(args) == 2
            and not given
            and args[1] in (1, (1, 1), [1, 1])
        ):
            return args[0].mean(dim=(-2, -1), keepdim=True)
        return func(*args, **given)


_USED = {"input", "weight", "bias", "stride", "padding"}


class BatchedTraining:
    """Trains many clients at once, each with its own parameters, for a given number of local steps.

    `model`: the architecture; written in operations that ``torch.func.vmap`` knows. `device`: where to train.
    `precision`: float32, tf32 or bf16, in products and convolutions. `loss`: one figure a record. `apart`:
    whether the loss is given each client's records by themselves, as on a node, so that it can couple none.
    `renew`: builds the model again for each call of `updates`, if clients may leave something in it.

    `draws`: whether layers of the model draw by keys. `keeps_casts`: whether copies in bf16 may
    be used again within a step.
    """

    keeps_casts = True

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        precision: str = "float32",
        loss: Loss = cross_entropy,
        *,
        apart: bool = False,
        renew: Callable[[], nn.Module] | None = None,
    ) -> None:
        self.device = device
        self.precision = precision
        self._loss, self._apart, self._renew = loss, apart, renew
        self._model = self._prepared(model)
        self.draws = bool(self._dropout)
        self._names, parameters = zip(*trainable(model).items(), strict=True)
        self._shapes = [parameter.shape for parameter in parameters]
        self._sizes = [parameter.numel() for parameter in parameters]

    def _prepared(self, model: nn.Module) -> nn.Module:
        model.to(self.device).train()
        if self.device.type == "cuda":
            fuse_recurrences(model, self.device)
        self._dropout = DropoutKeys(model)
        return model

    def updates(
        self,
        theta: Theta,
        training: LocalTraining,
        examples: DeviceExamples,
        batches: Batches,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return each client's update theta_i - theta, shape (clients, d), float64, on the device.

        ``theta`` is what all start from, shape (d,), or each of them, shape (clients, d). ``added`` goes to
        every gradient of each, shape (clients, d), on the device.
        """
        if self._renew is not None:
            self._model = self._prepared(self._renew())
        start = torch.from_numpy(theta).to(self.device)
        ours = start.expand(batches.positions.shape[1], -1).clone()
        descent = Descent(ours, training, added)
        weights = torch.from_numpy(batches.weights).to(self.device)
        keys = torch.from_numpy(batches.keys).to(self.device)
        for step, positions in enumerate(batches.positions):
            descent.step(self.gradients(ours, *examples.take(positions), weights[step], keys[step]))
        return difference(ours, start)

    def gradients(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return each client's gradient of its weighted mean loss, shape (clients, d).

        Keys have shape (clients,); a model that draws by none needs none.
        """
        leaf = thetas.detach().requires_grad_()
        with self._products():
            with self._forward():
                logits = self.logits(leaf, x, keys).float()
            parts = zip(logits, y, strict=True) if self._apart else [(logits.flatten(0, 1), y.flatten(0, 1))]
            losses = torch.cat([self._loss(*part) for part in parts])
            (gradient,) = torch.autograd.grad((losses * weights.flatten()).sum(), leaf)
        return gradient.masked_fill_(~weights.any(dim=1, keepdim=True), 0.0)

    def logits(self, thetas: torch.Tensor, x: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
        """Return outputs of each client's model, shape (clients, batch, ...), for parameters (clients, d)."""
        parts = torch.split(thetas, self._sizes, dim=1)
        parameters = {
            name: part.view(-1, *shape)
            for name, part, shape in zip(self._names, parts, self._shapes, strict=True)
        }
        if keys is not None:
            parameters |= dict.fromkeys(self._dropout.names, keys)
        # A layer that draws by no key draws anew for every client.
        return vmap(self._logits_of_one, randomness="different")(parameters, x)

    def _logits_of_one(self, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = functional_call(self._model, parameters, (x,))
        return logits

    def forget(self) -> None:
        """Release memory that is kept between rounds; this class keeps none."""

    @contextmanager
    def _forward(self) -> Iterator[None]:
        """In a ``with`` block, run a model's operations for many clients at once, in bf16 if configured."""
        lower = self.precision == "bf16"
        mixed = torch.autocast(
            self.device.type, torch.bfloat16, enabled=lower, cache_enabled=lower and self.keeps_casts
        )
        with BatchedOperations(), mixed:
            yield

    @contextmanager
    def _products(self) -> Iterator[None]:
        """In a ``with`` block, compute float32 products in TF32 if configured, forward and backward.

        On a CPU by one thread: processes share the work, and threads would split a sum over examples or
        not, depending on how many clients there are.
        """
        with one_thread(self.device), float32_products(self.precision == "tf32"):
            yield


# They import numba, which takes a while and is needed for some models only.
programs, kernels = late_import("fastgrad.program"), late_import("fastgrad.kernels")


class ProgrammedTraining:
    """Trains many clients one after the other by compiled code, for a given number of local steps.

    What a client's steps compute depends on nothing but the client: its parameters lie in the same buffers as
    those of every other one. `lowered`: the model's layers. `loss`: one figure a record.

    `draws`: whether layers of the model draw by keys.
    """

    def __init__(self, lowered: LoweredModel, loss: Loss) -> None:
        self._lowered, self._loss, self.draws = lowered, loss, lowered.draws
        self._order, self._inverse = torch.from_numpy(lowered.order), torch.from_numpy(lowered.inverse)
        self._parameters, self._gradient, self._total = torch.empty(3, len(lowered.order)).unbind()
        self._most = lowered.most_records
        self._by_size: dict[int, Program] = {}

    def updates(
        self,
        theta: Theta,
        training: LocalTraining,
        examples: DeviceExamples,
        batches: Batches,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return each client's update theta_i - theta, shape (clients, d), float64.

        ``theta`` is what all start from, shape (d,), or each of them, shape (clients, d). ``added`` goes to
        every gradient of each, shape (clients, d).
        """
        weights, weighs = torch.from_numpy(batches.weights), np.any(batches.weights, axis=2).tolist()
        found = np.empty((weights.shape[1], theta.shape[-1]))
        start = torch.from_numpy(theta)
        starts = start.expand(found.shape)
        begun = torch.index_select(start, -1, self._order).expand(found.shape)
        ends, inverse = self._parameters.numpy(), self._inverse.numpy()
        # Processes share the work, and results must not depend on the number of threads.
        with one_thread(start.device):
            for k, update in enumerate(found):
                self._parameters.copy_(begun[k])
                own = None if added is None else torch.index_select(added[k], 0, self._order)
                descent = Descent(self._parameters, training, own)
                x, y = examples.take(batches.positions[:, k])
                steps = zip(x, y, weights[:, k], batches.keys[:, k].tolist(), strict=True)
                for step, (own_x, own_y, own_weights, key) in enumerate(steps):
                    slope = self.gradient(own_x, own_y, own_weights, key)
                    descent.step(slope if weighs[step][k] else torch.zeros_like(slope))
                kernels.differences(ends, starts[k].contiguous().numpy(), inverse, update)
        return torch.from_numpy(found)

    def gradient(self, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor, key: int = 0) -> torch.Tensor:
        """Return the gradient of a weighted sum of the records' losses at the loaded parameters, shape (d,).

        Layers that draw do so by the key.
        """
        if len(y) <= self._most:
            self.program(len(y)).run(x, y, weights, key)
            return self._gradient
        self._total.zero_()
        for piece in pieces_of(len(y), self._most):
            program = self.program(piece.stop - piece.start)
            program.run(x[piece], y[piece], weights[piece], key, piece.start)
            self._total += self._gradient
        return self._total

    def load(self, theta: torch.Tensor) -> None:
        """Load parameters of shape (d,), given in the model's order, into the compiled program."""
        torch.index_select(theta, 0, self._order, out=self._parameters)

    def in_order(self, ours: torch.Tensor) -> torch.Tensor:
        """Reorder a vector of shape (d,) from the compiled program's order into the model's order."""
        return ours[self._inverse]

    def program(self, num_records: int) -> "Program":
        """Return the compiled forward and backward pass for a batch of this many records."""
        if num_records not in self._by_size:
            self._by_size[num_records] = programs.Program(
                self._lowered, self._loss, num_records, self._parameters, self._gradient
            )
        return self._by_size[num_records]
