"""A round's record as named numbers, for curves."""

from collections.abc import Sequence

from gdpfed.learning.metrics import DEFAULT
from gdpfed.runs.records import RoundRecord


def metrics_of(record: RoundRecord) -> dict[str, float]:
    """Every figure of a round by name, groups and sums counted from 0; what is not promised is left out."""
    by_group: dict[str, Sequence[float | None]] = {
        "cohort/group": record.cohort_sizes,
        "survivors/sum": record.survivors,
        "epsilon/group": record.spent_epsilon,
        "epsilon_against_server/group": record.epsilon_against_server,
    }
    by_name: dict[str, float | None] = {DEFAULT: record.accuracy} | record.metrics | {"loss": record.loss}
    metrics = {f"test/{name}": value for name, value in by_name.items() if value is not None}
    for name, values in by_group.items():
        metrics |= {f"{name}_{k}": float(v) for k, v in enumerate(values) if v is not None}
    return metrics | {f"seconds/{phase}": value for phase, value in record.seconds.items()}
