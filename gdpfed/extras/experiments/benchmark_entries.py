"""What a benchmark keeps of each run: results (overall and by budget group), costs, and audit verdict."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import isnan
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from conf.load import load
from conf.schema import Config
from gdpfed.clients.configured import task_of
from gdpfed.errors import AuditError, ExperimentError
from gdpfed.extras.experiments.accuracy import megabytes
from gdpfed.extras.experiments.runs import CellRun
from gdpfed.files import PUBLIC_MODE, save_whole
from gdpfed.json_files import read_json
from gdpfed.learning.data import load_dataset
from gdpfed.learning.data.client_partition import client_of_owner
from gdpfed.learning.labels import METRICS
from gdpfed.learning.model_folder import read_model
from gdpfed.learning.models import flatten
from gdpfed.learning.training.evaluate import in_own_unit, model_outputs
from gdpfed.methods import make_method, resolve
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.comparison_tables import whom_it_holds_against
from gdpfed.report.finished_run import FinishedRun, read_run
from gdpfed.report.messages import fillers_a_round
from gdpfed.report.metric_display import MetricDisplay
from gdpfed.runs.file_formats import PLAN_FILE
from gdpfed.runs.paths import as_of_run

FORMAT_VERSION = 3
HELD, NOT_PRIVATE = "held", "not private"
MOST_ROWS = 5000
"""Of a group of budgets, on which its result is measured: evenly spaced among all of the group's."""
SCHEMA: Mapping[str, str] = {
    "version": "of this schema",
    "dataset": "option of the group dataset",
    "setting": "column of the experiment: budgets, and for clients whom epsilon holds against",
    "method": "row of the experiment",
    "seed": "of model, partition and batches",
    "unit": "whom epsilon protects: client, record or person",
    "against": "whom epsilon holds against where sums are masked; empty without privacy",
    "budgets": "epsilons of the groups, ascending, with semicolons between them",
    "metric": "which the result is",
    "result": "of the model after the last round on all test examples",
    "auc": "area under the curve on them; empty where it was not measured",
    "of_groups": "the result on examples of each group's clients, in the order of budgets",
    "examples_of_groups": "test: their own test examples; training: those that they trained on",
    "worst_group": "the least of of_groups",
    "messages": "of all clients in the whole run under masks, with zeros that fill sums: the plan's mean",
    "megabytes": "that a client receives and sends in the whole run, on average",
    "seconds": "that all rounds took",
    "audit": f"{HELD}, {NOT_PRIVATE}, or what the audit has found",
}
"""The columns of a benchmark's CSV file, and what they hold."""


@dataclass(frozen=True)
class Entry:
    """One run of a benchmark; the attributes are the columns of the CSV file.

    Results are on the scale that the metric is shown on, as percent.
    """

    dataset: str
    setting: str
    method: str
    seed: int
    unit: str
    against: str | None
    budgets: tuple[float, ...]
    metric: str
    result: float
    auc: float | None
    of_groups: tuple[float, ...]
    examples_of_groups: str
    messages: float
    megabytes: float
    seconds: float
    audit: str

    @property
    def worst_group(self) -> float | None:
        """The worst result of any budget group; None if groups were not measured separately."""
        return min(self.of_groups, default=None)

    @property
    def valid(self) -> bool:
        """Whether the audit found no fault in the run, or the method promises no privacy."""
        return self.audit in (HELD, NOT_PRIVATE)

    def to_row(self) -> list[str]:
        """Return this entry as a row of the CSV file."""
        values = asdict(self) | {"version": FORMAT_VERSION, "worst_group": self.worst_group}
        return [_text(values[name]) for name in SCHEMA]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Make a benchmark's entry for one run from values read from JSON."""
        read: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**read)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ";".join(map(_text, value))
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def entries_of(runs: Sequence[CellRun], kept_in: Path) -> Iterator[Entry]:
    """Yield the results of each finished run, from a cache or measured anew; the audit is always made anew.

    Args:
        runs: of the benchmark.
        kept_in: a directory for entries, each of which is read again while the files of its run are the same.

    Raises ReportError, AuditError, LearningError: the files of a run cannot be read.
    """
    try:
        kept_in.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExperimentError(f"{kept_in} cannot be written: {error.strerror}; name another folder") from None
    for run in runs:
        path, digest = kept_in / f"{run.path.name}.json", _digest(run.path)
        try:
            values = read_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            values = {}
        if not isinstance(values, dict):
            values = {}
        if values.get("files") == digest and values.get("version") == FORMAT_VERSION:
            entry = replace(Entry.from_values(values["entry"]), audit=verdict(run.path))
        else:
            entry = measured(run)
            text = json.dumps({"version": FORMAT_VERSION, "files": digest, "entry": asdict(entry)}, indent=2)
            save_whole(path, f"{text}\n".encode(), mode=PUBLIC_MODE)
        # Cells of one configuration share a run, as FedAvg's do under all budgets.
        yield replace(entry, dataset=run.cell.dataset, setting=run.cell.column, method=run.cell.row)


