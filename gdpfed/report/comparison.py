"""Compare runs: those that differ only in the seed are one line of a table."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from gdpfed.errors import ReportError
from gdpfed.record_steps import kind_of
from gdpfed.report.console import Table
from gdpfed.report.finished_run import FinishedRun, Settings
from gdpfed.report.metric_display import ABSENT, MetricDisplay, Spread
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
    """One line of a comparison: a configuration, its name, and a run for each seed."""

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
    """The settings that can change a result, without the seed, by dotted key.

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
    """Sort runs into lines: one for each configuration, in the order given.

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
    """Name a line by its method, its data set if they differ, and the settings that differ."""
    names = [own["method.name"]]
    if len({each["dataset.name"] for each in all_settings}) > 1:
        names.insert(0, own["dataset.name"])
    alike = [each for each in all_settings if _kind(each) == _kind(own)]
    shown, more = _varied(own, alike)
    rest = [f"and {more} settings more"] if more > 1 else []
    return ", ".join([*names, *(f"{_short(key)} {_text(own[key])}" for key in shown), *rest])


def _kind(settings: Mapping[str, Any]) -> tuple[str, str]:
    return settings["dataset.name"], settings["method.name"]


def _varied(own: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """The settings that name a line, and how many other settings differ.

    Settings that tell the same lines apart go with each other, as those of a data set or an option group do:
    of many of them the first by `VARIED_FIRST` is named, which somebody varies by hand.
    """
    followed = {key for each in alike for key in _chosen(each)}
    keys = list(dict.fromkeys(key for each in alike for key in each if key not in followed))
    differing = _causes([key for key in keys if any(each.get(key) != own.get(key) for each in alike)])
    if len(differing) <= MOST_NAMED:
        return [key for key in differing if key in own], 0
    kinds: dict[str, str] = {}
    for key in sorted(differing, key=_order):
        apart = json.dumps([[each.get(key) == other.get(key) for each in alike] for other in alike])
        if key in own:
            kinds.setdefault(apart, key)
    named = [key for key in differing if key in kinds.values()][:MOST_NAMED]
    return named, len(differing) - len(named)


def _chosen(settings: Mapping[str, Any]) -> Iterable[str]:
    """What a method has chosen by itself: it follows from what somebody varied, and names no line."""
    for entry in settings.get("method.chosen") or ():
        key = entry.partition("=")[0]
        yield from ("method.chosen", key, key.replace("training.", "dataset."))


def _order(key: str) -> int:
    """Rank of a setting in names: data set settings last, because other settings copy them."""
    place = len(VARIED_FIRST) + key.startswith("dataset.")
    return VARIED_FIRST.index(key) if key in VARIED_FIRST else place


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


KILO = 1000

RESULT_HEADINGS = ("run", "seeds", "rounds", "{metric}", "Lambda", "up (kB)", "down (kB)", "s / round")
BUDGET_HEADINGS = (
    *("run", "group", "clients", "rate q", "sigma²", "against", "epsilon budget", "spent", "vs server"),
)
TRUSTED = "all but server"


def figure_of(line: Line, measure: Callable[[FinishedRun], float | None]) -> Spread | None:
    """A measured figure over the runs that have it; None if none has."""
    values = [value for value in map(measure, line.runs) if value is not None]
    return Spread.of(values) if values else None


def one_metric(lines: Sequence[Line]) -> str:
    """The name of the metric that all lines show.

    Raises ReportError: they show different ones.
    """
    by_name = {line.metric: line.label for line in reversed(lines)}
    if len(by_name) > 1:
        named = ", ".join(f"{label}: {name}" for name, label in by_name.items())
        raise ReportError(f"the runs show different metrics ({named}): report on those of one metric")
    return next(iter(by_name))


def kilobytes_up(run: FinishedRun) -> float | None:
    """Return how many kB a client sends in a round that it takes part in."""
    return None if run.upload_bytes is None else run.upload_bytes / KILO


def kilobytes_down(run: FinishedRun) -> float:
    """The model that a client gets in a round that it takes part in, in kB."""
    return run.download_bytes / KILO


def noise_magnitude(run: FinishedRun) -> float:
    """Lambda of the run's plan."""
    return float(run.plan["weighting"]["noise_magnitude"])


def results_table(lines: Sequence[Line]) -> Table:
    """Return a table of the shown metric and of the cost, with a row for each line.

    Raises ReportError: lines that show different metrics.
    """
    metric = MetricDisplay.of(one_metric(lines))
    seeds = max(len(line.runs) for line in lines)
    spread = "mean ± standard deviation over the seeds; " if seeds > 1 else ""
    return Table(
        title=f"{metric.words[0].upper()}{metric.words[1:]} and cost",
        headings=[heading.format(metric=metric.heading) for heading in RESULT_HEADINGS],
        rows=[_result_row(line) for line in lines],
        note=(
            f"Test {metric.words} after the last round: {spread}Lambda: noise magnitude, the expected "
            "squared noise a parameter. Up and down: masked update and model, in kB for a client in a round "
            f"that it takes part in; {ABSENT}: nothing was sent, the run was simulated in one process."
        ),
    )


