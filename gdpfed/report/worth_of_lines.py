"""Compares runs' models with models that data owners could train without a run; averages over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gdpfed.errors import ReportError
from gdpfed.report.class_figures import Figure
from gdpfed.report.comparison import Line, lines_of
from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.rivals import worth_of
from gdpfed.report.worth import Judged, Worth

OfModel = Mapping[str, Mapping[str, Figure]]


def worth_of_runs(runs: Sequence[FinishedRun], overrides: Sequence[str], pull: float | None) -> Worth:
    """Compare finished runs' models, in one table, with models that data owners could train without a run.

    Runs that differ in run.seed alone are one line, by their mean. A model whose figures are the same in all
    lines has one row; others have one a line, named by what differs.

    Raises:
        LearningError, ReportError: as :func:`gdpfed.report.rivals.worth_of`.
        ReportError: runs of other parties or test rows, or the same run twice.
    """
    return side_by_side({line.label: each for line, each in worth_by_line(runs, overrides, pull)})


def worth_by_line(
    runs: Sequence[FinishedRun], overrides: Sequence[str], pull: float | None
) -> list[tuple[Line, Worth]]:
    """For each configuration, compare its runs' models with models that owners could train without a run."""
    return [
        (line, mean_worth([worth_of(run.path, overrides, pull) for run in line.runs]))
        for line in lines_of(runs)
    ]


def mean_worth(found: Sequence[Worth]) -> Worth:
    """Average comparisons of runs that differ only in their seed.

    Raises ReportError: runs of different models or parties.
    """
    first = found[0]
    for each in found:
        if [*each.figures] != [*first.figures]:
            raise ReportError("the runs do not have the same models: compare runs of one setting")
        _refuse_others(each, first)
    figures = {
        model: {
            party: {name: Figure.mean([each.figures[model][party][name] for each in found]) for name in own}
            for party, own in by_party.items()
        }
        for model, by_party in first.figures.items()
    }
    judged = {
        model: {name: Judged.mean([each.judged[model][name] for each in found]) for name in own}
        for model, own in first.judged.items()
    }
    title = f"{first.title}, mean of {len(found)} runs" if len(found) > 1 else first.title
    return replace(first, title=title, figures=figures, judged=judged)


def side_by_side(lines: Mapping[str, Worth]) -> Worth:
    """Combine comparisons of several configurations; a compared model with equal results in all appears once.

    Raises ReportError: lines of other parties or test rows.
    """
    first = next(iter(lines.values()))
    if len(lines) == 1:
        return first
    methods = {label.partition(", ")[0] for label in lines}
    if len(methods) == 1 and all(", " in label for label in lines):
        # What all of them are called by tells none of them apart.
        lines = {label.partition(", ")[2]: each for label, each in lines.items()}
    figures, privacy = dict[str, OfModel](), dict[str, str]()
    models = list(dict.fromkeys(model for line in lines.values() for model in line.figures))
    for model in models:
        having = {label: each for label, each in lines.items() if model in each.figures}
        own = next(iter(having.values()))
        alike = len(having) == len(lines) and all(
            _equal_figures(each.figures[model], own.figures[model])
            and each.privacy[model] == own.privacy[model]
            for each in having.values()
        )
        for label, each in ({"": own} if alike else having).items():
            _refuse_others(each, first)
            name = f"{model} ({label})" if label else model
            figures[name], privacy[name] = each.figures[model], each.privacy[model]
    titles = list(dict.fromkeys(line.title for line in lines.values()))
    return replace(first, title="; ".join(titles), figures=figures, privacy=privacy)


def _equal_figures(one: OfModel, other: OfModel) -> bool:
    first, second = (
        np.array([(each.value, each.low, each.high) for own in figures.values() for each in own.values()])
        for figures in (one, other)
    )
    return first.shape == second.shape and bool(np.allclose(first, second, equal_nan=True))


def _refuse_others(each: Worth, first: Worth) -> None:
    if each.rows != first.rows:
        raise ReportError(
            "the runs do not have the same parties and test rows: compare runs on the same data and parties"
        )