def _digest(run: Path) -> str:
    """Return a hash of all files of a run."""
    found = sha256()
    for path in sorted(each for each in run.rglob("*") if each.is_file()):
        found.update(f"{path.relative_to(run)}\0".encode() + sha256(path.read_bytes()).digest())
    return found.hexdigest()


def measured(run: CellRun) -> Entry:
    """Audit a finished run, and measure its model separately for each budget group.

    Raises ReportError, AuditError, LearningError: its files or data cannot be read.
    """
    finished = read_run(run.path)
    config = as_of_run(load((), begun=finished.settings), run.path)
    method = make_method(resolve(config))
    plan = method.plan
    masked = replace(plan, sums_hidden=True).messages_a_round + fillers_a_round(method, config.secagg)
    of_groups, which = group_results(config, finished)
    last = finished.records[-1]
    return Entry(
        dataset=run.cell.dataset,
        setting=run.cell.column,
        method=run.cell.row,
        seed=run.seed,
        unit=plan.protected,
        against=adversary_of(plan),
        budgets=tuple(group.epsilon for group in configured_groups(config)),
        metric=finished.metric,
        result=finished.final_result,
        auc=None if (area := last.metrics.get("auc")) is None else MetricDisplay.of("auc").scaled(area),
        of_groups=of_groups,
        examples_of_groups=which,
        messages=masked * plan.num_rounds,
        megabytes=megabytes(finished)[-1],
        seconds=sum(record.seconds.get("total", 0.0) for record in finished.records),
        audit=verdict(run.path),
    )


def adversary_of(plan: PrivacyPlan) -> str | None:
    """Return the adversary that a plan's epsilon holds against if sums are masked; None without privacy."""
    return whom_it_holds_against(replace(plan, sums_hidden=True).to_dict()) if plan.private else None


def verdict(path: Path) -> str:
    """Audit a run, and say the result in words."""
    from gdpfed.audit.run_audit import audit_run

    try:
        audit = audit_run(path)
    except AuditError as error:
        return f"cannot be audited: {error}"
    if not audit.private:
        return NOT_PRIVATE
    if audit.passed:
        return HELD
    return "; ".join(audit.findings) or f"a budget of {PLAN_FILE} is exceeded"


def group_results(config: Config, run: FinishedRun) -> tuple[tuple[float, ...], str]:
    """Return the run's metric for each budget group, and which examples were used.

    At most `MOST_ROWS` a group: the clients' own test examples, or, where test examples are nobody's, those
    that they trained on. Empty where a group has none, or where a record is a person.
    """
    task = task_of(config)
    if task.by_person:
        return (), ""
    data = load_dataset(task.source)
    if task.partition == "natural" and data.test_owners is not None:
        examples, which = data.test, "test"
        clients = client_of_owner(data, task.num_clients)[data.test_owners]
    else:
        examples, which = data.train, "training"
        clients = np.full(len(data.train), -1, dtype=np.int64)
        for client in range(task.num_clients):
            clients[task.client_indices(client)] = client
    metric, shown = METRICS.get(run.metric), MetricDisplay.of(run.metric)
    _, _, model = read_model(run.path)
    theta, loss = flatten(model), task.make_loss()
    results = []
    for group in configured_groups(config):
        rows = np.flatnonzero(np.isin(clients, np.asarray(group.clients)))
        if not len(rows):
            return (), ""
        own = examples.take(rows[:: -(-len(rows) // MOST_ROWS)])
        outputs, _ = model_outputs(model, theta, own, loss, torch.device("cpu"))
        answers = in_own_unit(outputs, data.target_range)
        value = metric.of(answers, in_own_unit(own.y, data.target_range))
        results.append(float("nan") if value is None else shown.scaled(value))
    return tuple(results), which
