"""A client's contribution: train, weigh, clip, encode as integers, add noise."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import isinf, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.held_out import held_out_update
from gdpfed.clients.keyed_noise import KEY_BYTES, KeyedNoise
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.order_checks import (
    NO_FORM,
    ROWS_OF_PERSONS,
    built_gradients,
    built_model,
    check_block,
    check_numbers,
    check_own_noise,
)
from gdpfed.clients.record_work import BitsOf, holder_of, record_updates, secret_bits
from gdpfed.clients.vote import Trial, vote_update
from gdpfed.errors import PrivacyError
from gdpfed.learning.data import Split
from gdpfed.learning.data.own import OwnData, own_held_out, own_split
from gdpfed.learning.data.text import following
from gdpfed.learning.task import Task, choose_device
from gdpfed.learning.training.local_update import clip, local_update, with_indicator
from gdpfed.learning.training.secret_draws import RandomBytes, gaussian_noise
from secagg import Encoding, EncodingError, SumParameters, keystream


def batch_generator(order: TrainingOrder, client_id: int) -> np.random.Generator:
    """Return the generator that chooses one client's batches in one window of a round."""
    window = [order.window] if order.window else []
    return np.random.default_rng([order.task.seed, client_id, order.round_index, *window])


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
    """One client's contribution in integer steps, shape (d,): clip(w_i Delta_i / F, w_i C_i).

    F is the order's norm factor; with an indicator share there is one coordinate more (`with_indicator`).

    It is clipped to ``clip_bound``, a hair below w_i C_i, so that after rounding to the grid its L2 norm is
    at most w_i C_i: the order's clipping norm, which may not be above the sum's. The noise of the sum is not
    in it; that of ``dp_sgd`` and ``noised_update``, which is the client's own, is.

    Args:
        order: what to compute, for this client.
        theta: the model to start from, shape (d,).
        encoding: of the sum.
        client_id: whose contribution it is.
        own_data: this client's own examples, or where they lie; without its part of the data set.
        bits: the source of batches and noise of works on records, and of noise of its own.
        added: to every gradient of an update, shape (d,); None for nothing.

    Raises:
        EncodingError: a clipping norm that is none of this sum's; it tells nothing of the data.
        OrderError: a work that there is not, numbers that do not go with it, or a weight that is none.
        LearningError: a model that couples records in a work on records.
    """
    kind = order.kind
    check_numbers(order)
    device = choose_device(order.device)
    if kind.held_out:
        check_block(order, encoding, client_id)
        held_out = _held_out(order.task, client_id, own_data)
        update = held_out_update(order, theta, encoding, held_out, client_id, built_model(order.task), device)
        return contribution_steps(order, update, encoding)
    data = _examples(order.task, client_id, own_data)
    if kind.vote:
        trial = Trial(
            built_model(order.task), partial(built_gradients, order.task, device), bits(client_id), device
        )
        return contribution_steps(order, vote_update(order, theta, encoding, data, trial), encoding)
    if kind.on_records:
        update = _on_records(order, theta, encoding, client_id, data, device, bits)
    else:
        update = trained_update(order, theta, client_id, data, device, added)
        if kind.own_noise:
            update = with_own_noise(order, update, bits(client_id))
    return contribution_steps(order, update, encoding)


def steps_without_examples(
    order: TrainingOrder, encoding: Encoding, client_id: int, *, bits: BitsOf = secret_bits
) -> npt.NDArray[np.int64]:
    """What a client sends whose examples cannot be used, in integer steps, shape (d,): zeros.

    It carries the noise of any other, so nobody sees that it is zeros: that of the sum, which is added later,
    or its own. Of m steps on records its own has standard deviation eta C sigma sqrt(m) / q in each
    coordinate, as of one record at rate q, since how many there are is not known. `order`, `encoding`,
    `client_id`, `bits`: as in :func:`update_steps`.
    """
    update = torch.zeros(encoding.dimension - order.more_coordinates, dtype=torch.float64)
    told, random_bytes = order.records, bits(client_id)
    if order.kind.own_noise and order.kind.on_records and told is not None:
        stddev = told.clipping_norm * told.noise_multiplier * sqrt(told.num_steps) / min(told.batch_rates)
        stddev *= order.training.learning_rate
        update += gaussian_noise(len(update), stddev, random_bytes, device=update.device)
    elif order.kind.own_noise:
        update = with_own_noise(order, update, random_bytes)
    return contribution_steps(order, update, encoding)


