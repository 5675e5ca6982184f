"""Models by name, and their parameters as one flat vector."""

from collections.abc import Callable
from hashlib import sha256
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gdpfed.learning.errors import LearningError

HIDDEN_UNITS = 64


def _linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes))


def _mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One hidden layer of :data:`HIDDEN_UNITS` rectified units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, num_classes),
    )


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {"linear": _linear, "mlp": _mlp}


def build_model(name: str, input_shape: tuple[int, ...], num_classes: int, *, seed: int) -> nn.Module:
    """Build a model whose initial parameters depend on ``seed`` alone.

    Raises:
        LearningError: no model of that name, or one with buffers that change in training.
    """
    if name not in MODELS:
        raise LearningError(f"there is no model '{name}': choose one of {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[name](input_shape, num_classes)
        refuse_changing_buffers(model, torch.zeros(2, *input_shape))
    return model


def refuse_changing_buffers(model: nn.Module, example: torch.Tensor) -> None:
    """Refuse a model whose buffers change in a training step, as BatchNorm's running statistics do.

    Buffers are no trainable parameters: they are neither clipped nor covered by the noise, so a client
    that sent them would break the guarantee, and one that did not would train another model than the
    one evaluated.

    Args:
        model: any module; its buffers are restored afterwards.
        example: a small batch to run through it.

    Raises:
        LearningError: names the buffers.
    """
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if not before:
        return
    was_training = model.training
    model.train()
    with torch.no_grad():
        model(example)
    model.train(was_training)
    changed = [name for name, b in model.named_buffers() if not torch.equal(b, before[name])]
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    if changed:
        raise LearningError(
            f"the model's buffers {', '.join(changed)} change in training and are covered neither by "
            "clipping nor by noise: use a layer without running statistics, such as GroupNorm"
        )


def flatten(model: nn.Module) -> npt.NDArray[np.float32]:
    """All trainable parameters as one vector of shape (d,) in float32."""
    vector = parameters_to_vector(model.parameters()).detach()
    return vector.to("cpu", torch.float32).numpy().copy()


def fingerprint(theta: npt.NDArray[np.float32]) -> bytes:
    """SHA-256 of the parameters as little-endian float32: names the model that updates refer to."""
    return sha256(np.ascontiguousarray(theta, dtype="<f4").tobytes()).digest()


def assign(model: nn.Module, theta: torch.Tensor) -> None:
    """Set the model's parameters from a vector of shape (d,) on the model's device."""
    vector_to_parameters(theta, model.parameters())


def state_dict_of(model: nn.Module, theta: npt.NDArray[np.float32]) -> dict[str, torch.Tensor]:
    """The named parameters that the flat vector ``theta`` stands for, as copies on the CPU."""
    assign(model, torch.from_numpy(theta.copy()))
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
