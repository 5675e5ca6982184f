"""Wraps a metric of a package or of a Python program, so that nothing that it does breaks off a run."""

from dataclasses import replace
from math import isfinite

from gdpfed.errors import LearningError, kind_and_words
from gdpfed.learning.labels.kind import Metric, Outputs, Targets
from gdpfed.registry import is_ours


def given_metric(name: str, metric: object) -> Metric:
    """Return a metric that gets arrays of its own, and that is not defined where its figure is not finite.

    A figure that is not finite has no place in a run's files. Its errors are a LearningError of one line.
    Raises LearningError: `metric` is not a `Metric`.
    """
    if not isinstance(metric, Metric):
        raise LearningError(
            f"dataset.metrics={name} is of type {type(metric).__name__}: its package must declare a "
            "Metric of gdpfed.learning.labels"
        )
    if is_ours(metric.of):
        return metric

    def of(outputs: Outputs, targets: Targets) -> float | None:
        try:
            found = metric.of(outputs.copy(), targets.copy())
            figure = None if found is None else float(found)
        except Exception as error:
            raise LearningError(
                f"dataset.metrics={name} fails on outputs of shape {outputs.shape} and targets of shape "
                f"{targets.shape} ({kind_and_words(error)}): it must return a number, or None where it is "
                "not defined"
            ) from error
        return figure if figure is None or isfinite(figure) else None

    return replace(metric, of=of)