def trained_update(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    client_id: int,
    data: Split,
    device: torch.device,
    added: npt.NDArray[np.float32] | None = None,
) -> torch.Tensor:
    """Delta_i, what local training changes, before it is weighed and clipped: shape (d,), float64."""
    return local_update(
        built_model(order.task),
        theta,
        data,
        order.training,
        rng=batch_generator(order, client_id),
        device=device,
        loss=order.task.make_loss(),
        added=None if added is None else torch.from_numpy(added).to(device),
    )


def _on_records(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    encoding: Encoding,
    client_id: int,
    data: Split,
    device: torch.device,
    bits: BitsOf,
) -> torch.Tensor:
    """What the client computes from its records, before it is weighed, shape (d,), float64."""
    if data.persons is not None:
        raise OrderError(ROWS_OF_PERSONS)
    holder = holder_of(order, client_id, np.arange(len(data)), lambda: data, bits)

    def take(places: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = data.take(places.reshape(-1))
        x, y = (torch.from_numpy(each).to(device) for each in (batch.x, batch.y))
        return x.view(*places.shape, *x.shape[1:]), y.view(*places.shape, *y.shape[1:])

    gradients = built_gradients(order.task, device)
    return record_updates([order], theta, gradients, [holder], take, encoding.grid)[0]


def contribution_steps(
    order: TrainingOrder, update: torch.Tensor, encoding: Encoding
) -> npt.NDArray[np.int64]:
    """Weigh an update of shape (d,), clip it to the client's own bound, and encode it in integer steps.

    Raises EncodingError for a clipping norm that is none of this sum's.
    """
    own = encoding if isinf(order.clipping_norm) else encoding.clipped_to(order.clipping_norm)
    weighed = order.weight / order.norm_factor * update
    if order.indicator_share:
        bound = weighed.new_tensor([[own.clip_bound]])
        weighed = with_indicator(weighed[None], bound, order.indicator_share)[0]
    return encoded_anyway(weighed, own)


def encoded_anyway(update: torch.Tensor, encoding: Encoding) -> npt.NDArray[np.int64]:
    """Clip an update and round it to the grid, whatever it holds: no error tells of the data.

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


def _held_out(task: Task, client_id: int, own_data: OwnData | Split | None) -> Split:
    """The records that a client holds out; none where it could not read its own."""
    if isinstance(own_data, Split):
        return own_data.take(np.zeros(0, dtype=np.int64))
    if own_data is None:
        return task.held_out(client_id)
    if task.form is None:
        raise OrderError(NO_FORM)
    return own_held_out(own_data, task.form)


def _examples(task: Task, client_id: int, own_data: OwnData | Split | None) -> Split:
    if isinstance(own_data, Split):
        return own_data
    if own_data is None:
        return task.client_data(client_id)
    if task.form is None:
        raise OrderError(NO_FORM)
    own = own_split(own_data.path, task.form, own_data.held_out_share)
    own = following(own) if task.at_every_position else own
    last = max(1, len(task.record_shares)) - 1
    if own.groups is None:
        return own
    # A group without a budget is none to train by, and to refuse it would tell of the data: the strictest.
    return replace(own, groups=np.where((own.groups >= 0) & (own.groups <= last), own.groups, 0))


def own_noise(
    order: TrainingOrder,
    parameters: SumParameters,
    num_contributors: int,
    share: KeyedNoise | None = None,
    taken_back: Sequence[KeyedNoise] = (),
) -> npt.NDArray[np.int64] | Literal["discrete_gaussian"] | None:
    """One client's share of Gaussian noise in integer steps, shape (d,), drawn on the training device.

    None where the sum has none; the word for the law where the order wants discrete noise, which a session
    draws itself.

    Args:
        share: the noise that is new; by default under a fresh key of the operating system.
        taken_back: parts of earlier shares, which are rounded together with it.
    """
    if parameters.noise_multiplier == 0:
        return None
    if order.noise == "discrete_gaussian":
        return "discrete_gaussian"
    if share is None:
        stddev = parameters.client_noise_stddev(num_contributors)
        share = KeyedNoise(os.urandom(KEY_BYTES), stddev)
    encoding = parameters.encoding(num_contributors)
    return keyed_steps(encoding, [share], taken_back, choose_device(order.device))


def noise_steps(
    order: TrainingOrder, parameters: SumParameters, num_contributors: int
) -> npt.NDArray[np.int64]:
    """One client's share of the noise, C sigma / sqrt(n2 - D - c), in integer steps, shape (d,).

    A rounded Gaussian drawn on the training device, or a discrete one drawn in integers.
    """
    noise = own_noise(order, parameters, num_contributors)
    if noise is not None and not isinstance(noise, str):
        return noise
    levels = parameters.encoding(num_contributors).levels
    if levels is None:
        return np.zeros(parameters.dimension, dtype=np.int64)
    return levels.draw(0, parameters.dimension, os.urandom(32))


def keyed_steps(
    encoding: Encoding, new: Sequence[KeyedNoise], taken_back: Sequence[KeyedNoise], device: torch.device
) -> npt.NDArray[np.int64]:
    """Gaussian noise from the keystreams of its keys less what is taken back, rounded once: int64[d]."""
    if encoding.levels is not None and encoding.levels.multipliers:
        raise OrderError("noise that is to be taken out again cannot be gaussian, only discrete_gaussian")
    noise = torch.zeros(encoding.dimension, dtype=torch.float64, device=device)
    for sign, parts in ((1, new), (-1, taken_back)):
        for each in parts:
            drawn = gaussian_noise(encoding.dimension, each.stddev, keystream(each.key), device=device)
            noise.add_(drawn, alpha=sign)
    return encoding.encode_noise(noise.cpu().numpy())


# Of C: far more than the rounding of float64 in the norm that is clipped to.
SLACK = 1 - 2.0**-30


def with_own_noise(order: TrainingOrder, update: torch.Tensor, random_bytes: RandomBytes) -> torch.Tensor:
    """clip(Delta, C) + N(0, (C z)^2 I), before it is weighed: the Gaussian mechanism on whole clients.

    An update that is not finite counts as zero. What follows, weighing and rounding to the grid, is
    post-processing. `order`: the client's own; its ``records`` have C and z. `update`: Delta, shape (d,),
    float64. `random_bytes`: the client's secret source of bits. Raises OrderError: an order without noise, or
    with several steps.
    """
    told = check_own_noise(order)
    noise = gaussian_noise(
        len(update), told.clipping_norm * told.noise_multiplier, random_bytes, device=update.device
    )
    return clip(update, SLACK * told.clipping_norm) + noise


GRID = 2.0**-10
"""What is released is a multiple of this, so that its last digits tell nothing."""


def noised_counts(
    counts: npt.NDArray[np.int64], noise_stddev: float, random_bytes: RandomBytes
) -> npt.NDArray[np.float64]:
    """counts + N(0, s^2) in each, rounded, shape (B,).

    One record that is replaced moves two counts by one each, or none: sqrt 2 in norm, so that it costs 1 /
    s^2 zCDP. Values may lie below 0; who uses them clips them, which is post-processing. `counts`: records of
    every class, shape (B,). `noise_stddev`: s, above 0. `random_bytes`: the client's secret source of bits.
    Raises PrivacyError: no noise.
    """
    if not noise_stddev > 0:
        raise PrivacyError(f"class counts are asked for under noise of standard deviation {noise_stddev:g}")
    noise = gaussian_noise(len(counts), noise_stddev, random_bytes, device=torch.device("cpu")).numpy()
    return np.asarray(np.rint((counts + noise) / GRID) * GRID)
