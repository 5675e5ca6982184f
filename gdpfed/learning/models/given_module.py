"""Turns a torch module that a Python program passes in into a model that settings can name."""

from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256

import torch
from torch import nn


def builder_of(module: nn.Module) -> Callable[..., nn.Module]:
    """Return a model builder that ignores requested shapes and copies this module with its values."""

    def build(input_shape: tuple[int, ...], num_classes: int, *, start: str = "") -> nn.Module:
        """Return a copy of the module; `start`, the hash of the module's values, is for the settings only."""
        # Where models are built: on the CPU, or nowhere where only their size is asked for.
        return deepcopy(module).to(torch.empty(0).device)

    return build


def start_of(module: nn.Module) -> str:
    """Return the SHA-256, in hexadecimal, of a module's values, from which all clients of a run start.

    They are not secret, since every client is sent them, so they must not come from the clients' data.
    """
    digest = sha256()
    for name, each in module.state_dict().items():
        values = each.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)} ".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
