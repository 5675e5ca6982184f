"""Fills in the ranges of numeric columns in a YAML declaration of columns, from noised quantiles.

A range is the ends of the bins between which the quantiles 0.01 and 0.99 lie, wherever noise may have moved
them. It comes of released counts alone, so it costs no more than these did.
"""

from dataclasses import replace
from pathlib import Path

from gdpfed.errors import ConfigError
from gdpfed.extras.statistics.result import ENDS, Statistics
from gdpfed.files import PUBLIC_MODE, save_whole
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
    changed = []
    for column in columns.numeric:
        # A range that encloses the quantiles, where these are known.
        narrowed, known = column, counted.get(column.name)
        if known is not None:
            low, high = (known.figures[f"q{part:g}"] for part in ENDS)
            if low.low is not None and high.high is not None:
                below = max(edge for edge in known.edges if edge <= max(low.low, known.edges[0]))
                above = min(edge for edge in known.edges if edge >= min(high.high, known.edges[-1]))
                narrowed = column if below >= above else replace(column, low=below, high=above)
        changed.append(narrowed)
    filled = replace(columns, numeric=tuple(changed))
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
