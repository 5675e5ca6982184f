"""A client's counts on records that it holds out, which it never trains on, as a contribution to a sum."""

from math import isinf, sqrt

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.clients.order import MOST_ROUNDING, OrderError, TrainingOrder
from gdpfed.learning.data import Split
from gdpfed.learning.training.evaluate import BATCH_SIZE, model_outputs
from gdpfed.learning.training.held_out_counts import (
    counts_dimension,
    held_out_counts,
    held_out_rates,
)
from gdpfed.privacy.sums_once import RECORD_MOVES
from secagg import Encoding

FLOAT_SLACK = 1 - 2.0**-30


def held_out_update(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    encoding: Encoding,
    data: Split,
    client_id: int,
    model: nn.Module,
    device: torch.device,
) -> torch.Tensor:
    """What a client sends of its held-out records, before it is weighed and clipped, in float64.

    ``held_out_counts``: the counts times 1 - grid sqrt(d / 2). A record moves them by sqrt(2) times that,
    clipping them brings no two further apart, and rounding moves two sums by grid sqrt(d) at most: together
    sqrt(2), as in `record_bound` of `gdpfed.clients.record_work`. What the model says of a record is computed
    of it alone: in a batch, the last digits depend on how many others there are, and a hostile model makes
    answers of them. In a sum by party counts are the client's block, and all others are zero, which moves a
    record's two cells and no distance.

    ``held_out_rates``: the shares of right and wrong answers, of norm 1 at most, in units of the least bound
    in the sum, so that all clients count alike.

    Raises:
        OrderError: an order without the number of classes, or a grid too coarse for counts.
        LearningError: labels that are no classes.
    """
    if order.task.form is None:
        raise OrderError("the order does not say how many classes there are, so nothing can be counted")
    rates = order.work == "held_out_rates"
    counts = np.zeros(counts_dimension(order.task.classes_counted, rates=rates))
    if len(data):
        loss, together = order.task.make_loss(), BATCH_SIZE if rates else 1
        outputs, _ = model_outputs(model, theta, data, loss, device, batch_size=together)
        labels = data.y.astype(np.int64)
        counts = held_out_rates(outputs, labels) if rates else held_out_counts(outputs, labels, data.persons)
    if order.counts_by_party(encoding.dimension):
        blocks = np.zeros((order.task.num_clients, len(counts)))
        blocks[client_id] = counts
        counts = blocks.reshape(-1)
    return torch.from_numpy(counts * (_bound(order, encoding) if rates else shrunk(encoding)))


def _bound(order: TrainingOrder, encoding: Encoding) -> float:
    """The least bound in the sum, over the weight that what a client sends is multiplied by."""
    bound = min(order.smallest_norm, encoding.clipping_norm)
    return (1.0 if isinf(bound) else bound) / order.weight


def shrunk(encoding: Encoding) -> float:
    """What counts are multiplied by, so that rounding leaves what a record moves within sqrt(2).

    Raises OrderError: the grid is too coarse for counts.
    """
    rounding = encoding.grid * sqrt(encoding.dimension)
    if not rounding <= MOST_ROUNDING * RECORD_MOVES:
        raise OrderError(
            f"rounding {encoding.dimension} counts to steps of {encoding.grid:.3g} moves a sum by "
            f"{rounding:.3g}, more than a tenth of what a record does: use a larger budget, or more clients"
        )
    return (1 - rounding / RECORD_MOVES) * FLOAT_SLACK
