"""Reports table values that contradict their column's declaration: as an error, or as `Fault` objects."""

from collections.abc import Callable
from dataclasses import dataclass
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, printable
from gdpfed.learning.data.cells import Cells

MOST_SHOWN = 60
"""Letters of a value, in an error."""


def shortened(text: str) -> str:
    """Return a value or a name for one line, with "..." for what goes beyond `MOST_SHOWN` letters."""
    line = printable(text)
    return line if len(line) <= MOST_SHOWN else f"{line[:MOST_SHOWN]}..."


def held(text: str) -> str:
    """Return a cell's text for an error, shortened, with a note on invisible characters or Unicode form."""
    if not text:
        return "is empty"
    shown = shortened(text)
    if hidden := invisible(text):
        return f"holds '{shown}' ({hidden})"
    return f"holds '{shown}'" + ("" if is_normalized("NFC", text) else " (in another Unicode form than NFC)")


def uneven_words(values: int, columns: int) -> str:
    """Return words for an error on a line that has more or fewer values than the header has columns."""
    return f"{values} value{'' if values == 1 else 's'}, and the header has {columns}"


def invisible(text: str) -> str:
    """Return words that name the first invisible character of a text; "" if all are visible."""
    hidden = next((each for each in text if not each.isprintable()), None)
    return "" if hidden is None else f"with the invisible character U+{ord(hidden):04X}"


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
        return f"column '{self.column}' {held(self.text)}, {self.words}"

    def __str__(self) -> str:
        return f"column '{self.column}' {held(self.text)} in row {self.row}, {self.words}"


@dataclass(frozen=True, eq=False)
class Where:
    """The table and the numbers of the rows that are being read, so that errors can name them.

    `found`: takes every fault; None where the first one is raised.
    """

    place: str
    rows: npt.NDArray[np.int64]
    found: Callable[[Fault], None] | None = None

    def refuse(self, name: str, cells: Cells, wrong: npt.NDArray[np.bool_], words: str) -> None:
        """Raise LearningError for the first wrong value; if `found` is set, pass it a `Fault` for each."""
        for at in np.flatnonzero(wrong).tolist():
            fault = Fault(int(self.rows[at]), name, cells.text(at), words)
            if self.found is None:
                raise LearningError(f"{self.place}: {fault}")
            self.found(fault)
