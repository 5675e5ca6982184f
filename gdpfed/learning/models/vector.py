"""A model's parameters as one flat vector theta of shape (d,)."""

from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


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
