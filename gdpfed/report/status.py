"""A round for its operator: one line of text, and its values by name for curves."""

from collections.abc import Sequence
from math import isinf

from gdpfed.learning.training.evaluation_metrics import DEFAULT
from gdpfed.report.metric_display import shown_in
from gdpfed.runs.round_log import RoundLogEntry

WITHOUT_A_SUM = "no sum, rounds.jsonl says why"


def status_line(
    record: RoundLogEntry, budgets: Sequence[float], num_rounds: int, seconds_left: float, *, cohorts: bool
) -> str:
    """Round, metric, cohort, survivors, epsilon spent and left of every group, time, failures.

    Without ``cohorts`` cohort, survivors, time and reasons of failures are left out: they tell of the draw.
    """
    failures = record.failures if cohorts else dict.fromkeys(record.failures, WITHOUT_A_SUM)
    failed = "".join(f"; {name}: {reason}" for name, reason in failures.items())
    shown = f"round {record.round}/{num_rounds}: {shown_in(record)}"
    spent = _budgets(record.spent_epsilon, budgets)
    left = f"{_duration(seconds_left)} left{failed}"
    if not cohorts:
        return f"{shown}, {spent}, {left}"
    drawn = f"asked {_each(record.cohort_sizes)}, in the sums {_each(record.survivors)}"
    return f"{shown}, {drawn}, {spent}, {record.seconds['total']:.1f} s, {left}"


def _each(sizes: Sequence[int]) -> str:
    return "+".join(str(size) for size in sizes) or "0"


def _budgets(spent: Sequence[float | None], budgets: Sequence[float]) -> str:
    if all(isinf(budget) for budget in budgets):
        return "no privacy"
    figures = [
        f"{epsilon:.2f}+{max(0.0, budget - epsilon):.2f}"
        for epsilon, budget in zip(spent, budgets, strict=True)
        if epsilon is not None
    ]
    return f"epsilon spent+left {', '.join(figures)}"


def _duration(seconds: float) -> str:
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole_seconds} s" if minutes else f"{whole_seconds} s"


def metrics_of(record: RoundLogEntry, *, cohorts: bool) -> dict[str, float]:
    """The figures of a round by name, groups and sums counted from 0; what is not promised is left out.

    Without ``cohorts`` nothing is among them that depends on who was drawn, the round's time included.
    """
    by_group: dict[str, Sequence[float | None]] = {"epsilon/group": record.spent_epsilon}
    if cohorts:
        by_group |= {
            "cohort/group": record.cohort_sizes,
            "survivors/sum": record.survivors,
            "epsilon_against_server/group": record.epsilon_against_server,
        }
    by_name: dict[str, float | None] = {DEFAULT: record.accuracy} | record.metrics | {"loss": record.loss}
    metrics = {f"test/{name}": value for name, value in by_name.items() if value is not None}
    for name, values in by_group.items():
        metrics |= {f"{name}_{k}": float(v) for k, v in enumerate(values) if v is not None}
    seconds = record.seconds if cohorts else {}
    return metrics | {f"seconds/{phase}": value for phase, value in seconds.items()}
