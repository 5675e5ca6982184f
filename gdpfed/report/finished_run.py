"""Reads a finished run from its directory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from gdpfed.decimal_numbers import counted
from gdpfed.errors import ReportError
from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.report.evaluated import Result
from gdpfed.report.metric_display import MetricDisplay, metrics_of
from gdpfed.runs.file_formats import (
    ACCURACY_PICTURE,
    BUDGET_PICTURE,
    CONFIG_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PLAN_FILE,
    check_json_file,
)
from gdpfed.runs.round_log import RoundLogEntry, last_evaluated, read_rounds
from gdpfed.runs.run_end import RunEnd
from gdpfed.yaml_files import read_yaml

if TYPE_CHECKING:
    import pandas

SECTIONS = ("dataset", "training", "method", "privacy", "secagg", "run")
FLOAT32_BYTES = 4

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, eq=False, repr=False)
class FinishedRun:
    """A finished run: its configuration, plan and log of rounds, as read from its directory.

    `settings`: its whole configuration by section and key. `plan`: the privacy plan in its JSON form.
    `records`: one a round, round 1 first. `dimension`: d, the parameters of the model. `end`: what is said of
    its end.
    """

    path: Path
    settings: Settings
    plan: Mapping[str, Any]
    records: list[RoundLogEntry]
    dimension: int
    end: RunEnd = field(default_factory=RunEnd)

    @property
    def seed(self) -> int:
        """The random seed of the initial model, of the data partition and of the batches."""
        return int(self.settings["run"]["seed"])

    @property
    def metric(self) -> str:
        """The name of the metric that is shown for this run."""
        return last_evaluated(self.records).shown[0]

    @property
    def results(self) -> list[float]:
        """The metric after every round, in displayed units such as percent."""
        shown = MetricDisplay.of(self.metric)
        return [shown.scaled(record.shown[1]) for record in self.records]

    @property
    def final_result(self) -> float:
        """The released model's metric, or that of the last evaluated round, in units such as percent."""
        judged = self.end.judged(last_evaluated(self.records))
        return MetricDisplay.of(self.metric).scaled(judged.shown[1])

    def to_frame(self) -> "pandas.DataFrame":
        """Return the log of rounds as a pandas data frame with one row for each round.

        Columns are `round`, `test/<metric>`, `epsilon/group_<m>`, `epsilon_against_server/group_<m>`,
        `cohort/group_<m>`, `survivors/sum_<i>` and `seconds/<phase>`; what a round lacks is NaN.
        """
        import pandas

        rows = [{"round": record.round} | metrics_of(record, cohorts=True) for record in self.records]
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        name = self.settings["dataset"]["name"]
        budgets = [group["epsilon"] for group in self.plan["groups"]]
        spent = [
            "none" if each is None or budget is None else f"{each:.2f}/{budget:g}"
            for each, budget in zip(self.records[-1].spent_epsilon, budgets, strict=True)
        ]
        return (
            f"{self.settings['method']['name']} on {name}, {counted(len(self.records), 'round')}: "
            f"{Result.of(self.path, self.records[-1])}, epsilon spent/budget {' '.join(spent)}; files in "
            f"{self.path}"
        )

    def _repr_html_(self) -> str:
        # The tables are of lines of runs, and import this module.
        from gdpfed.report.comparison import lines_of
        from gdpfed.report.comparison_tables import budgets_table, results_table
        from gdpfed.report.notebook import html_of, picture

        lines = lines_of([self])
        pictures = [
            picture(self.path / ACCURACY_PICTURE, "the metric after every round"),
            picture(self.path / BUDGET_PICTURE, "epsilon spent after every round"),
        ]
        shown = html_of(results_table(lines), budgets_table(lines), f"files in {self.path}")
        return "\n".join([shown, *filter(None, pictures)])

    @property
    def seconds_a_round(self) -> float | None:
        """The mean seconds of a round; None if not recorded, or if times could reveal who was sampled."""
        if not cohorts_shown(self.plan, self.settings):
            return None
        times = [record.seconds["total"] for record in self.records if "total" in record.seconds]
        return sum(times) / len(times) if times else None

    @property
    def upload_bytes(self) -> float | None:
        """How many bytes a client sends in a round that it takes part in; None if nothing was sent."""
        sent = [each for record in self.records for each in record.upload_bytes if each > 0]
        return self.dimension * sum(sent) / len(sent) if sent else None

    @property
    def download_bytes(self) -> int:
        """How many bytes of model, as float32, a client receives in a round that it takes part in."""
        return FLOAT32_BYTES * self.dimension


