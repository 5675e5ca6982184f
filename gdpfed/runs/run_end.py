"""The end of a run: the reason for an early end, and metrics of a released model that an extension chose."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from gdpfed.runs.file_formats import END_FILE, read_result, save_result
from gdpfed.runs.round_log import RoundLogEntry


@dataclass(frozen=True)
class RunEnd:
    """The end of a run; its fields are empty if all planned rounds are done and the last model is released.

    Attributes:
        early: before which round the run ended, and why; empty if all planned rounds are done.
        accuracy, metrics: of the released model, as in `RoundLogEntry`, if an extension released another one
            than that of the last round, and the server evaluated it; None and {} otherwise.
    """

    early: str = ""
    accuracy: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the end of a run from its directory.

        Raises RunError: its file is damaged, or of another format.
        """
        return read_result(directory / END_FILE, "the end of a run", lambda values: cls(**values)) or cls()

    def save(self, directory: Path) -> None:
        """Write the end of a run into the run's directory; if all fields are empty, delete the file."""
        path = directory / END_FILE
        if self.early or self.evaluated:
            save_result(path, asdict(self))
        else:
            path.unlink(missing_ok=True)

    @property
    def evaluated(self) -> bool:
        """Whether the released model has its own metrics, because it is not the model of the last round."""
        return self.accuracy is not None or bool(self.metrics)

    def judged(self, record: RoundLogEntry) -> RoundLogEntry:
        """Return a round's log entry, with the released model's own metrics if there are any."""
        if not self.evaluated:
            return record
        return replace(record, accuracy=self.accuracy, metrics=dict(self.metrics), loss=None)
