"""Reads a client's table as training does, assigns each row to cells (values or bins), and counts the rows.

The same rows are counted that a training would learn from: those for testing and those that are held out are
left out, as are rows that the declaration leaves out.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.clients.order import OrderError
from gdpfed.clients.works import Job
from gdpfed.errors import LearningError
from gdpfed.extras.statistics.layout import Asked, Cells, Layout
from gdpfed.learning.data import Dataset, DataSource, Split
from gdpfed.learning.data.cells import Table, table_of
from gdpfed.learning.data.columns import Columns
from gdpfed.learning.data.faults import Where
from gdpfed.learning.data.file_form import is_table
from gdpfed.learning.data.own import OwnData, held_out_rows
from gdpfed.learning.data.own_files import own_examples
from gdpfed.learning.data.persons import persons_of
from gdpfed.learning.data.source import load_dataset
from gdpfed.learning.data.table_rows import (
    Rows,
    as_texts,
    checked_rows,
    joined_rows,
    kept_rows,
    num_rows,
    numbers_in,
    open_declared,
    times_in,
)
from gdpfed.learning.data.tabular import declared_columns, load, own_columns
from gdpfed.learning.data.text_cells import numbered
from gdpfed.learning.task import Task

UNITS_A_GRID_STEP = 256
"""Of the sum's grid: finer than it, so that a record counts for 1 less next to nothing."""


@dataclass(frozen=True, eq=False)
class Counted:
    """The rows of a client's table: for each column, the number of the value or bin that a row has.

    Attributes:
        cells: of every row in every column, shape (N, K).
        shares: what each row counts for, shape (N,): 1, or of a person with r rows 1 / r each.
    """

    cells: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]


def cells_in(layout: Layout, table: Table, columns: Columns, where: Where) -> npt.NDArray[np.float32]:
    """Return the cell (value or bin) of each row in each counted column, shape (N, K).

    Raises LearningError: a value that is not a number or not declared; names column and row.
    """
    found = np.zeros((num_rows(table), len(layout.columns)), dtype=np.float32)
    for number, cells in enumerate(layout.declared):
        found[:, number] = _cells_of_column(cells, table, columns, where)
    return found


def read_cells(layout: Layout, path: Path, columns: Columns, place: str, *, shared_out: bool) -> Rows:
    """Read a table as `read_rows` does, but with each row's cells (values or bins) as its model inputs."""
    table, parts = open_declared(path, columns, place), list[Rows]()
    for batch in table.batches(columns.names(for_training=not shared_out)):
        read = table_of(batch.cells, columns, place, own=table.own, found=table.found)
        kept, where = kept_rows(read, columns, shared_out=shared_out), Where(place, batch.rows)
        rows = checked_rows(read, columns, where, kept, shared_out=shared_out)
        taken = {name: column.taken(kept) for name, column in read.items()}
        parts.append(replace(rows, x=cells_in(layout, taken, columns, Where(place, batch.rows[kept]))))
    return joined_rows(parts, place)


def _cells_of_column(cells: Cells, table: Table, columns: Columns, where: Where) -> npt.NDArray[np.int64]:
    if cells.times is not None:
        return cells.of_labels(times_in(table, columns, cells.times, where))
    number = columns.number(cells.name)
    if number is not None:
        return cells.of_number(numbers_in(table, number, where))
    texts, categorical = as_texts(table[cells.name]), {each.name: each for each in columns.categorical}
    if cells.name == columns.label:
        values = {value: place for place, values in enumerate(columns.classes) for value in values}
        return np.maximum(numbered(texts, values), 0)
    values = {value: place for place, value in enumerate(columns.values(cells.name))}
    places = numbered(texts, values)
    declared = categorical.get(cells.name)
    if declared is not None:
        if declared.other is not None:
            places = np.where(places < 0, values[declared.other], places)
        undeclared = (places < 0) & ~texts.missing
        where.refuse(
            cells.name,
            texts,
            undeclared,
            "which is not one of the declared values: declare it, or correct it",
        )
        places = np.where(texts.missing, len(cells) - 1, places)
    return np.maximum(places, 0)


def layout_of(columns: Columns, asked: str, cells: int) -> Layout:
    """Return the cells that the server's request selects in the client's own declaration of columns.

    Raises LearningError: it has another number of cells than the order says.
    """
    layout = Layout.of(columns, Asked.from_json(asked))
    if layout.size != cells:
        raise LearningError(
            f"the statistics have {layout.size} cells by the columns declared here, and {cells} by those of "
            "the server: use the columns.yaml of this run"
        )
    return layout


