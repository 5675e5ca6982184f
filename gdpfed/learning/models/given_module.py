"""A torch module that a Python program gives, as a model that is chosen by name."""

from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256

import torch
from torch import nn


def builder_of(module: nn.Module) -> Callable[..., nn.Module]:
    """The builder of copies of a module, which begin at its numbers and take its own shapes."""

    def build(input_shape: tuple[int, ...], num_classes: int, *, start: str = "") -> nn.Module:
        """A copy. `start`: what names the numbers that the run began with; a finished model has others."""
        # Where models are built: on the CPU, or nowhere where only their size is asked for.
        return deepcopy(module).to(torch.empty(0).device)

    return build


def start_of(module: nn.Module) -> str:
    """What names the numbers of a module, which a run's clients all begin from: SHA-256, hexadecimal.

    They are no secret, since every client is sent them, so they must not come from the clients' data.
    """
    digest = sha256()
    for name, each in module.state_dict().items():
        values = each.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)} ".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
