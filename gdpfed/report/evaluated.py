"""A run's result in words: its metric, or why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gdpfed.errors import ReportError
from gdpfed.report.metric_display import NOT_EVALUATED, MetricDisplay, shown_in
from gdpfed.runs.file_formats import HELD_OUT_FILE, read_result
from gdpfed.runs.round_log import RoundLogEntry, last_evaluated, read_rounds
from gdpfed.runs.run_end import RunEnd

NO_COUNTS = "run.evaluation=nodes has clients count after the last round, and no sum of these counts has come"
CHOSEN = "of the released model, which an extension chose"
AFTER = "after round {}, the last one that was evaluated (run.evaluate_every)"
NOTE = (
    f"{NOT_EVALUATED.capitalize()}: run.evaluation=nodes has clients count on records that they hold out; "
    "what came of it is in the run's model card."
)


@dataclass(frozen=True)
class Result:
    """A run's result in words; if needed, a note says where it was measured or why there is no result."""

    figure: str
    note: str = ""

    @classmethod
    def of(cls, directory: Path, record: RoundLogEntry) -> Self:
        """Return a run's metric as the server measured it or, failing that, from clients' held-out records.

        `record`: of its last round. If this round was not evaluated, the metric after an earlier one counts.
        A released model that is not that of the last round has figures of its own.

        Raises:
            ReportError: the file with these counts is damaged.
            RunError: it is of another format.
        """
        if (end := RunEnd.read(directory)).evaluated:
            return cls(shown_in(end.judged(record)), CHOSEN)
        if record.evaluated:
            return cls(shown_in(record))
        records = read_rounds(directory)
        earlier = last_evaluated(records) if records else record
        if earlier.evaluated:
            return cls(shown_in(earlier), AFTER.format(earlier.round))
        path, words = directory / HELD_OUT_FILE, "an evaluation at the clients"
        return read_result(path, words, cls._counted, ReportError) or cls(NOT_EVALUATED, NO_COUNTS)

    @classmethod
    def _counted(cls, values: Mapping[str, Any]) -> Self:
        name, found = next(iter(values["metrics"].items()))
        shown, where = MetricDisplay.of(name), f"on records that {values['clients']} clients hold out"
        if found["value"] is None:
            return cls(NOT_EVALUATED, f"{shown.words} is not defined {where}, under their noise")
        low, high = (f"{shown.scaled(found[end] or 0):{shown.form}}" for end in ("low", "high"))
        return cls(f"{shown.words} {shown.text(found['value'])} ({low} to {high})", where)

    def __str__(self) -> str:
        between = ": " if self.figure == NOT_EVALUATED else " "
        return f"{self.figure}{between}{self.note}" if self.note else self.figure