class UnfinishedError(ReportError):
    """Raised for a run that has not finished: it is still running, or was interrupted."""


def read_run(path: Path) -> FinishedRun:
    """Read the finished run in a directory; raise ReportError if the run is unfinished or damaged.

    Raises:
        ReportError: no run, an unfinished one or a damaged one.
        RunError: a run of another format.
    """
    check_json_file(path / PLAN_FILE)
    settings = read_whole_settings(path)
    plan = read_plan(path)
    try:
        records = read_rounds(path)
    except ValueError as error:
        raise ReportError(f"{path} is a damaged run: {error}; restore it from a copy") from None
    if not (path / MODEL_FILE).is_file():
        raise UnfinishedError(
            f"{path} is not finished, {len(records)} of {settings['run']['num_rounds']} rounds are "
            f"recorded: continue it with run.resume={path}"
        )
    rounds, num_rounds = [record.round for record in records], settings["run"]["num_rounds"]
    if rounds != list(range(1, num_rounds + 1)):
        # Of a run that has ended early, fewer than the planned rounds are charged.
        try:
            charged = int(read_json((path / LEDGER_FILE).read_text(encoding="utf-8"))["charged_rounds"])
        except (OSError, *WRONG_FORM):
            charged = num_rounds
        num_rounds = charged if 1 <= charged <= num_rounds else num_rounds
    if rounds != list(range(1, num_rounds + 1)):
        raise ReportError(
            f"{path} is a damaged run: its record does not hold the rounds 1 to {num_rounds} once each; "
            "restore it from a copy"
        )
    model = path / MODEL_FILE
    try:
        # The header of the model's file has the shapes.
        with safe_open(model, framework="numpy") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ReportError(f"{path} is a damaged run: {MODEL_FILE}: {error}; restore it from a copy") from None
    return FinishedRun(path, settings, plan, records, sum(map(prod, shapes)), RunEnd.read(path))


def read_settings(path: Path) -> Settings | None:
    """Read the configuration in a run directory; None if it cannot be read."""
    try:
        settings = read_yaml((path / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(settings, dict) and all(isinstance(settings.get(name), dict) for name in SECTIONS)
    return settings if whole else None


def read_whole_settings(path: Path) -> Settings:
    """Read the configuration of a run; raise ReportError if the run has none."""
    if not path.is_dir():
        raise ReportError(f"{path} is not a run: there is no such directory")
    settings = read_settings(path)
    if settings is None:
        raise ReportError(
            f"{path} is not a run: it holds no {CONFIG_FILE} with a run's settings; name the "
            "directory of a run"
        )
    return settings


def cohorts_shown(plan: Mapping[str, Any], settings: Settings) -> bool:
    """Whether reports may show who was sampled: epsilon does not rely on secrecy, or a setting allows it."""
    events = [charge["event"] for group in plan["groups"] for charge in group["charges"]]
    everybody = bool(events) and all(event.get("sampling_rate") == 1.0 for event in events)
    public = not plan["private"] or plan["sampling"] == "scheduled" or plan["unit"] == "record" or everybody
    return public or bool(settings["run"]["show_cohorts"])


def read_plan(path: Path) -> Mapping[str, Any]:
    """Read the privacy plan in a run's directory; raise ReportError if there is none."""
    try:
        plan = read_json((path / PLAN_FILE).read_text(encoding="utf-8"))
        plan["weighting"]["noise_magnitude"], plan["groups"]
    except (OSError, *WRONG_FORM):
        raise ReportError(
            f"{path} is a damaged run: {PLAN_FILE} holds no plan; restore it from a copy"
        ) from None
    return dict(plan)
