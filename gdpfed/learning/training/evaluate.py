"""Evaluates a model on test examples: metrics and loss on all of them, and metrics for each data owner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.modules import Loss, SlicePooling, cross_entropy
from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset, Examples
from gdpfed.learning.labels import METRICS, Labels, Metric, Outputs, Targets
from gdpfed.learning.labels.classes import DEFAULT
from gdpfed.learning.labels.intervals import Ends, interval_of
from gdpfed.learning.models import assign, predicts_nothing, said
from gdpfed.learning.task import Task, choose_device
from gdpfed.learning.training.loss_checks import check_loss
from gdpfed.learning.training.record_losses import chosen_metrics

# On a CPU, results of a convolution of more pictures need fresh memory, which takes longer than computing.
CPU_BATCH, GPU_BATCH = 256, 1024
Theta = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Evaluation:
    """The metrics and loss of a model on test examples.

    Attributes:
        accuracy: the share of right answers; None without test examples, or if labels are not classes.
        loss: the mean of the training loss; None without test examples.
        metrics: the chosen metrics by name, in their order; None for a metric that is not defined.
    """

    accuracy: float | None
    loss: float | None
    metrics: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class PartMetrics:
    """The metrics of a model on a part of the test examples.

    `metrics`: by name; None for a metric that is not defined. `intervals`: the ends of the metrics' 95 %
    intervals; None for a metric without an interval.
    """

    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Ends | None]


def evaluate(
    model: nn.Module,
    theta: Theta,
    data: Examples,
    *,
    loss: Loss = cross_entropy,
    device: torch.device,
    metrics: Mapping[str, Metric] | None = None,
    target_range: tuple[float, float] | None = None,
) -> Evaluation:
    """Evaluate a model with parameters ``theta``, shape (d,), on ``data``.

    `metrics`: by name; None for accuracy. `target_range`: for labels that are numbers, the numbers for which
    -1 and 1 stand.
    """
    outputs, mean_loss = model_outputs(model, theta, data, loss, device)
    chosen = {DEFAULT: METRICS.get(DEFAULT)} if metrics is None else metrics
    return _judged(outputs, data.y, mean_loss, chosen, target_range)


def model_outputs(
    model: nn.Module, theta: Theta, data: Examples, loss: Loss, device: torch.device
) -> tuple[Outputs, float]:
    """Return the model's outputs for all examples, shape (N, ...), and their mean loss.

    The last digits of an output depend on the examples that are computed with it.
    """
    model.to(device).eval()
    assign(model, torch.from_numpy(theta.copy()).to(device))
    outputs, total, most = [], 0.0, CPU_BATCH if device.type == "cpu" else GPU_BATCH
    with torch.no_grad(), SlicePooling():
        for start in range(0, len(data), most):
            batch = data.take(np.arange(start, min(start + most, len(data))))
            x, y = torch.from_numpy(batch.x).to(device), torch.from_numpy(batch.y).to(device)
            answers = said(model, x)
            total += float(loss(answers, y).sum())
            outputs.append(answers.double().cpu().numpy())
    return np.concatenate(outputs), total / len(data)


def _judged(
    outputs: Outputs,
    targets: Labels,
    mean_loss: float,
    metrics: Mapping[str, Metric],
    target_range: tuple[float, float] | None,
) -> Evaluation:
    answers, wanted = in_own_unit(outputs, target_range), in_own_unit(targets, target_range)
    found = {name: metric.of(answers, wanted) for name, metric in metrics.items()}
    return Evaluation(found.get(DEFAULT), mean_loss, found)


def in_own_unit(values: npt.NDArray[Any], target_range: tuple[float, float] | None) -> npt.NDArray[Any]:
    """Scale numbers from [-1, 1] back to their declared range; without a range, do nothing."""
    if target_range is None:
        return values
    low, high = target_range
    scaled: npt.NDArray[np.float64] = low + (values.astype(np.float64) + 1) / 2 * (high - low)
    return scaled


def nothing_tested(theta: Theta) -> Evaluation:
    """Return an empty evaluation, for a server without test examples."""
    return Evaluation(None, None)


@dataclass(frozen=True, eq=False)
class CentralEvaluation:
    """Evaluates models, given as parameters of shape (d,), on a task's test examples.

    `outputs_of`: returns the model's outputs on the test split, shape (N, ...), and their mean loss.
    """

    model: nn.Module
    data: Dataset
    metrics: Mapping[str, Metric]
    outputs_of: Callable[[Theta], tuple[Outputs, float]]

    def __call__(self, theta: Theta) -> Evaluation:
        """Evaluate on the whole test split; return an empty evaluation if the model predicts nothing."""
        if predicts_nothing(self.model):
            return nothing_tested(theta)
        outputs, mean_loss = self.outputs_of(theta)
        found = _judged(outputs, self.data.test.y, mean_loss, self.metrics, self.data.target_range)
        if not self.data.labels.is_one_class or found.accuracy is not None:
            return found
        return replace(found, accuracy=METRICS.get(DEFAULT).of(outputs, in_own_unit(self.data.test.y, None)))

    def of_parts(self, theta: Theta, parts: Sequence[npt.NDArray[np.int64]]) -> list[PartMetrics]:
        """Compute metrics with 95 % intervals, separately for each of these parts of the test examples."""
        outputs, _ = self.outputs_of(theta)
        answers = in_own_unit(outputs, self.data.target_range)
        targets = in_own_unit(self.data.test.y, self.data.target_range)
        return [self._of_part(answers[part], targets[part]) for part in parts]

    def _of_part(self, answers: Outputs, targets: Targets) -> PartMetrics:
        found = {
            name: metric.of(answers, targets) if len(targets) else None
            for name, metric in self.metrics.items()
        }
        intervals = {
            name: interval_of(name, metric, answers, targets) for name, metric in self.metrics.items()
        }
        return PartMetrics(found, intervals)


def central_evaluation(
    task: Task, device_name: str, metrics: Sequence[str] | None = None
) -> "CentralEvaluation":
    """Return the object that evaluates a task's model on its test examples.

    Raises LearningError: the loss, class weights or metrics do not fit the data set's labels, it has no test
    examples, or a metric is not defined on its test split.
    """
    data = task.load()
    check_loss(task.loss, data.labels, task.class_weights)
    chosen = chosen_metrics(metrics, data.labels)
    model, device, loss = task.build_model(), choose_device(device_name), task.make_loss()
    outputs_of = partial(model_outputs, model, data=data.test, loss=loss, device=device)
    evaluation = CentralEvaluation(model, data, chosen, outputs_of)
    if predicts_nothing(model):
        return evaluation
    if not len(data.test):
        raise LearningError(
            f"dataset={task.source.name} has no examples to test on here: set run.evaluation=nodes, and have "
            "clients count on records that they hold out"
        )
    nothing = np.zeros((len(data.test), *data.labels.outputs))
    targets = in_own_unit(data.test.y, data.target_range)
    for name, metric in chosen.items():
        if metric.of(nothing, targets) is None:
            raise LearningError(
                f"dataset.metrics={name} is not defined on the test split, whose {len(targets)} labels are "
                "too much alike: choose another metric, or a test split with several labels"
            )
    return evaluation
