"""Losses by name: what a model is trained on and evaluated by, one figure a record.

A loss is a function ``(outputs, targets) -> losses``: outputs of shape (n, k) or (n, length, k), targets of
shape (n,) or (n, length), losses of shape (n,). It couples no records. Another package adds one as an entry
point of the group ``gdpfed.losses``, or for one process with ``LOSSES.register``.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

from gdpfed.errors import LearningError
from gdpfed.registry import Registry

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOSSES: Registry[Loss] = Registry("loss", "gdpfed.losses", error=LearningError)


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log softmax(outputs)[target], in nats."""
    return functional.cross_entropy(outputs, targets, reduction="none")


LOSSES.register("cross_entropy", cross_entropy)
