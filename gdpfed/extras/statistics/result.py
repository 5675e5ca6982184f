"""Makes statistics from the released counts, and saves them as statistics.json and statistics.html."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from conf.schema import Config
from gdpfed.clients.configured import source_of
from gdpfed.extras.statistics.figures import (
    QUARTILES,
    UNKNOWN,
    Counts,
    Figure,
    moments,
    quantile,
    records,
    total,
)
from gdpfed.extras.statistics.layout import Cells, Layout
from gdpfed.extras.statistics.methods import StatisticsConfig
from gdpfed.extras.statistics.rows import source_columns
from gdpfed.extras.statistics.survival import Curve, LogRank, curves_of
from gdpfed.methods.base import ClientSum
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.runs.file_formats import STATISTICS_FILE, read_result, save_result

ENDS = (0.01, 0.99)
"""Quantiles between which a range is proposed."""


@dataclass(frozen=True)
class ColumnFigures:
    """The counts and statistics of one column, over all records or within one group.

    Attributes:
        name: of the column.
        group: the value of the grouping column, or the party; None for all.
        cells: what they are called, in order.
        edges: of bins; empty where the column holds no numbers.
        counts: of every cell; None where one is below the minimum.
        noise_stddev: of the noise in each of them; over all groups together it is that of their sum.
        n: how many have a value in it.
        missing: how many have none; None where every row has one, as of labels.
        figures: mean, sd and quantiles of numbers, by name.
    """

    name: str
    group: str | None
    cells: Sequence[str]
    edges: Sequence[float]
    counts: Sequence[float | None]
    noise_stddev: float
    n: Figure
    missing: Figure | None
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class CrossTable:
    """Counts of two columns, shape (row_cells, column_cells), with None for counts below the minimum."""

    rows: str
    columns: str
    row_cells: Sequence[str]
    column_cells: Sequence[str]
    counts: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Statistics:
    """All results of a statistics run.

    Attributes:
        counted: what counts once: records, persons or clients.
        clients: how many are in the sum.
        epsilon, delta: what the sum costs everybody in it.
        noise_stddev: of the noise in every cell.
        moves: how far one of what is counted moves all cells together, in L2 norm: sqrt(blocks).
        minimum_count: cells with less are not shown.
        n: how many are counted.
        columns, tables: by column and group, and by pairs of columns.
        curves: of times to an event, of all and by group.
        log_rank: whether the groups survive alike; None where that is not asked, or too few are counted.
    """

    counted: str
    clients: int
    epsilon: float
    delta: float
    noise_stddev: float
    moves: float
    minimum_count: float
    n: Figure
    columns: Sequence[ColumnFigures]
    tables: Sequence[CrossTable] = ()
    curves: Sequence[Curve] = ()
    log_rank: LogRank | None = None

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the results of a statistics run from its directory; None if there are none."""
        return read_result(directory / STATISTICS_FILE, "statistics", cls._of_values)

    @classmethod
    def _of_values(cls, values: dict[str, Any]) -> Self:
        columns = []
        for each in values.pop("columns"):
            missing, figures = each.pop("missing"), each.pop("figures")
            columns.append(
                ColumnFigures(
                    **each | {"n": Figure(**each["n"])},
                    missing=None if missing is None else Figure(**missing),
                    figures={name: Figure(**figure) for name, figure in figures.items()},
                )
            )
        tables = [CrossTable(**each) for each in values.pop("tables")]
        curves = [Curve.of_values(each) for each in values.pop("curves", ())]
        test = values.pop("log_rank", None)
        return cls(
            **values | {"n": Figure(**values["n"])},
            columns=columns,
            tables=tables,
            curves=curves,
            log_rank=None if test is None else LogRank(**test),
        )

    def save(self, directory: Path) -> None:
        """Write the results into a run's directory."""
        save_result(directory / STATISTICS_FILE, asdict(self))


def noise_in(summed: ClientSum) -> float:
    """Return the standard deviation of the noise that a sum really has after dropouts.

    If each client adds a share of the noise, the shares are enough after the largest allowed number of
    dropouts; with fewer dropouts, the sum has more noise than planned.
    """
    if summed.share_stddev:
        return summed.share_stddev * math.sqrt(summed.survivors)
    return summed.noise_stddev


