"""What a client computes for statistics of records: the number of its records in each value or bin."""

from math import sqrt

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.record_work import checked_steps, record_bound
from gdpfed.clients.works import Job
from gdpfed.extras.statistics.client_work import check_asked
from gdpfed.extras.statistics.layout import Asked
from gdpfed.extras.statistics.rows import asked_of, counted_rows, counts_of
from secagg import Encoding


def work(job: Job) -> torch.Tensor:
    """Return the number of a client's records in each cell (value or bin of a column), shape (d,), float64.

    The bound C of a record is larger by what rounding to the grid may add (`record_bound`), so the counts are
    whole numbers and nothing is clipped.
    """
    check(job.order, job.theta, job.encoding, job.client_id)
    check_grid(job.order, job.theta, job.encoding)
    layout, counted = counted_rows(job)
    if len(layout.blocks) != blocks_in(job.order):
        raise OrderError(
            f"a record is in {len(layout.blocks)} cells by the declared columns, and "
            f"{blocks_in(job.order)} are charged: use the columns.yaml of this run"
        )
    total, unit = counts_of(layout, counted, job.encoding.grid)
    return torch.from_numpy(total * unit)


def check(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding, client_id: int) -> None:
    """Raise OrderError if the server's instruction does not say what to count."""
    check_asked(order, encoding.dimension)


def check_grid(order: TrainingOrder, theta: object, encoding: Encoding) -> None:
    """Raise OrderError if one record could change the rounded counts by more than the agreed bound."""
    steps = checked_steps(order)
    if steps.batch_rates != (1.0,):
        raise OrderError(
            f"statistics count every record, and the server asks for batch rates {steps.batch_rates}: use "
            "batch rate 1"
        )
    moves, dimension = sqrt(blocks_in(order)), encoding.dimension
    left = record_bound(order, dimension, encoding.grid)
    # Counts are not clipped, and are weighted afterwards: as the bound is, so that no weight is in this.
    if not moves <= left:
        raise OrderError(
            f"a record moves the counts by {moves:.6g}, and rounding {dimension} of them leaves {left:.6g} "
            "of its bound: ask for fewer cells, or have more clients"
        )


def blocks_in(order: TrainingOrder) -> int:
    """Return how many tables of counts (blocks) the server asks for; a record counts once in each block."""
    asked = Asked.from_json(asked_of(order.task)[0])
    if asked.survival:
        return 1
    if not asked.columns:
        raise OrderError("the server names no columns to count: run one version on server and nodes")
    return len(asked.columns) + len(asked.crossed) + (asked.by is not None and asked.by not in asked.columns)
