"""Tries a package's model and loss on drawn records before a run begins."""

import torch

from gdpfed.clients.record_forms import of_persons
from gdpfed.errors import LearningError, kind_and_words
from gdpfed.learning.labels import LOSSES
from gdpfed.learning.models import MODELS, trainable
from gdpfed.learning.models.build import draws_by
from gdpfed.learning.task import Task
from gdpfed.registry import is_ours

RECORDS, ROWS = 4, 3


def try_gradient(task: Task) -> None:
    """Raise LearningError if a package's model or loss has no gradient: every client's first step would fail.

    All of them would be charged by then.
    """
    if is_ours(MODELS.get(task.model)) and is_ours(LOSSES.get(task.loss)):
        return
    model, loss = task.build_model(), task.make_loss()
    if task.by_person:
        model, loss = of_persons(model, loss)
    x, y = task.drawn(RECORDS, ROWS)
    leaves = list(trainable(model.train()).values())
    try:
        with draws_by(0):
            torch.autograd.grad(loss(model(x), y).mean(), leaves, materialize_grads=True)
    except Exception as error:  # A package's model or loss may raise anything.
        raise LearningError(
            f"dataset.model={task.model} cannot be trained with dataset.loss={task.loss}: its gradient "
            f"raised {kind_and_words(error)}"
        ) from None
