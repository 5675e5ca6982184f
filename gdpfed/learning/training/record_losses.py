"""Finds losses and metrics by name; rejects models in which records of a batch influence each other."""

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from fastgrad.modules import Loss, record_by_record
from gdpfed.errors import LearningError, either
from gdpfed.learning.data.persons import NO_ROW
from gdpfed.learning.labels import LOSSES, METRICS, LabelKind, Metric
from gdpfed.learning.labels.classes import NEXT_TOKEN
from gdpfed.learning.models.build import draws_by


def make_loss(name: str, labels: LabelKind, class_weights: Sequence[float] = ()) -> Loss:
    """Return the loss with this name, as one number for each record.

    With weights, the loss of a label is multiplied by the weight of its class. It is not divided by the sum
    of a batch's weights, which would couple the batch's records. Raises LearningError: no loss has that name.
    """
    each = LOSSES.get(name)
    if not class_weights and not labels.shape and name != NEXT_TOKEN:
        return each
    weights = torch.tensor(tuple(class_weights), dtype=torch.float32)

    def of_records(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = each(outputs, targets)
        if class_weights:
            losses = labels.factors(weights.to(targets.device), targets) * losses
        return losses if losses.ndim == 1 else losses.flatten(1).mean(dim=1)

    return of_records


def check_loss(name: str, labels: LabelKind, class_weights: Sequence[float] = ()) -> None:
    """Raise LearningError if a loss or its class weights do not fit the labels of a data set.

    Raises LearningError: no loss has that name, the loss does not give one number for each record or for each
    label, or the class weights do not fit.
    """
    each = LOSSES.get(name)
    labels.check_weights(len(class_weights))
    targets = labels.drawn((3,), torch.Generator().manual_seed(0))
    try:
        with warnings.catch_warnings():
            # torch warns if a loss broadcasts shapes; such a loss is refused below.
            warnings.simplefilter("ignore", UserWarning)
            shape = each(torch.zeros(3, *labels.outputs), targets).shape
    except (RuntimeError, IndexError, TypeError, ValueError):
        shape = None
    if shape not in (targets.shape, targets.shape[:1]):
        raise LearningError(
            f"dataset.loss={name} does not fit labels that are {labels.words}: choose for instance "
            f"dataset.loss={labels.loss}"
        )
    if class_weights and shape != targets.shape:
        raise LearningError(
            f"dataset.class_weights weigh the loss of each label, and dataset.loss={name} is one figure a "
            f"record: leave them out, or choose for instance dataset.loss={labels.loss}"
        )


def chosen_metrics(names: Sequence[str] | None, labels: LabelKind) -> dict[str, Metric]:
    """Return the metrics with these names, by default the usual ones for the kind of labels.

    Raises LearningError: a name is unknown or given twice, or a metric does not fit the labels.
    """
    chosen: dict[str, Metric] = {}
    for name in names or [labels.metric]:
        metric = METRICS.get(name)
        if metric.labels != labels.name:
            fitting = either(key for key, other in METRICS.items().items() if other.labels == labels.name)
            raise LearningError(
                f"dataset.metrics={name} does not fit labels that are {labels.words}: use {fitting}"
            )
        if name in chosen:
            raise LearningError(f"dataset.metrics names {name} twice: name it once")
        chosen[name] = metric
    return chosen


REMEDY = "use a layer that looks at one record alone, such as GroupNorm"
TRIALS = 3
TRIED_OUTPUTS = 64
TRIED_SIZES = (-3, 2)
"""Powers of ten."""


def refuse_coupled_records(
    model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor, *, replaced: int = 1
) -> None:
    """Raise LearningError if, in this model, one record of a batch changes the loss of another.

    BatchNorm layers are found by their type. Other coupling is found by a trial: the first records of
    the batch are replaced, and the losses of all other records must stay the same. `model`: it is tried in
    training mode, and then put back into its mode. `loss`: returns one loss for each record, shape (n,). `x`,
    `y`: at least two records for the trial; they may be random. `replaced`: how many of them are replaced.
    Raises LearningError: names the layer, or says that the records are coupled.
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
            not torch.allclose(
                _losses(model, loss, *other)[replaced:],
                expected[replaced:],
                rtol=1e-4,
                atol=1e-6,
                equal_nan=True,
            )
            for other in _with_other_first_records(x, y, replaced)
        )
    model.train(was_training)
    if moved:
        raise LearningError(
            "the model or its loss couples records: replacing others of a batch changed the loss of "
            f"a record, so clipping bounds nothing; {REMEDY}"
        )


def uncoupled_loss(loss: Loss, labels: LabelKind) -> Loss:
    """Return a loss that is given each record as a batch of one, after a trial on outputs of many sizes.

    Raises LearningError: it couples records in the trial, so that alone it would be another loss.
    """
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(TRIED_OUTPUTS, *labels.outputs, generator=generator)
    sizes = torch.logspace(*TRIED_SIZES, TRIED_OUTPUTS)[torch.randperm(TRIED_OUTPUTS, generator=generator)]
    outputs *= sizes.view(-1, *[1] * len(labels.outputs))
    targets = labels.drawn((TRIED_OUTPUTS,), generator)
    refuse_coupled_records(nn.Identity(), loss, outputs, targets, replaced=TRIED_OUTPUTS // 2)
    return record_by_record(loss, outputs, targets)


def _losses(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Layers that draw random numbers, such as dropout, make the same draws in each trial.
    with draws_by(0):
        return loss(model(x), y)


def _with_other_first_records(
    x: torch.Tensor, y: torch.Tensor, replaced: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return copies of a batch with other first records; float inputs are multiplied by 10, 100, ..."""
    batches = []
    for trial in range(1, TRIALS + 1):
        other_x, other_y = x.clone(), y.clone()
        other_x[:replaced] = x.roll(-trial, 0)[:replaced] * (10.0**trial if x.is_floating_point() else 1)
        other_y[:replaced] = y.roll(-trial, 0)[:replaced]
        batches.append((other_x, other_y))
    return batches


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
