"""Fills in the ranges of numeric columns in a YAML declaration of columns, from noised quantiles.

A range is the ends of the bins between which the quantiles 0.01 and 0.99 lie, wherever noise may have moved
them. It comes of released counts alone, so it costs no more than these did.
"""

from dataclasses import replace
from pathlib import Path

from gdpfed.errors import ConfigError
from gdpfed.extras.statistics.result import ENDS, ColumnFigures, Statistics
from gdpfed.files import PUBLIC_MODE, save_whole
from gdpfed.learning.data.columns import Numeric
from gdpfed.learning.data.declaration import read_columns, to_yaml
from gdpfed.runs.file_formats import COLUMNS_FILE

HEAD = """\
# Ranges by gdpfed stats, from noised counts of {payers} at epsilon {epsilon:.3g}, delta {delta:.3g}.
# Between LOW and HIGH lie the quantiles {low:g} and {high:g}, as far as the noise tells.
"""


def fill(found: Statistics, directory: Path, path: Path) -> list[str]:
    """Write the declaration of columns as YAML, with ranges from noised quantiles; return one text per range.

    Raises:
        ConfigError: the file exists.
        LearningError: the run's own declaration is missing or damaged.
    """
    if path.exists():
        raise ConfigError(f"--fill={path} exists: name another file, or remove it")
    columns = read_columns(directory / COLUMNS_FILE)
    counted = {each.name: each for each in found.columns if each.edges and each.group is None}
    changed = tuple(_narrowed(each, counted.get(each.name)) for each in columns.numeric)
    filled = replace(columns, numeric=changed)
    head = HEAD.format(
        payers=found.counted, epsilon=found.epsilon, delta=found.delta, low=ENDS[0], high=ENDS[1]
    )
    save_whole(path, (head + to_yaml(filled)).encode(), mode=PUBLIC_MODE)
    words = []
    for before, after in zip(columns.numeric, changed, strict=True):
        declared = f"{before.low:g} to {before.high:g}"
        if before == after:
            words.append(f"{before.name}: as declared, {declared}")
        else:
            words.append(f"{before.name}: {after.low:g} to {after.high:g} (was {declared})")
    return words


def _narrowed(column: Numeric, counted: ColumnFigures | None) -> Numeric:
    """Return the column with a range that encloses its quantiles, or unchanged if these are unknown."""
    if counted is None:
        return column
    low, high = (counted.figures[f"q{part:g}"] for part in ENDS)
    if low.low is None or high.high is None:
        return column
    below = max(edge for edge in counted.edges if edge <= max(low.low, counted.edges[0]))
    above = min(edge for edge in counted.edges if edge >= min(high.high, counted.edges[-1]))
    return column if below >= above else replace(column, low=below, high=above)
