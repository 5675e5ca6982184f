"""Finds losses and metrics by name; lets models and losses of single rows work on persons with many rows."""

from collections.abc import Sequence

import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.errors import LearningError, either
from gdpfed.learning.data.persons import NO_ROW
from gdpfed.learning.labels import LOSSES, METRICS, LabelKind, Metric, given_metric
from gdpfed.learning.labels.classes import NEXT_TOKEN
from gdpfed.learning.training.loss_checks import check_loss


def make_loss(name: str, labels: LabelKind, class_weights: Sequence[float] = ()) -> Loss:
    """Return the loss with this name, as one number for each record.

    With weights, the loss of a label is multiplied by the weight of its class. It is not divided by the sum
    of a batch's weights, which would couple the batch's records. Raises LearningError: no loss has that name,
    or the weights do not fit the labels.
    """
    each = LOSSES.get(name)
    if class_weights:
        # A class without a weight would be an error that one record causes.
        check_loss(name, labels, class_weights)
    if not class_weights and not labels.shape and name != NEXT_TOKEN:
        return each
    weights = torch.tensor(tuple(class_weights), dtype=torch.float32)

    def of_records(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = each(outputs, targets)
        if class_weights:
            losses = labels.factors(weights.to(targets.device), targets) * losses
        return losses if losses.ndim == 1 else losses.flatten(1).mean(dim=1)

    return of_records


def chosen_metrics(names: Sequence[str] | None, labels: LabelKind) -> dict[str, Metric]:
    """Return the metrics with these names, by default the usual ones for the kind of labels.

    Raises LearningError: a name is unknown or given twice, or a metric does not fit the labels.
    """
    chosen: dict[str, Metric] = {}
    for name in names or [labels.metric]:
        metric = given_metric(name, METRICS.get(name))
        if metric.labels != labels.name:
            fitting = either(key for key, other in METRICS.items().items() if other.labels == labels.name)
            raise LearningError(
                f"dataset.metrics={name} does not fit labels that are {labels.words}: use {fitting}"
            )
        if name in chosen:
            raise LearningError(f"dataset.metrics names {name} twice: name it once")
        chosen[name] = metric
    return chosen


class PersonModel(nn.Module):
    """Applies a model for single rows to all R rows of each of N persons: (N, R, ...) to (N, R, outputs)."""

    def __init__(self, rows: nn.Module) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the model to every row."""
        outputs: torch.Tensor = self.rows(x.flatten(0, 1))
        return outputs.reshape(*x.shape[:2], *outputs.shape[1:])


def person_loss(loss: Loss) -> Loss:
    """Return a loss for persons: for each person, the sum of ``loss`` over the person's rows, shape (N,)."""

    def summed(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        there = ~y.isnan() if y.is_floating_point() else y != NO_ROW
        labels = y.nan_to_num() if y.is_floating_point() else y.clamp(min=0)
        rows = loss(outputs.flatten(0, 1), labels.flatten(0, 1)).reshape(y.shape[:2])
        return torch.where(there.reshape(*rows.shape, -1).all(dim=2), rows, 0.0).sum(dim=1)

    return summed
