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

    F is the order's norm factor; with an indicator share there is one coordinate more (`with_indicator`).

    It is clipped to ``clip_bound``, a hair below w_i C_i, so that after rounding to the grid its L2 norm is
    at most w_i C_i: the order's clipping norm, which may not be above the sum's. The noise of the sum is not
    in it; that of ``dp_sgd`` and ``noised_update``, which is the client's own, is. Arguments and errors:
    :func:`update_of`.

    Raises EncodingError: a clipping norm that is none of this sum's; it tells nothing of the data.
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
        order: what to compute, for this client.
        theta: the model to start from, shape (d,).
        encoding: of the sum.
        client_id: whose contribution it is.
        own_data: this client's own examples, or where they lie; without its part of the data set.
        bits: the source of batches and noise of works on records, and of noise of its own.
        added: to every gradient of an update, shape (d,); None for nothing.

    Raises:
        OrderError: a work that there is not, numbers that do not go with it, or a weight that is none.
        LearningError: a model that couples records in a work on records.
    """
    check_numbers(order)
    job = Job(order, theta, encoding, client_id, choose_device(order.device), bits, own_data, added)
    return WORKS.get(order.work).work(job)


def steps_without_examples(
    order: TrainingOrder, encoding: Encoding, client_id: int, *, bits: BitsOf = secret_bits, records: int = 1
) -> npt.NDArray[np.int64]:
    """Return what a client sends if its examples cannot be used: zeros in integer steps, shape (d,).

    It carries the noise of any other, so nobody sees that it is zeros: that of the sum, which is added later,
    or its own. `order`, `encoding`, `client_id`, `bits`: as in :func:`update_of`. `records`: how many it
    brings, which is public.
    """
    update = update_without_examples(order, encoding, client_id, bits=bits, records=records)
    return contribution_steps(order, update, encoding)


def filling_steps(encoding: Encoding) -> npt.NDArray[np.int64]:
    """Return zeros in integer steps, shape (d,), for a client that was not drawn but sends all the same.

    Nothing of the client is in it, an indicator of its norm included. Noise comes to it as to any other.
    """
    return np.zeros(encoding.dimension, dtype=np.int64)


def update_without_examples(
    order: TrainingOrder, encoding: Encoding, client_id: int, *, bits: BitsOf = secret_bits, records: int = 1
) -> torch.Tensor:
    """Return a client's update, before weighting, if its examples cannot be used: zeros, or only noise."""
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

    Raises EncodingError for a clipping norm that is none of this sum's.
    """
    return encoded_anyway(*weighed(order, update, encoding))


def weighed(order: TrainingOrder, update: torch.Tensor, encoding: Encoding) -> tuple[torch.Tensor, Encoding]:
    """Weight an update of shape (d,); return it with the encoding for the client's own clipping norm.

    Raises EncodingError for a clipping norm that is none of this sum's.
    """
    own = encoding if isinf(order.clipping_norm) else encoding.clipped_to(order.clipping_norm)
    values = order.weight / order.norm_factor * update
    if order.indicator_share:
        bound = values.new_tensor([[own.clip_bound]])
        values = with_indicator(values[None], bound, order.indicator_share)[0]
    return values, own


def encoded_anyway(update: torch.Tensor, encoding: Encoding) -> npt.NDArray[np.int64]:
    """Clip an update and round it to integer steps; never raise an error, since that could reveal data.

    One that is not finite is zero, as is one that cannot be encoded at all. A coordinate beyond the range
    of the sum, which there is without clipping only, is put on the edge of that range.
    """
    values = clip(update, encoding.clip_bound)
    if isinf(encoding.clipping_norm):
        edge = encoding.coordinate_limit * encoding.grid
        values = values.clamp(-edge, edge)
    try:
        return encoding.encode(values.cpu().numpy())
    except EncodingError:
        return np.zeros(encoding.dimension, dtype=np.int64)
