"""What an experiment comes to on paper, whatever it shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdpfed.report.table import Table


@dataclass(frozen=True)
class Presentation:
    """Tables to read, the same figures to compute with, and a picture.

    Attributes:
        tables: for the terminal and Markdown.
        figures: one figure a row, for CSV.
        draw: writes the picture as PNG.
    """

    tables: Sequence[Table]
    figures: Table
    draw: Callable[[Path], None]
