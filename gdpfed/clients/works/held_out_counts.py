"""What clients compute as held_out_counts: counts of right answers on records that they never train on."""

import logging
from math import sqrt

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad import ENDS
from fastgrad.modules import SlicePooling
from gdpfed.clients.order import MOST_ROUNDING, OrderError, TrainingOrder
from gdpfed.clients.order_checks import built_model
from gdpfed.clients.works import Job
from gdpfed.learning.data import Split
from gdpfed.learning.labels import Outputs
from gdpfed.learning.models import assign, said
from gdpfed.learning.training.evaluate import model_outputs
from gdpfed.learning.training.held_out_counts import (
    counts_dimension,
    held_out_counts,
    held_out_rates,
)
from gdpfed.privacy.sums_once import RECORD_MOVES
from secagg import Encoding

FLOAT_SLACK = 1 - 2.0**-30
logger = logging.getLogger(__name__)


def work(job: Job) -> torch.Tensor:
    """Return how many of a client's held-out records the model gets right and wrong, as float64.

    The counts times 1 - grid sqrt(d / 2). A record moves them by sqrt(2) times that, clipping them brings no
    two further apart, and rounding moves two sums by grid sqrt(d) at most: together sqrt(2), as in
    `record_bound` of `gdpfed.clients.record_work`. What the model says of a record is computed of it alone:
    in a batch, the last digits depend on how many others there are, and a hostile model makes answers of
    them. In a sum by party counts are the client's block, and all others are zero, which moves a record's two
    cells and no distance.

    Raises:
        OrderError: an order without the number of classes, or a grid too coarse for counts.
        LearningError: labels that are not classes.
    """
    check(job.order, job.theta, job.encoding, job.client_id)
    return of_records(job, job.held_out())


def of_records(job: Job, data: Split) -> torch.Tensor:
    """Return right and wrong counts, shrunk so that one record moves the rounded ones by at most sqrt(2)."""
    order, dimension = job.order, job.encoding.dimension
    counts = counted(job, data)
    if by_party(order, dimension):
        blocks = np.zeros((order.task.num_clients, len(counts)))
        blocks[job.client_id] = counts
        counts = blocks.reshape(-1)
    return torch.from_numpy(counts * shrunk(job.encoding))


def counted(job: Job, data: Split, *, rates: bool = False) -> npt.NDArray[np.float64]:
    """Count a model's right and wrong answers on some records; with ``rates``, return fractions instead."""
    task = job.order.task
    counts = np.zeros(counts_dimension(task.classes_counted, rates=rates))
    if not len(data):
        return counts
    model, labels = built_model(task), data.y.astype(np.int64)
    if rates:
        outputs, _ = model_outputs(model, job.theta, data, task.make_loss(), job.device)
    else:
        outputs = _each_output(model, job.theta, data, task.classes_counted, job.device)
    found = held_out_rates(outputs, labels) if rates else held_out_counts(outputs, labels, data.persons)
    return np.asarray(found, np.float64)


def _each_output(
    model: nn.Module, theta: npt.NDArray[np.float32], data: Split, width: int, device: torch.device
) -> Outputs:
    """Return outputs of shape (N, width), each computed of its example alone; NaN where the model raises."""
    model.to(device).eval()
    assign(model, torch.from_numpy(theta.copy()).to(device))
    outputs, failed = np.full((len(data), width), np.nan), 0
    with torch.no_grad(), SlicePooling():
        for at in range(len(data)):
            x = torch.from_numpy(data.take(np.array([at])).x).to(device)
            try:
                outputs[at] = said(model, x).double().view(width).cpu().numpy()
            except ENDS:
                raise
            except BaseException:  # A package may raise anything; no record decides for others.
                failed += 1
    if failed:
        logger.error(
            "held-out records that count as zeros, since the model gives no %d scores: %d", width, failed
        )
    return outputs


def check(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding, client_id: int) -> None:
    """Raise OrderError if the class count is missing, or separate counts by client leave out this client."""
    check_classes(order)
    if by_party(order, encoding.dimension) and not 0 <= client_id < order.task.num_clients:
        raise OrderError(
            f"the server asks for counts of clients 0 to {order.task.num_clients - 1}, and this is client "
            f"{client_id}: correct partition-id or dataset.num_clients"
        )


def check_classes(order: TrainingOrder) -> None:
    """Raise OrderError if the number of classes is missing."""
    if order.task.form is None:
        raise OrderError(
            "the server does not state the number of classes that it asks to count: it must state the number"
        )


def model_dimension(order: TrainingOrder, dimension: int) -> int:
    """Return the number of model parameters; raise OrderError if sums of counts have another `dimension`."""
    return dimension_of_counts(order, dimension, by_party=by_party(order, dimension))


def dimension_of_counts(
    order: TrainingOrder, dimension: int, *, by_party: bool = False, rates: bool = False
) -> int:
    """Return the number of model parameters; raise OrderError if sums of counts have another `dimension`.

    `by_party`: whether each client has counts of its own, and their number is right.
    """
    classes = order.task.classes_counted
    counts = counts_dimension(classes, rates=rates)
    if dimension != counts and not by_party:
        raise OrderError(
            f"{order.work} of {classes} classes are {counts} numbers, not {dimension}: ask for as many "
            "numbers"
        )
    return order.task.dimension


def by_party(order: TrainingOrder, dimension: int) -> bool:
    """Whether a sum with this number of coordinates holds separate counts for every client."""
    if order.task.form is None or order.task.num_clients == 1:
        return False
    return dimension == order.task.num_clients * counts_dimension(order.task.classes_counted)


def check_grid(order: TrainingOrder, theta: object, encoding: Encoding) -> None:
    """Raise OrderError if a sum's rounding could move its counts by over a tenth of one record's effect."""
    shrunk(encoding)


def shrunk(encoding: Encoding) -> float:
    """Return the factor, just below 1, that limits a record's effect on rounded counts to sqrt(2).

    Raises OrderError: the grid is too coarse for counts.
    """
    rounding = encoding.grid * sqrt(encoding.dimension)
    if not rounding <= MOST_ROUNDING * RECORD_MOVES:
        raise OrderError(
            f"rounding {encoding.dimension} counts to steps of {encoding.grid:.3g} moves a sum by "
            f"{rounding:.3g}, more than a tenth of what a record does: use a larger budget, or more clients"
        )
    return (1 - rounding / RECORD_MOVES) * FLOAT_SLACK
