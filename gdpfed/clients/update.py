"""A client's contribution: its update, weighted, clipped and encoded as integers."""

from dataclasses import replace
from math import isinf

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.order_checks import check_numbers
from gdpfed.clients.works import WORKS, Job, function_of
from gdpfed.learning.training.local_update import clip, with_indicator
from secagg import Encoding, EncodingError


def update_steps(job: Job) -> npt.NDArray[np.int64]:
    """Compute a client's contribution to a sum: its weighted and clipped update as integers, shape (d,).

    It is w_i / F times the update, with the order's weight w_i and norm factor F; an indicator share adds one
    coordinate (`with_indicator`). It is clipped to ``clip_bound``, slightly below the order's clipping norm
    w_i C_i, so that after rounding its L2 norm is at most w_i C_i. It does not contain the sum's noise, but
    it contains the client's own noise of ``dp_sgd`` and ``noised_update``.

    Raises EncodingError: the clipping norm does not fit the sum; this tells nothing of the data. Others: as
    :func:`update_of`.
    """
    return contribution_steps(job.order, update_of(job), job.encoding)


def update_of(job: Job) -> torch.Tensor:
    """Compute a client's update before weighting: shape (d,), float64, on the training device.

    Raises:
        OrderError: the work is unknown, or a number of the order does not fit it or is out of range.
        LearningError: the work is on records, and the model couples records.
    """
    check_numbers(job.order)
    return WORKS.get(job.order.work).work(job)


def filling_steps(encoding: Encoding) -> npt.NDArray[np.int64]:
    """Return integer zeros, shape (d,), for a client that was not sampled but must send a contribution.

    They hold nothing of the client, not even an indicator of its norm. The sum's noise is added as usual.
    """
    return np.zeros(encoding.dimension, dtype=np.int64)


def update_without_examples(job: Job) -> torch.Tensor:
    """Return the unweighted update of a client whose examples cannot be used: zeros, or noise alone.

    Noise hides that these are zeros: the sum's noise, which is added later, or the client's own. The job's
    model and examples are not read; its `records` says how many the client brings.
    """
    dimension = job.encoding.dimension - job.order.more_coordinates
    without = function_of(job.order.work, "without_examples")
    if without is None:
        return torch.zeros(dimension, dtype=torch.float64)
    update: torch.Tensor = without(replace(job, theta=np.zeros(dimension, np.float32), own_data=None))
    return update


def contribution_steps(
    order: TrainingOrder, update: torch.Tensor, encoding: Encoding
) -> npt.NDArray[np.int64]:
    """Weight an update of shape (d,), clip it to the client's clipping norm, and quantise it to integers.

    Raises EncodingError if the clipping norm does not fit the sum.
    """
    return encoded_anyway(*weighed(order, update, encoding))


def weighed(order: TrainingOrder, update: torch.Tensor, encoding: Encoding) -> tuple[torch.Tensor, Encoding]:
    """Return the weighted update, shape (d,), and the encoding with the client's own clipping norm.

    Raises EncodingError if the clipping norm does not fit the sum.
    """
    own = encoding if isinf(order.clipping_norm) else encoding.clipped_to(order.clipping_norm)
    values = order.weight / order.norm_factor * update
    if order.indicator_share:
        bound = values.new_tensor([[own.clip_bound]])
        values = with_indicator(values[None], bound, order.indicator_share)[0]
    return values, own


def encoded_anyway(update: torch.Tensor, encoding: Encoding) -> npt.NDArray[np.int64]:
    """Clip an update and quantise it to integers; never raise an error, since that could reveal data.

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
