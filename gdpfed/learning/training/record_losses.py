"""Losses by name, and the refusal of models and losses that couple the records of a batch.

A loss is a function ``(outputs, targets) -> losses``: outputs of shape (n, k) or (n, length, k), targets of
shape (n,) or (n, length), losses of shape (n,). Another package adds one as an entry point of the group
``gdpfed.losses``, or for one process with ``LOSSES.register``. It couples no records: clipping bounds what a
record adds to a batch's sum of gradients, and says nothing of how it moves the gradients of others.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from fastgrad.modules import Loss, cross_entropy
from gdpfed.errors import LearningError
from gdpfed.learning.data.persons import NO_ROW
from gdpfed.learning.models.build import draws_by
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


NEXT_TOKEN = "next_token"  # noqa: S105 - of a text


def last_position(outputs: torch.Tensor) -> torch.Tensor:
    """Scores of the last position where there are some of every one: (n, L, tokens) to (n, tokens)."""
    return outputs[:, -1] if outputs.ndim > 2 else outputs


def next_token(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over a text's positions of -log softmax(outputs)[the token after it], in nats.

    Outputs of shape (n, L, tokens) and targets (n, L); of targets (n,) the last position alone.
    """
    if targets.ndim < outputs.ndim - 1:
        return cross_entropy(last_position(outputs), targets)
    losses = functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")
    return losses.mean(dim=1) if losses.ndim > 1 else losses


def make_loss(name: str, class_weights: Sequence[float] = ()) -> Loss:
    """The loss of that name; with weights, w_y times the loss of a record of class y.

    The weights are not divided by those of a batch: that would couple the records in it. Raises
    LearningError: no loss of that name, or weights for one that knows no class of a record.
    """
    loss = LOSSES.get(name)
    if not class_weights:
        return loss
    if name == NEXT_TOKEN:
        raise LearningError(
            f"dataset.class_weights={list(class_weights)} goes with no dataset.loss={name}: leave it out"
        )
    weights = torch.tensor(tuple(class_weights), dtype=torch.float32)

    def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return weights.to(targets.device)[targets] * loss(outputs, targets)

    return weighted


def check_loss(name: str, class_weights: Sequence[float], num_classes: int) -> None:
    """Refuse a loss that does not fit the labels of a data set.

    `num_classes`: of the data set; 1 where a label is a number.

    Raises LearningError: no loss of that name, one that is not one figure a record of such labels, or another
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
LOSSES.register(NEXT_TOKEN, next_token)
LOSSES.register("squared_error", squared_error)


REMEDY = "use a layer that looks at one record alone, such as GroupNorm"
TRIALS = 3


def refuse_coupled_records(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> None:
    """Refuse a model in which one record of a batch moves the loss of another.

    Layers that are known to couple records are found by their type; others by trying: one record of the batch
    is replaced, and the losses of all others have to stay as they are. `model`: in whichever mode; it is
    tried in training mode, and left as it was. `loss`: of shape (n,), one figure a record. `x`, `y`: some
    records to try with, at least two; they need not be anybody's. Raises LearningError: names the layer, or
    says that the records are coupled.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise LearningError(
                f"the model's layer {name} ({type(layer).__name__}) normalises by the statistics of a batch, "
                f"so a record moves the gradients of others and clipping bounds nothing: {REMEDY}"
            )
    was_training = model.training
    model.train()
    with torch.no_grad():
        expected = _losses(model, loss, x, y)
        if expected.shape != y.shape[:1]:
            raise LearningError(
                f"the loss has shape {tuple(expected.shape)} for {len(y)} records; it must be one figure for "
                "each record"
            )
        moved = any(
            not torch.allclose(_losses(model, loss, *other)[1:], expected[1:], rtol=1e-4, atol=1e-6)
            for other in _with_other_first_records(x, y)
        )
    model.train(was_training)
    if moved:
        raise LearningError(
            "the model or its loss couples records: replacing one record of a batch changed the loss of "
            f"another, so clipping bounds nothing; {REMEDY}"
        )


def _losses(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Each time the same draws, so that a layer that draws, such as dropout, draws the same for all.
    with draws_by(0):
        return loss(model(x), y)


def _with_other_first_records(x: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batch with a first record that is another, and farther and farther off where it is of floats."""
    batches = []
    for trial in range(1, TRIALS + 1):
        other_x, other_y = x.clone(), y.clone()
        other_x[0] = x[trial % len(x)] * (10.0**trial if x.is_floating_point() else 1)
        other_y[0] = y[trial % len(y)]
        batches.append((other_x, other_y))
    return batches


class PersonModel(nn.Module):
    """A model of rows, applied to persons: (N, R, ...) to (N, R, outputs)."""

    def __init__(self, rows: nn.Module) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the model to every row."""
        outputs: torch.Tensor = self.rows(x.flatten(0, 1))
        return outputs.reshape(*x.shape[:2], *outputs.shape[1:])


def person_loss(loss: Loss) -> Loss:
    """Return the loss of persons: the sum over their rows, outputs (N, R, k) and labels (N, R) to (N,)."""

    def summed(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        there = ~y.isnan() if y.is_floating_point() else y != NO_ROW
        labels = y.nan_to_num() if y.is_floating_point() else y.clamp(min=0)
        rows = loss(outputs.flatten(0, 1), labels.flatten()).reshape(y.shape)
        return torch.where(there, rows, 0.0).sum(dim=1)

    return summed
