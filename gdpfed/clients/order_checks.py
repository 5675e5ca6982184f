"""Checks of the server's instruction to train (order), which a client makes before it looks at its examples.

The server sees which node refuses a request, and no epsilon covers that. After the node has charged a round,
an error that depends on its examples would therefore tell of them. So all errors that do not depend on the
examples are found here, before the charge.
"""

from copy import deepcopy
from functools import lru_cache
from math import inf, isinf

import numpy as np
import numpy.typing as npt
from torch import nn

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.works import NO_FORM, function_of
from gdpfed.learning.data.own import OwnData
from gdpfed.learning.models.build import MODELS
from gdpfed.learning.task import Task, choose_device
from gdpfed.learning.training.optimizers import check_training
from gdpfed.record_steps import PLAIN
from gdpfed.registry import is_ours
from secagg import Encoding

_built = lru_cache(maxsize=1)(Task.build_model)

ROWS_OF_PERSONS = (
    "the columns declare persons, and the server asks for single rows, so rows of one person would not be "
    "clipped together: declare persons in the server's columns, too"
)


def built_model(task: Task) -> nn.Module:
    """Return the task's model; a package's is built anew, so that no work meets what another left in it."""
    return deepcopy(_built(task)) if is_ours(MODELS.get(task.model)) else task.build_model()


def check_order(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    encoding: Encoding,
    client_id: int,
    *,
    trains_here: bool = True,
) -> None:
    """Raise an error if a client cannot carry out the server's instruction, whatever data the client has.

    `order`: the instruction for this client. `theta`: the model, shape (d,). `encoding`: the sum's integer
    grid. `client_id`: the client's number. `trains_here`: whether this process builds the model.

    Raises:
        OrderError: a number is out of range or does not fit the work, or the grid is too coarse for the work.
        EncodingError: the clipping norm does not fit the sum.
        LearningError: the model, loss, optimizer or device is unknown, or the model couples records.
    """
    check_numbers(order)
    choose_device(order.device)
    check_grid(order, theta, encoding)
    if not isinf(order.clipping_norm):
        encoding.clipped_to(order.clipping_norm)
    if not order.kind.held_out:
        check_training(order.training)
    if trains_here:
        check_model(order.task)
    if (check := function_of(order.work, "check")) is not None:
        check(order, theta, encoding, client_id)


def model_dimension(order: TrainingOrder, dimension: int) -> int:
    """Return the number of model parameters d for a contribution with ``dimension`` coordinates.

    Raises:
        OrderError: the work is unknown, or its contribution has another number of coordinates.
        LearningError: the model cannot be built, or answers for its labels cannot be counted.
    """
    order.check_kind()
    if (of_work := function_of(order.work, "model_dimension")) is not None:
        return int(of_work(order, dimension))
    return dimension - order.more_coordinates


def check_model(task: Task) -> None:
    """Raise LearningError for an unknown model or loss."""
    built_model(task)
    task.make_loss()


def check_source(order: TrainingOrder, own_data: OwnData | None) -> None:
    """Raise an error if an instruction (order) names an unknown data set or does not fit a client's data.

    `own_data`: where the client's own examples lie; they are not read. None if it trains on its part of the
    task's data set, which is published, or is the server's in a simulation.

    Raises:
        OrderError: the order lacks the form of examples, or is about rows although persons are declared.
        LearningError: the data set is unknown, or a table has no declaration.
    """
    if own_data is None:
        order.task.load()
    elif order.task.form is None:
        raise OrderError(NO_FORM)
    elif order.kind.on_records and own_data.person_parties and not order.task.by_person:
        raise OrderError(ROWS_OF_PERSONS)


def check_numbers(order: TrainingOrder) -> None:
    """Raise OrderError for an unknown kind of computation, or for numbers that do not fit it."""
    kind = order.kind
    if not 0.0 < order.weight < inf:
        raise OrderError(f"the server's weight is {order.weight}; it must be positive and finite")
    if not 0.0 < order.norm_factor < inf:
        raise OrderError(f"the server's norm_factor is {order.norm_factor}; it must be positive and finite")
    if not 0.0 <= order.indicator_share < 1.0:
        raise OrderError(f"the server's indicator_share is {order.indicator_share}; it must be in [0, 1)")
    if (order.norm_factor, order.indicator_share) != (1.0, 0.0) and kind != PLAIN:
        raise OrderError(f"{order.work} does not go with adaptive clipping: set privacy.clipping=fixed")
    if order.fills and not order.may_fill:
        raise OrderError(
            "the server asks for zeros in a sum in which it lets nobody send zeros: run one version on both"
        )
    if order.may_fill and (kind.once or kind.on_records or kind.own_noise or order.records or order.taps):
        raise OrderError(
            f"the server lets members send zeros, and asks for {order.work}: zeros are for rounds of sampled "
            "clients alone, not for records, scheduled rounds (turns) or a sum beside the rounds"
        )


def check_grid(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding) -> None:
    """Raise OrderError if the integer grid of a sum is too coarse for the computation that a client does.

    It needs no data and builds no model, so the server asks it for every client before a run begins.
    """
    if (check := function_of(order.work, "check_grid")) is not None:
        check(order, theta, encoding)
