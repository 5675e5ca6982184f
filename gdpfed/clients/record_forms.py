"""Chooses how gradients of single records are computed, and whether steps run as CUDA graphs."""

from collections.abc import Callable
from functools import lru_cache
from typing import cast

import torch
from torch import nn

from fastgrad.modules import Loss
from gdpfed.errors import LearningError
from gdpfed.learning.labels import LOSSES
from gdpfed.learning.models import MODELS, flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.coupled_records import (
    refuse_coupled_records,
    refuse_random_layers,
    uncoupled_loss,
)
from gdpfed.learning.training.record_graphs import RecordGraphs
from gdpfed.learning.training.record_losses import PersonModel, person_loss
from gdpfed.learning.training.record_training import RecordGradients
from gdpfed.learning.training.recorded_pass import Examples
from gdpfed.learning.training.step_recording import Record, recorder
from gdpfed.registry import Registry, is_ours

RECORD_GRADIENTS: Registry[Callable[..., object]] = Registry(
    "form of gradients",
    "gdpfed.record_gradients",
    built_in={"fastgrad": "fastgrad.forms:record_gradients"},
    error=LearningError,
)
"""What computes gradients of single records, handed in by name: no part of the kernel knows a form."""

_TRIED_RECORDS = 4
_TRIED_ROWS = 3


def gradients_of(task: Task, device: torch.device) -> RecordGradients:
    """Return an object that computes the gradient of every single record, after a trial on random records.

    A trial finds what couples records at once, and not what does so seldom. So a loss and a model that are
    not this project's are given each record as a batch of one; but models of known layers need not be.

    Raises LearningError: the model or the loss couples the records of a batch.
    """
    model, loss = task.build_model(), task.make_loss()
    x, y = task.drawn(_TRIED_RECORDS, _TRIED_ROWS)
    tried = of_persons(model, loss) if task.by_person else (model, loss)
    refuse_random_layers(tried[0], x)
    refuse_coupled_records(*tried, x, y)
    labels = task.known_form.labels
    if not (is_ours(LOSSES.get(task.loss)) and is_ours(type(labels))):
        loss = uncoupled_loss(loss, labels)
    foreign = None if is_ours(MODELS.get(task.model)) else model
    if task.by_person:
        model, loss = of_persons(model, loss)
    gradients = RECORD_GRADIENTS.get("fastgrad")(model, loss, x[1:], y[1:], device=device, foreign=foreign)
    return cast("RecordGradients", gradients)


built_gradients = lru_cache(maxsize=1)(gradients_of)


def graphs_of(
    task: Task, gradients: RecordGradients, record: Record | None, examples: Examples | None = None
) -> tuple[RecordGraphs | None, str]:
    """Try to record DP-SGD steps as CUDA graphs; return the graphs or None, and a text on the outcome.

    Args:
        task: whose model it is.
        gradients: of the model.
        record: records a step; None: this device records none, which takes no words.
        examples: on the device, to which positions of records lead.
    """
    if record is None:
        return None, ""
    if not gradients.stacks:
        return None, f", without graphs (gradients go {gradients.form})"
    x, y = task.drawn(_TRIED_RECORDS, _TRIED_ROWS)
    if refusal := RecordGraphs(gradients, record).tried(flatten(task.build_model()), x, y):
        return None, f", without graphs ({refusal})"
    return RecordGraphs(gradients, record, examples), ", a graph a step"


@lru_cache(maxsize=1)
def built_graphs(task: Task, device: torch.device) -> RecordGraphs | None:
    """Record DP-SGD steps as CUDA graphs; return None without a GPU, or if the trial fails."""
    return graphs_of(task, built_gradients(task, device), recorder(device))[0]


def of_persons(model: nn.Module, loss: Loss) -> tuple[nn.Module, Loss]:
    """Make a model and a loss for persons with several rows each, from a model and a loss for single rows."""
    return PersonModel(model), person_loss(loss)
