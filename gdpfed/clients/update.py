"""A client's contribution: its update, weighted, clipped and encoded as integers."""

from math import isinf

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.noise import BitsOf, secret_bits
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.order_checks import check_numbers
from gdpfed.clients.works import WORKS, Job, function_of
from gdpfed.learning.data import Split
from gdpfed.learning.data.own import OwnData
from gdpfed.learning.task import choose_device
from gdpfed.learning.training.local_update import clip, with_indicator
from secagg import Encoding, EncodingError


def update_steps(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    encoding: Encoding,
    client_id: int,
    own_data: OwnData | Split | None = None,
    *,
    bits: BitsOf = secret_bits,
    added: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.int64]:
    """Compute a client's contribution to a sum: its update, weighted, clipped, in integer steps (d,).

    It is w_i / F times the update, with the order's weight w_i and norm factor F; an indicator share adds one
    coordinate (`with_indicator`). It is clipped to ``clip_bound``, slightly below the order's clipping norm
    w_i C_i, so that after rounding its L2 norm is at most w_i C_i. It does not contain the sum's noise, but
    it contains the client's own noise of ``dp_sgd`` and ``noised_update``. Arguments and errors:
    :func:`update_of`.

    Raises EncodingError: the clipping norm does not fit the sum; this tells nothing of the data.
    """
    update = update_of(order, theta, encoding, client_id, own_data, bits=bits, added=added)
    return contribution_steps(order, update, encoding)


def update_of(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    encoding: Encoding,
    client_id: int,
    own_data: OwnData | Split | None = None,
    *,
    bits: BitsOf = secret_bits,
    added: npt.NDArray[np.float32] | None = None,
) -> torch.Tensor:
    """Compute a client's update before weighting: shape (d,), float64, on the training device.

    Args:
        order: the server's instruction for this client.
        theta: the model to start from, shape (d,).
        encoding: the sum's integer grid.
        client_id: the client's number.
        own_data: the client's own examples, or where they lie; None for its part of the task's data set.
        bits: the secret source of batches and noise for works on records, and of the client's own noise.
        added: a vector that is added to every gradient of an update, shape (d,); None for no such vector.

    Raises:
        OrderError: the work is unknown, or a number of the order does not fit it or is out of range.
        LearningError: the work is on records, and the model couples records.
    """
    check_numbers(order)
    job = Job(order, theta, encoding, client_id, choose_device(order.device), bits, own_data, added)
    return WORKS.get(order.work).work(job)


def filling_steps(encoding: Encoding) -> npt.NDArray[np.int64]:
    """Return zeros in integer steps, shape (d,), for a client that was not drawn but sends all the same.

    They hold nothing of the client, not even an indicator of its norm. The sum's noise is added as usual.
    """
    return np.zeros(encoding.dimension, dtype=np.int64)


def update_without_examples(
    order: TrainingOrder, encoding: Encoding, client_id: int, *, bits: BitsOf = secret_bits, records: int = 1
) -> torch.Tensor:
    """Return a client's update, before weighting, if its examples cannot be used: zeros, or only noise.

    Noise hides that these are zeros: the sum's noise, which is added later, or the client's own. `order`,
    `encoding`, `client_id`, `bits`: as in :func:`update_of`. `records`: how many the client brings.
    """
    without = function_of(order.work, "without_examples")
    if without is None:
        return torch.zeros(encoding.dimension - order.more_coordinates, dtype=torch.float64)
    theta = np.zeros(encoding.dimension - order.more_coordinates, np.float32)
    job = Job(order, theta, encoding, client_id, choose_device(order.device), bits, records=records)
    update: torch.Tensor = without(job)
    return update


def contribution_steps(
    order: TrainingOrder, update: torch.Tensor, encoding: Encoding
) -> npt.NDArray[np.int64]:
    """Weight an update of shape (d,), clip it to the client's own norm, and encode it in integer steps.

    Raises EncodingError if the clipping norm does not fit the sum.
    """
    return encoded_anyway(*weighed(order, update, encoding))


def weighed(order: TrainingOrder, update: torch.Tensor, encoding: Encoding) -> tuple[torch.Tensor, Encoding]:
    """Weight an update of shape (d,); return it with the encoding for the client's own clipping norm.

    Raises EncodingError if the clipping norm does not fit the sum.
    """
    own = encoding if isinf(order.clipping_norm) else encoding.clipped_to(order.clipping_norm)
    values = order.weight / order.norm_factor * update
    if order.indicator_share:
        bound = values.new_tensor([[own.clip_bound]])
        values = with_indicator(values[None], bound, order.indicator_share)[0]
    return values, own


def encoded_anyway(update: torch.Tensor, encoding: Encoding) -> npt.NDArray[np.int64]:
    """Clip an update and round it to integer steps; never raise an error, since that could reveal data.

    An update that is not finite, or cannot be encoded, becomes zeros. Without clipping, a coordinate beyond
    the range of the sum is set to the end of the range.
    """
    values = clip(update, encoding.clip_bound)
    if isinf(encoding.clipping_norm):
        edge = encoding.coordinate_limit * encoding.grid
        values = values.clamp(-edge, edge)
    try:
        return encoding.encode(values.cpu().numpy())
    except EncodingError:
        return np.zeros(encoding.dimension, dtype=np.int64)
