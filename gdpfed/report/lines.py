"""Lines of a comparison: runs that differ only in the seed are one line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpfed.errors import ReportError
from gdpfed.report.finished_run import FinishedRun, Settings
from gdpfed.report.metric_display import Spread
from gdpfed.runs.resume import CARRYING_OUT

IDENTITIES = frozenset({("secagg", "roster_file"), ("secagg", "consortium_key"), ("secagg", "identities")})
"""Settings of identity, which do not affect results."""


@dataclass(frozen=True, eq=False)
class Line:
    """One configuration with a run for every seed, and the name it goes by in a comparison."""

    label: str
    runs: tuple[FinishedRun, ...]

    @property
    def metric(self) -> str:
        """The name of the metric that is shown, which all runs share."""
        return self.runs[0].metric

    @property
    def final_result(self) -> Spread:
        """The metric after the last round over the seeds, on the scale that it is shown on."""
        return Spread.of([run.final_result for run in self.runs])

    def results(self) -> list[Spread]:
        """The metric after every round over the seeds, on the scale that it is shown on."""
        return [Spread.of(each) for each in zip(*(run.results for run in self.runs), strict=True)]


def computed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that results follow from, the seed aside, by dotted key.

    Clients train with what the group training says, so it takes the place of what the data set recommends.
    """
    recommended = dict(settings["dataset"]) | dict(settings["training"])
    followed = {name: section for name, section in settings.items() if name != "training"}
    return {
        f"{section}.{key}": value
        for section, values in (followed | {"dataset": recommended}).items()
        for key, value in values.items()
        if key not in CARRYING_OUT.get(section, ()) and (section, key) not in {("run", "seed"), *IDENTITIES}
    }


def lines_of(runs: Sequence[FinishedRun]) -> list[Line]:
    """One line a configuration, in the order in which they come.

    Raises ReportError: the same directory twice.
    """
    _refuse_repeated(runs)
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(computed_settings(run.settings), sort_keys=True), []).append(run)
    settings = [computed_settings(members[0].settings) for members in groups.values()]
    return [
        Line(_label(own, settings), tuple(sorted(members, key=lambda run: run.seed)))
        for own, members in zip(settings, groups.values(), strict=True)
    ]


def _refuse_repeated(runs: Iterable[FinishedRun]) -> None:
    seen = set()
    for run in runs:
        path = run.path.resolve()
        if path in seen:
            raise ReportError(f"{run.path} is named twice: it would count as two seeds")
        seen.add(path)


def _label(own: Mapping[str, Any], all_settings: Sequence[Mapping[str, Any]]) -> str:
    """Method, data set where they differ, and what else tells a line from those of the same two."""
    names = [own["method.name"]]
    if len({each["dataset.name"] for each in all_settings}) > 1:
        names.insert(0, own["dataset.name"])
    alike = [each for each in all_settings if _kind(each) == _kind(own)]
    differing = [key for key in own if any(each.get(key) != own[key] for each in alike)]
    return ", ".join([*names, *(f"{_short(key)} {_text(own[key])}" for key in _causes(differing))])


def _kind(settings: Mapping[str, Any]) -> tuple[str, str]:
    return settings["dataset.name"], settings["method.name"]


def _causes(differing: Sequence[str]) -> list[str]:
    """Leave out a data set's value where the setting that takes it as default differs as well."""
    elsewhere = {_short(key) for key in differing if not key.startswith("dataset.")}
    return [key for key in differing if not key.startswith("dataset.") or _short(key) not in elsewhere]


def _short(key: str) -> str:
    return key.partition(".")[2]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_text(each) for each in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)
