"""What a client refuses of a training order before it looks at its own examples.

Once a round is charged, an error that depends on examples would tell of them: whether a node refuses is seen
by its server, by name, outside of every epsilon. So all that an order alone can have wrong is found here.
"""

from functools import lru_cache
from math import inf, isinf

import numpy as np
import numpy.typing as npt
from torch import nn

from gdpfed.clients.held_out import shrunk
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.record_work import (
    check_convex,
    check_rounding,
    checked_steps,
    gradients_of,
    record_bound,
)
from gdpfed.clients.vote import one_vote, settings_in
from gdpfed.learning.data.own import OwnData
from gdpfed.learning.models.networks import convex_bounds
from gdpfed.learning.task import Task, choose_device
from gdpfed.learning.training.optimizers import check_training
from gdpfed.record_steps import RecordSteps
from secagg import Encoding

# Where a process outlives a message, as in simulation, the architecture is built once.
built_model = lru_cache(maxsize=1)(Task.build_model)
built_gradients = lru_cache(maxsize=1)(gradients_of)

NO_FORM = "the order does not say what examples look like, so own data cannot be used"
ROWS_OF_PERSONS = (
    "the columns declare persons, and the order is about rows: several of one person would not be clipped as "
    "one"
)


def check_order(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    encoding: Encoding,
    client_id: int,
    *,
    trains_here: bool = True,
) -> None:
    """Refuse an order that a client cannot carry out, whatever it holds.

    `order`: the client's own. `theta`: the model, shape (d,). `encoding`: of the sum. `client_id`: whose.
    `trains_here`: whether it builds the model itself.

    Raises:
        OrderError: numbers that are out of range or do not go with the work, or a grid too coarse for it.
        EncodingError: a clipping norm that is none of this sum's.
        LearningError: a model, loss, optimizer or device that there is not, or one that couples records.
    """
    check_numbers(order)
    check_grid(order, encoding)
    if not isinf(order.clipping_norm):
        encoding.clipped_to(order.clipping_norm)
    kind, device = order.kind, choose_device(order.device)
    if kind.held_out:
        if order.task.form is None:
            raise OrderError("the order does not say how many classes there are, so nothing can be counted")
        check_block(order, encoding, client_id)
    else:
        check_training(order.training)
    if trains_here:
        check_model(order.task)
    if kind.vote:
        settings_in(order)
        if order.records is None:
            raise OrderError("the order's work is vote and it does not say which steps a trial has")
    if kind.own_noise and not kind.on_records:
        check_own_noise(order)
    if kind.on_records or order.work == "vote":
        gradients = built_gradients(order.task, device)
        if kind.on_records:
            _check_steps(order, theta, encoding, gradients.model)


def check_model(task: Task) -> None:
    """Refuse a model or a loss that there is not: LearningError."""
    built_model(task)
    task.make_loss()


def _check_steps(
    order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding, model: nn.Module
) -> None:
    """Refuse steps on records that no number of records would make right."""
    steps = checked_steps(order)
    if not order.kind.own_noise:
        record_bound(order, len(theta), encoding.grid)
    if order.kind.window == "convex":
        check_convex(order, convex_bounds(model))
    if order.kind.window:
        # As of one record: how many there are is known once they are read, and is public.
        check_rounding(order, theta, min(steps.batch_rates))


def check_source(order: TrainingOrder, own_data: OwnData | None) -> None:
    """Refuse an order that the declaration of a client's own data does not go with, or a data set.

    `own_data`: where its own examples lie, which are not read; None for its part of the data set, which is
    published, or the server's own in a simulation.

    Raises:
        OrderError: an order without the form of examples, or about rows where persons are declared.
        LearningError: no such data set, or a table without a declaration.
    """
    if own_data is None:
        order.task.load()
    elif order.task.form is None:
        raise OrderError(NO_FORM)
    elif order.kind.on_records and own_data.person_parties and not order.task.by_person:
        raise OrderError(ROWS_OF_PERSONS)


def check_numbers(order: TrainingOrder) -> None:
    """Refuse a weight, or numbers of adaptive clipping, that are none: OrderError."""
    if not 0.0 < order.weight < inf:
        raise OrderError(f"the order's weight is {order.weight}; it must be positive and finite")
    if not 0.0 < order.norm_factor < inf:
        raise OrderError(f"the order's norm_factor is {order.norm_factor}; it must be positive and finite")
    if not 0.0 <= order.indicator_share < 1.0:
        raise OrderError(f"the order's indicator_share is {order.indicator_share}; it must be in [0, 1)")
    if (order.norm_factor, order.indicator_share) != (1.0, 0.0) and order.work != "update":
        raise OrderError(f"adaptive clipping goes with the work update, and the order's is {order.work}")


def check_grid(order: TrainingOrder, encoding: Encoding) -> None:
    """Refuse counts or votes that rounding would take too much of, with OrderError."""
    if order.kind.once:
        {"held_out_counts": shrunk, "vote": one_vote}[order.kind.once](encoding)


def check_block(order: TrainingOrder, encoding: Encoding, client_id: int) -> None:
    """Refuse counts by party of a client that has no block in them: OrderError."""
    if order.counts_by_party(encoding.dimension) and not 0 <= client_id < order.task.num_clients:
        raise OrderError(f"the order has counts of {order.task.num_clients} clients, and this is {client_id}")


def check_own_noise(order: TrainingOrder) -> RecordSteps:
    """Return what an order says of the noise of a whole update; OrderError: no noise, or several steps."""
    told = order.records
    if told is None or told.noise_multiplier == 0 or told.num_steps != 1:
        raise OrderError(
            f"the order's work is {order.work} and it does not say one positive noise_multiplier for the "
            "whole update: without privacy use the work update"
        )
    return told
