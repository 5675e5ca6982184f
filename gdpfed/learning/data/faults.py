"""Table values that contradict the declared columns: the first raises an error, or all are collected."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.cells import Cells


@dataclass(frozen=True)
class Fault:
    """A value of a table that contradicts the declaration of its column.

    Attributes:
        row: from 1, without the header.
        text: the value; empty where it is missing.
        words: what is wrong with it.
    """

    row: int
    column: str
    text: str
    words: str

    @property
    def of_value(self) -> str:
        """Describe what is wrong with the value, without naming its row."""
        return f"column '{self.column}' {self._held}, {self.words}"

    @property
    def _held(self) -> str:
        return f"holds '{self.text}'" if self.text else "is empty"

    def __str__(self) -> str:
        return f"column '{self.column}' {self._held} in row {self.row}, {self.words}"


@dataclass(frozen=True, eq=False)
class Where:
    """The table and the numbers of the rows that are being read, so that errors can name them.

    `found`: takes every fault; None where the first one is raised.
    """

    place: str
    rows: npt.NDArray[np.int64]
    found: Callable[[Fault], None] | None = None

    def refuse(self, name: str, cells: Cells, wrong: npt.NDArray[np.bool_], words: str) -> None:
        """Call `found` for each wrong value; if `found` is None, raise LearningError for the first."""
        for at in np.flatnonzero(wrong).tolist():
            fault = Fault(int(self.rows[at]), name, cells.text(at), words)
            if self.found is None:
                raise LearningError(f"{self.place}: {fault}")
            self.found(fault)
