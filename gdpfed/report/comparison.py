"""Compares runs; runs with the same configuration and different seeds are averaged into one table row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpfed.errors import ReportError
from gdpfed.report.finished_run import FinishedRun, Settings
from gdpfed.report.metric_display import Spread
from gdpfed.runs.resume import CARRYING_OUT

IDENTITIES = frozenset({("secagg", "roster_file"), ("secagg", "consortium_key"), ("secagg", "identities")})
"""Settings of identity, which do not affect results."""

CHANGE_NOTHING: Sequence[tuple[str, object]] = (
    *(("dataset.optimizer", "sgd"), ("dataset.optimizer_options", None)),
    *(("dataset.proximal", 0.0), ("dataset.schedule", "constant"), ("dataset.partition_options", None)),
    *(
        (f"dataset.{key}", None)
        for key in ("train_stride", "vocabulary", "weights", "weights_sha256", "encoder")
    ),
    ("dataset.client_state", None),
    ("privacy.delta_floor", 1e-8),
    ("run.extensions", None),
)
"""Settings that came later, with which a run is what it was without: it keeps its directory."""


MOST_NAMED = 3
"""Settings that a line is named by, if more of them differ."""
VARIED_FIRST = (
    *("privacy.unit", "privacy.against", "privacy.budgets", "privacy.clipping_norm", "privacy.noise_taps"),
    *("dataset.num_clients", "dataset.partition", "run.num_rounds", "dataset.model", "secagg.mode"),
    *("privacy.sampling_rate", "privacy.batch_rate", "privacy.accountant", "privacy.adjacency"),
    *("dataset.learning_rate", "dataset.local_steps", "method.average"),
)
"""What people vary by hand, first of all; of settings that go with each other it is named."""


@dataclass(frozen=True, eq=False)
class Line:
    """One row in a comparison of runs: a configuration, its label, and its runs, one for each seed."""

    label: str
    runs: tuple[FinishedRun, ...]

    @property
    def metric(self) -> str:
        """The name of the metric that is shown for this configuration."""
        return self.runs[0].metric

    @property
    def evaluated(self) -> bool:
        """Whether every run of this configuration was evaluated, so that its metric is known."""
        return all(run.records[-1].evaluated for run in self.runs)

    @property
    def final_result(self) -> Spread:
        """Mean and standard deviation, over seeds, of the metric after the last round, as displayed."""
        return Spread.of([run.final_result for run in self.runs])

    def results(self) -> list[Spread]:
        """Return mean and stddev of the displayed metric for each round that the runs of all seeds have."""
        return [Spread.of(each) for each in zip(*(run.results for run in self.runs), strict=False)]


def computed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that can change a run's result, by name (such as run.num_rounds), without the seed.

    Clients train with what the group training says, so it takes the place of what the data set recommends.
    """
    recommended = dict(settings["dataset"]) | dict(settings["training"])
    followed = {name: section for name, section in settings.items() if name != "training"}
    return {
        f"{section}.{key}": value
        for section, values in (followed | {"dataset": recommended}).items()
        for key, value in values.items()
        if key not in CARRYING_OUT.get(section, ()) and (section, key) not in {("run", "seed"), *IDENTITIES}
        if (f"{section}.{key}", value) not in CHANGE_NOTHING
    }


def lines_of(runs: Sequence[FinishedRun]) -> list[Line]:
    """Group runs by configuration (seeds apart), in the order given; each group is one row of the comparison.

    Raises ReportError: the same directory twice.
    """
    seen = set()
    for run in runs:
        path = run.path.resolve()
        if path in seen:
            raise ReportError(f"{run.path} is named twice: it would count as two seeds, name it once")
        seen.add(path)
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(computed_settings(run.settings), sort_keys=True), []).append(run)
    settings = [computed_settings(members[0].settings) for members in groups.values()]
    return [
        Line(_label(own, settings), tuple(sorted(members, key=lambda run: run.seed)))
        for own, members in zip(settings, groups.values(), strict=True)
    ]


def _label(own: Mapping[str, Any], all_settings: Sequence[Mapping[str, Any]]) -> str:
    """Name a configuration by its method, its data set if there are several, and the settings that differ."""
    names = [own["method.name"]]
    if len({all_setting["dataset.name"] for all_setting in all_settings}) > 1:
        names.insert(0, own["dataset.name"])
    alike = [all_setting for all_setting in all_settings if _kind(all_setting) == _kind(own)]
    shown, more = _settings_named(own, alike)
    rest = [f"and {more} settings more"] if more > 1 else []
    return ", ".join([*names, *(f"{_short(key)} {_text(own[key])}" for key in shown), *rest])


def _kind(settings: Mapping[str, Any]) -> tuple[str, str]:
    return settings["dataset.name"], settings["method.name"]


def _settings_named(own: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Choose the settings that a configuration's label names; also count the differing settings it omits.

    Settings that tell the same lines apart go with each other, as those of a data set or an option group do:
    of many of them the first by `VARIED_FIRST` is named, which somebody varies by hand.
    """
    # A label leaves out what a method chose by itself.
    chosen = {entry.partition("=")[0] for each in alike for entry in each.get("method.chosen") or ()}
    followed = {*chosen, *(key.replace("training.", "dataset.") for key in chosen)}
    if chosen:
        followed.add("method.chosen")
    keys = list(dict.fromkeys(key for each in alike for key in each if key not in followed))
    differing = [key for key in keys if any(each.get(key) != own.get(key) for each in alike)]
    # A default dataset.x is left out where, for example, run.x differs too.
    elsewhere = {_short(key) for key in differing if not key.startswith("dataset.")}
    differing = [key for key in differing if not key.startswith("dataset.") or _short(key) not in elsewhere]
    if len(differing) <= MOST_NAMED:
        return [key for key in differing if key in own], 0
    kinds: dict[str, str] = {}
    for key in sorted(differing, key=_rank_in_labels):
        apart = json.dumps([[each.get(key) == other.get(key) for each in alike] for other in alike])
        if key in own:
            kinds.setdefault(apart, key)
    named = [key for key in differing if key in kinds.values()][:MOST_NAMED]
    return named, len(differing) - len(named)


def _rank_in_labels(key: str) -> int:
    """Return a setting's rank in labels: first the settings in `VARIED_FIRST`, last those of the data set."""
    place = len(VARIED_FIRST) + key.startswith("dataset.")
    return VARIED_FIRST.index(key) if key in VARIED_FIRST else place


def _short(key: str) -> str:
    return key.partition(".")[2]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_text(each) for each in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)
