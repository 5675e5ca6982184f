"""Tries a package's model and loss on drawn records, and its schedule, before a run begins."""

import numpy as np
import torch

from conf.schema import Config
from gdpfed.clients.configured import learning_rate_of
from gdpfed.clients.record_forms import of_persons
from gdpfed.errors import LearningError, kind_and_words
from gdpfed.learning.labels import LOSSES
from gdpfed.learning.models import MODELS, assign, flatten, trainable
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
    theta = flatten(model)
    if not np.isfinite(theta).all():
        raise LearningError(
            f"dataset.model={task.model} begins with parameters that are not finite: give it finite ones"
        )
    others = {each.dtype for each in trainable(model).values()} - {torch.float32}
    float32 = "; its parameters are float32 in training: convert it by its method float()" if others else ""
    assign(model, torch.from_numpy(theta))
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
            f"raised {kind_and_words(error)}{float32}"
        ) from None


def try_schedule(config: Config) -> None:
    """Raise LearningError if a schedule fails in any round: the rounds before it would be charged."""
    for index in range(config.run.num_rounds):
        try:
            learning_rate_of(config, index)
        except LearningError:
            raise
        except Exception as error:  # A package's schedule may raise anything.
            raise LearningError(
                f"training.schedule={config.training.schedule} fails in round {index + 1} of "
                f"{config.run.num_rounds} ({kind_and_words(error)}): it must return a number"
            ) from None
