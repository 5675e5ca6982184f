"""Losses by name: a model is trained and evaluated by one value for each record.

A loss is a function ``(outputs, targets) -> losses``: outputs of shape (n, k) or (n, length, k), targets of
shape (n,) or (n, length), losses of shape (n,). It couples no records. Another package adds one as an entry
point of the group ``gdpfed.losses``, or for one process with ``LOSSES.register``.
"""

import warnings
from collections.abc import Sequence

import torch
from torch.nn import functional

from fastgrad.modules import Loss, cross_entropy
from gdpfed.errors import LearningError
from gdpfed.registry import Registry

LOSSES: Registry[Loss] = Registry("loss", "gdpfed.losses", error=LearningError)


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(output - target)^2, of a model with one output."""
    return (outputs.squeeze(-1) - targets).square()


def huber(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """e^2 / 2 up to |e| = 1, and |e| - 1/2 beyond, of e = output - target (Huber, 1964).

    Targets are scaled to [-1, 1], so 1 is half of their declared range.
    """
    return functional.huber_loss(outputs.squeeze(-1), targets, reduction="none")


def make_loss(name: str, class_weights: Sequence[float] = ()) -> Loss:
    """The loss of that name; with weights, w_y times the loss of a record of class y.

    The weights are not divided by those of a batch: that would couple the records in it.

    Raises:
        LearningError: no loss of that name.
    """
    loss = LOSSES.get(name)
    if not class_weights:
        return loss
    weights = torch.tensor(tuple(class_weights), dtype=torch.float32)

    def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return weights.to(targets.device)[targets] * loss(outputs, targets)

    return weighted


def check_loss(name: str, class_weights: Sequence[float], num_classes: int) -> None:
    """Refuse a loss that does not fit the labels of a data set.

    Args:
        num_classes: of the data set; 1 where a label is a number.

    Raises:
        LearningError: no loss of that name, one that is not one figure a record of such labels, or another
            number of class weights than there are classes.
    """
    kind = torch.float32 if num_classes == 1 else torch.int64
    if class_weights and (num_classes == 1 or len(class_weights) != num_classes):
        wanted = (
            "labels that are numbers have none" if num_classes == 1 else f"give {num_classes}, one a class"
        )
        raise LearningError(f"dataset.class_weights has {len(class_weights)} numbers: {wanted}")
    outputs, targets = torch.zeros(3, num_classes), torch.zeros(3, dtype=kind)
    remedy = "squared_error" if num_classes == 1 else "cross_entropy"
    try:
        with warnings.catch_warnings():
            # torch warns of shapes that a loss would broadcast; such a loss is refused below.
            warnings.simplefilter("ignore", UserWarning)
            shape = make_loss(name, class_weights)(outputs, targets).shape
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, LearningError):
            raise
        shape = None
    if shape != targets.shape:
        labels = "are numbers" if num_classes == 1 else f"are {num_classes} classes"
        raise LearningError(
            f"dataset.loss={name} does not fit labels that {labels}: choose for instance "
            f"dataset.loss={remedy}"
        )


LOSSES.register("cross_entropy", cross_entropy)
LOSSES.register("huber", huber)
LOSSES.register("squared_error", squared_error)
