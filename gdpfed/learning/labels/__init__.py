"""Kinds of labels, one file for each, with their checks, losses and metrics.

A label is one class, a number, a set of labels, or a class for each pixel. Another package adds a kind as an
entry point of the group ``gdpfed.label_kinds``, or for one process with ``LABEL_KINDS.register``.
"""

from gdpfed.learning.labels import classes, label_sets, numbers, pixels
from gdpfed.learning.labels.given_metric import given_metric
from gdpfed.learning.labels.kind import (
    LABEL_KINDS,
    LOSSES,
    METRICS,
    LabelKind,
    Labels,
    Metric,
    Outputs,
    Targets,
    labels_of,
)

for _each in (classes.Classes, numbers.Numbers, label_sets.LabelSets, pixels.Pixels):
    LABEL_KINDS.register(_each.name, _each)

__all__ = [
    "LABEL_KINDS",
    "LOSSES",
    "METRICS",
    "LabelKind",
    "Labels",
    "Metric",
    "Outputs",
    "Targets",
    "given_metric",
    "labels_of",
]
