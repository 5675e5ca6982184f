"""What a client computes for statistics of clients: the fraction of its records in each value or bin."""

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.works import Job
from gdpfed.extras.statistics.layout import Asked
from gdpfed.extras.statistics.rows import asked_of, counted_rows
from secagg import Encoding


def work(job: Job) -> torch.Tensor:
    """Return the fraction of a client's records in each cell (value or bin of a column): (d,), float64.

    A client without records sends zeros. The bound of the sum is above that norm, and holds whatever it is
    (`gdpfed.clients.update`).
    """
    layout, counted = counted_rows(job)
    total, records = np.zeros(layout.size), counted.shares.sum()
    for places in layout.places(counted.cells).T if records else ():
        np.add.at(total, places, counted.shares / records)
    return torch.from_numpy(total)


def check(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding, client_id: int) -> None:
    """Raise OrderError if the server's instruction does not say what to count."""
    check_asked(order, encoding.dimension)


def check_asked(order: TrainingOrder, dimension: int) -> None:
    """Raise OrderError if an instruction's model or number of counts does not fit its statistics."""
    (asked, cells), model = asked_of(order.task), order.task.model
    if (kind := Asked.from_json(asked).kind) != model:
        raise OrderError(
            f"the server's model is {model}, and the statistics that it asks for are of kind {kind}: "
            "both must agree"
        )
    if cells != dimension:
        raise OrderError(
            f"the server asks for {dimension} numbers, and the statistics that it names have {cells} "
            "cells: both must agree"
        )
