"""A model's trainable parameters as one flat vector theta, shape (d,).

The vector holds the parameters with ``requires_grad``, in the model's order. Other parameters are frozen:
server and clients build them with the same values, and they are not sent, clipped or noised.
"""

from collections.abc import Collection
from fnmatch import fnmatchcase
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from gdpfed.errors import LearningError


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a model's trainable parameters by name."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def names_of(model: nn.Module, patterns: Collection[str]) -> list[str]:
    """Return the names of a model's parameters that match a pattern, such as ``*.bias``.

    Raises LearningError: a pattern matches no parameter.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise LearningError(f"no parameter of the model matches '{pattern}': it has {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def leave_out(model: nn.Module, patterns: Collection[str]) -> None:
    """Freeze a model's parameters whose names match a pattern, so that the vector theta leaves them out.

    Raises LearningError: a pattern matches no parameter, or no trainable parameter is left.
    """
    for name in names_of(model, patterns):
        model.get_parameter(name).requires_grad = False
    if patterns and not trainable(model):
        raise LearningError(
            f"training.local_parameters=[{','.join(patterns)}] leaves nothing to train together: name fewer"
        )


def dimension_of(model: nn.Module) -> int:
    """Return d, the number of trainable parameters of a model."""
    return sum(parameter.numel() for parameter in trainable(model).values())


def flatten(model: nn.Module) -> npt.NDArray[np.float32]:
    """Return all trainable parameters as one vector of shape (d,) in float32."""
    vector = torch.cat([each.detach().reshape(-1) for each in trainable(model).values()])
    return vector.to("cpu", torch.float32).numpy().copy()


def fingerprint(theta: npt.NDArray[np.float32]) -> bytes:
    """Hash the parameters (SHA-256 of little-endian float32), to identify a model."""
    return sha256(np.ascontiguousarray(theta, dtype="<f4").tobytes()).digest()


def assign(model: nn.Module, theta: torch.Tensor) -> None:
    """Set the model's trainable parameters from a vector of shape (d,) on the model's device."""
    vector_to_parameters(theta, trainable(model).values())


def state_dict_of(model: nn.Module, theta: npt.NDArray[np.float32]) -> dict[str, torch.Tensor]:
    """Return the state dict of the whole model with the trainable parameters ``theta``, as copies."""
    assign(model, torch.from_numpy(theta.copy()))
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
