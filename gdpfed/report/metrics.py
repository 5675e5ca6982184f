"""The log entry of a round as named numbers, for curves."""

from collections.abc import Sequence

from gdpfed.learning.training.evaluation_metrics import DEFAULT
from gdpfed.runs.records import RoundRecord


def metrics_of(record: RoundRecord, *, cohorts: bool) -> dict[str, float]:
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