def statistics_of(
    config: Config, plan: PrivacyPlan, layout: Layout, released: Counts, noise: tuple[int, float]
) -> Statistics:
    """Compute all statistics from released counts.

    `released`: of all cells, shape (d,). `noise`: how many clients are in the sum, and the standard deviation
    of the noise in every cell.
    """
    clients, stddev = noise
    least, group = cast("StatisticsConfig", config.method).minimum_count, plan.groups[0]
    found, tables, parts = list[ColumnFigures](), list[CrossTable](), layout.parts(released)
    curves, test = list[Curve](), None
    for block, part in zip(layout.blocks, parts, strict=True):
        first = layout.columns[block.first]
        if first.times is not None:
            names = () if block.second is None else layout.columns[block.second].labels
            counts = part.reshape(-1, len(first))
            curves, test = curves_of(first.times.edges, names, counts, stddev, least)
        elif block.second is None:
            found.append(_column(first, None, part, stddev, least))
        elif block.by_group:
            groups = layout.columns[block.second]
            found.append(_column(first, None, part.sum(axis=0), stddev * math.sqrt(len(part)), least))
            named = zip(groups.labels, part, strict=True)
            found += [_column(first, name, row, stddev, least) for name, row in named]
        else:
            second, shown = layout.columns[block.second], [list(_shown(row, least)) for row in part]
            tables.append(CrossTable(first.name, second.name, first.labels, second.labels, shown))
    counted = {"client": "clients", "record": f"{plan.record_is}s"}[plan.unit]
    return Statistics(
        counted=counted,
        clients=clients,
        epsilon=group.epsilon_accounted,
        delta=plan.delta,
        noise_stddev=stddev,
        moves=layout.moves,
        minimum_count=least,
        n=records(parts, stddev),
        columns=found,
        tables=tables,
        curves=curves,
        log_rank=test,
    )


def _column(cells: Cells, group: str | None, counts: Counts, stddev: float, least: float) -> ColumnFigures:
    present = counts[:-1] if cells.may_miss else counts
    known = _enough(total(present, stddev), least)
    enough = known.value is not None
    figures: dict[str, Figure] = {}
    if cells.edges:
        both = moments(cells, counts, stddev)
        quantiles = {f"q{q:g}": quantile(cells, counts, stddev, q) for q in (ENDS[0], *QUARTILES, ENDS[1])}
        figures = {"mean": both.mean, "sd": both.stddev, **quantiles}
        figures = {name: each if enough else UNKNOWN for name, each in figures.items()}
    return ColumnFigures(
        name=cells.name,
        group=group,
        cells=cells.labels,
        edges=cells.edges,
        counts=list(_shown(counts, least)),
        noise_stddev=stddev,
        n=known,
        missing=_enough(total(counts[-1:], stddev), least) if cells.may_miss else None,
        figures=figures,
    )


def _enough(figure: Figure, least: float) -> Figure:
    return figure if not least or (figure.value or 0.0) >= least else UNKNOWN


def _shown(counts: Counts, least: float) -> Iterator[float | None]:
    """Yield the counts in order; a count below the minimum becomes None."""
    for count in counts.tolist():
        yield count if count >= least or not least else None


class StatisticsFiles(Observer):
    """Writes statistics.json and statistics.html once the run's sum has arrived."""

    def __init__(self, config: Config, plan: PrivacyPlan, directory: Path) -> None:
        self._config, self._plan, self._directory = config, plan, directory

    def round_ended(self, ended: RoundEnded) -> None:
        """Write the statistics files when the round has ended; do nothing if the round released no sum."""
        if not ended.sums or ended.sums[0].total is None:
            return
        summed = ended.sums[0]
        columns = source_columns(source_of(self._config))
        options = cast("StatisticsConfig", self._config.method)
        layout = Layout.of(columns, options.asked(self._config.dataset.num_clients))
        noise = summed.survivors, noise_in(summed)
        # As the model's file has them, which the audit reads.
        released = np.asarray(ended.theta, dtype=np.float64)
        statistics_of(self._config, self._plan, layout, released, noise).save(self._directory)