def counted_rows(job: Job) -> tuple[Layout, Counted]:
    """Return all cells (values or bins) to count for a job, and the cells that each row of the client is in.

    Raises:
        OrderError: an order that says nothing that can be counted, or data that are not a table.
        LearningError: a table that cannot be read, or is declared otherwise.
    """
    task, own = job.order.task, job.own_data
    asked, cells = asked_of(task)
    if isinstance(own, Split):
        raise OrderError(
            "statistics are counted in tables, and this client's examples are not in a file: start "
            "the node with data=... of a table"
        )
    if own is not None:
        layout, counted = _counted_in_own_table(own, asked, cells, by_person=task.by_person)
    else:
        layout, counted = counted_at(task, task.client_indices(job.client_id))
    if layout.by_party:
        if not 0 <= job.client_id < len(layout.columns[-1]):
            raise OrderError(
                f"client {job.client_id} is not a party of these statistics: correct its partition-id"
            )
        counted.cells[:, -1] = job.client_id
    return layout, counted


def asked_of(task: Task) -> tuple[str, int]:
    """Read from the model options which statistics are requested (as JSON text), and the number of cells."""
    options = dict(task.model_options)
    if not {"asked", "cells"} <= options.keys():
        raise OrderError(
            "the server does not say which statistics it asks for: run one version on server and nodes"
        )
    return str(options["asked"]), int(options["cells"])


def counted_at(task: Task, places: npt.NDArray[np.int64]) -> tuple[Layout, Counted]:
    """Return all cells to count for a task, and the cells of each training record at the given positions.

    Raises LearningError: a data set that is not a table.
    """
    whole = load_dataset(task.source)
    data, layout = _read(task.source, whole, *asked_of(task))
    if len(data.train) != len(whole.train):
        raise LearningError(
            f"dataset.path={task.source.path} has changed while it was read: count again once it stays the "
            "same"
        )
    mine = (persons_of(data) if task.by_person else data).train.take(places)
    if not task.by_person:
        return layout, Counted(mine.x.astype(np.int64), np.ones(len(mine)))
    # Each of a person's r rows has the weight 1 / r.
    absent = np.isnan(mine.y) if mine.y.dtype.kind == "f" else mine.y < 0
    present = ~(absent if absent.ndim == 2 else absent.all(axis=2))
    shares = present / np.maximum(present.sum(axis=1, keepdims=True), 1)
    return layout, Counted(mine.x[present].astype(np.int64), shares[present])


def _counted_in_own_table(own: OwnData, asked: str, cells: int, *, by_person: bool) -> tuple[Layout, Counted]:
    if not is_table(own.path):
        raise OrderError(
            "statistics are counted in tables, and this client's examples are in another file: "
            "start the node with data=... of a table"
        )
    columns, place = own_columns(own.path), f"data={own.path}"
    layout = layout_of(columns, asked, cells)
    rows, every = read_cells(layout, own.path, columns, place, shared_out=False), own_examples(own.path)
    if rows.for_testing is not None:
        rows = rows.taken(np.flatnonzero(~rows.for_testing))
    if len(rows) != len(every):
        raise LearningError(f"{place} has changed while it was read: count again once it stays the same")
    kept = rows.taken(np.flatnonzero(~held_out_rows(every, own.held_out_share)))
    cells_of_rows, shares = kept.x.astype(np.int64), np.ones(len(kept))
    if by_person and kept.persons is not None:
        _, who, times = np.unique(kept.persons, return_inverse=True, return_counts=True)
        shares = 1 / times[who.reshape(-1)]
    return layout, Counted(cells_of_rows, shares)


@lru_cache(maxsize=1)
def _read(source: DataSource, whole: Dataset, asked: str, cells: int) -> tuple[Dataset, Layout]:
    """Load a table as a data set of cell (value or bin) numbers; return it with the layout of all cells.

    `whole`: the table as runs load it. Where it is loaded anew, so are its cells.
    """
    columns = source_columns(source)
    layout = layout_of(columns, asked, cells)
    return load(source, partial(read_cells, layout)), layout


def source_columns(source: DataSource) -> Columns:
    """Return the declared columns of a run's table.

    Raises LearningError: a data set that is not a table.
    """
    if source.name != "csv":
        raise LearningError(
            f"statistics are counted in tables, and dataset={source.name} is not a table: use dataset=csv "
            "dataset.path=..., which takes CSV and Parquet"
        )
    return declared_columns(source)


def counts_of(layout: Layout, counted: Counted, grid: float) -> tuple[npt.NDArray[np.int64], float]:
    """Return the counts in multiples of a unit, int64[d], and the unit: 1/256 of the sum's rounding step.

    A row of share w adds floor(w / unit) units to a cell of every block. So sums are exact in any order, and
    one record, or a person with all its rows, moves them by sqrt(B) at most, as its shares add up to 1:
    vectors of norm sqrt(B) times their shares.
    """
    unit = grid / UNITS_A_GRID_STEP
    total = np.zeros(layout.size, dtype=np.int64)
    weights = np.floor(counted.shares / unit).astype(np.int64)
    for places in layout.places(counted.cells).T:
        np.add.at(total, places, weights)
    return total, unit
