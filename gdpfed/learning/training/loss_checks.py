"""Checks that a loss and its class weights fit the labels of a data set, on three records without content."""

import warnings
from collections.abc import Sequence

import torch

from gdpfed.errors import LearningError, kind_and_words
from gdpfed.learning.labels import LOSSES, LabelKind

RECORDS = 3


def check_loss(name: str, labels: LabelKind, class_weights: Sequence[float] = ()) -> None:
    """Raise LearningError if a loss or its class weights do not fit the labels of a data set.

    Raises LearningError: no loss has that name, the loss does not give one number for each record or for each
    label, or the class weights do not fit.
    """
    each = LOSSES.get(name)
    labels.check_weights(len(class_weights))
    targets = labels.drawn((RECORDS,), torch.Generator().manual_seed(0))
    try:
        with warnings.catch_warnings():
            # torch warns if a loss broadcasts shapes; such a loss is refused below.
            warnings.simplefilter("ignore", UserWarning)
            losses = each(torch.zeros(RECORDS, *labels.outputs), targets)
    except Exception as error:  # A package's loss may raise anything.
        said = f"the loss raised {kind_and_words(error)}"
        raise LearningError(_not_fitting(name, labels, said)) from None
    if not isinstance(losses, torch.Tensor):
        raise LearningError(
            _not_fitting(name, labels, f"the loss returns a {type(losses).__name__}, and not a tensor")
        )
    shape = losses.shape
    if shape not in (targets.shape, targets.shape[:1]):
        if shape.numel() == 1:
            raise LearningError(
                f"dataset.loss={name} gives one number for {RECORDS} records, and a loss gives one for each: "
                'leave out the mean (reduction="none")'
            )
        raise LearningError(
            _not_fitting(name, labels, f"the loss of {RECORDS} records has the shape {[*shape]}")
        )
    if class_weights and shape != targets.shape:
        raise LearningError(
            f"dataset.class_weights weigh the loss of each label, and dataset.loss={name} is one figure "
            f"for each record: leave them out, or choose for instance dataset.loss={labels.loss}"
        )


def _not_fitting(name: str, labels: LabelKind, why: str) -> str:
    return (
        f"dataset.loss={name} does not fit labels that are {labels.words}: choose for instance "
        f"dataset.loss={labels.loss} ({why})"
    )