def differences_table(lines: Sequence[Line]) -> Table | None:
    """Return a table of each line's difference to the first, seed by seed; None without two shared seeds.

    With differences d_1, ..., d_n of the seeds that both lines have, the interval is
    mean(d) ± t(0.975, n - 1) sd(d) / sqrt(n), Student's t.
    """
    first, shown = lines[0], MetricDisplay.of(one_metric(lines))
    rows = [
        [line.label, str(differences.count), differences.text(shown.form), _interval(differences, shown.form)]
        for line in lines[1:]
        if (differences := _differences(line, first)) is not None
    ]
    if not rows:
        return None
    return Table(
        title=f"Differences to {first.label}, by seed",
        headings=("run", "seeds", f"{shown.heading} more", "95 % interval"),
        rows=rows,
        note=(
            "Mean ± standard deviation of the differences of runs with the same seed. An interval with zero "
            "in it shows no order of the two."
        ),
    )


def _differences(line: Line, first: Line) -> Spread | None:
    """The differences for the seeds that both lines have; None for fewer than two seeds."""
    of_first = {run.seed: run.final_result for run in first.runs}
    found = [run.final_result - of_first[run.seed] for run in line.runs if run.seed in of_first]
    return Spread.of(found) if len(found) > 1 else None


def _interval(differences: Spread, form: str) -> str:
    half = float(stdtrit(differences.count - 1, 0.975)) * (differences.stddev or 0.0)
    half /= math.sqrt(differences.count)
    return f"{differences.mean - half:+{form}} to {differences.mean + half:+{form}}"


def seeds_table(lines: Sequence[Line]) -> Table:
    """Return every run as a row of plain figures, for other programs."""
    groups = max(len(run.plan["groups"]) for line in lines for run in line.runs)
    headings = (
        "run",
        "dataset",
        "method",
        "seed",
        "metric",
        "result",
        "lambda",
        "kb_up",
        "kb_down",
        "seconds",
    )
    return Table(
        title="Every run",
        headings=[*headings, *(f"spent_{index}" for index in range(groups)), "path"],
        rows=[_seed_row(line, run, groups) for line in lines for run in line.runs],
    )


def _seed_row(line: Line, run: FinishedRun, groups: int) -> list[str]:
    spent = [*run.records[-1].spent_epsilon, *[None] * groups][:groups]
    figures = (run.final_result, noise_magnitude(run), kilobytes_up(run), kilobytes_down(run))
    names = [line.label, *(str(run.settings[group]["name"]) for group in ("dataset", "method"))]
    numbers = ["" if each is None else f"{each:.10g}" for each in (*figures, run.seconds_a_round, *spent)]
    return [*names, str(run.seed), run.metric, *numbers, str(run.path)]


def _result_row(line: Line) -> list[str]:
    measures = ((noise_magnitude, ".3g"), (kilobytes_up, ".1f"), (kilobytes_down, ".1f"))
    seconds = figure_of(line, lambda run: run.seconds_a_round)
    return [
        line.label,
        str(len(line.runs)),
        str(len(line.runs[0].records)),
        line.final_result.text(MetricDisplay.of(line.metric).form),
        *(_mean(figure_of(line, measure), form) for measure, form in measures),
        ABSENT if seconds is None else seconds.text(".2f"),
    ]


def _mean(figure: Spread | None, form: str) -> str:
    return ABSENT if figure is None else format(figure.mean, form)


def budgets_table(lines: Sequence[Line]) -> Table:
    """Return a table of budgets and spent epsilon, one row a group."""
    return Table(
        title="Privacy budgets",
        headings=BUDGET_HEADINGS,
        rows=[row for line in lines for row in _budget_rows(line)],
        note=(
            "Against outsiders budget and spent hold for whoever is told nothing of who was sampled, and not "
            "for the coordinating server and members of the same sums: for them vs server holds, as planned, "
            "of a client that takes part as often as 99 of 100 do at most. Against everyone they hold for "
            "all of these. None: no bound holds against the server, which sees single updates."
        ),
    )


def _budget_rows(line: Line) -> list[list[str]]:
    return [
        [
            line.label if index == 0 else "",
            str(index),
            str(group["clients"]),
            f"{100 * group['sampling_rate']:.2f} %",
            f"{group['noise_variance_multiplier']:.3f}",
            whom_it_holds_against(line.runs[0].plan),
            _epsilon([group["epsilon"]]),
            _epsilon([run.records[-1].spent_epsilon[index] for run in line.runs]),
            _epsilon([group["epsilon_against_server"]]),
        ]
        for index, group in enumerate(line.runs[0].plan["groups"])
    ]


def whom_it_holds_against(plan: Mapping[str, Any]) -> str:
    """Return whom the epsilon of a plan in JSON form holds against.

    Batches of records are drawn on the clients, unknown to everybody, and noise of a client's own hides its
    contribution from whoever sees it: there it needs no secret sample of clients.
    """
    if not plan["private"]:
        return ABSENT
    if all(kind_of(work).own_noise for work in plan["works"]):
        return "everyone"
    if plan["sampling"] != "scheduled" and plan["mechanism"] != "record_sums":
        return "outsiders"
    return "everyone" if plan["sums_hidden"] else TRUSTED


def _epsilon(values: Sequence[float | None]) -> str:
    """The largest epsilon; none if one of them is unbounded."""
    bounded = [value for value in values if value is not None]
    return f"{max(bounded):.3g}" if len(bounded) == len(values) else "none"
