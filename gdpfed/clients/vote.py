"""A client's vote: it tries every setting on its own records, and sends 1 for the one that does best.

Nothing of a trial leaves the client but the vote. A trial is the run as the client can do it alone: all steps
on a part of its records, with the noise that the common model would have, and then a test on the others. It
may be anything, since only the vote is accounted.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.record_gradients import RecordGradients
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.learning.data import Split
from gdpfed.learning.training.evaluate import evaluate
from gdpfed.learning.training.record_training import RecordHolder, noised_updates
from gdpfed.learning.training.secret_draws import PoissonBatches, RandomBytes
from gdpfed.record_steps import MOST_SETTINGS, VOTABLE
from secagg import Encoding

FOLDS = 4
"""Parts of a client's records, of which each is tested on once and trained on in the other trials."""
MOST_ROUNDING = 0.1

Ints = npt.NDArray[np.int64]
Score = tuple[float, float]
"""What a setting reaches: the share of right answers, 0 where labels are numbers, and minus the loss."""


def vote_update(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    encoding: Encoding,
    data: Split,
    model: nn.Module,
    gradients: RecordGradients,
    random_bytes: RandomBytes,
) -> torch.Tensor:
    """The client's vote, 1 - grid for one setting and 0 for the others: shape (settings,), float64.

    So after rounding to the grid it is within norm 1, and two votes are at most sqrt(2) apart.

    Args:
        order: with the settings, and the steps of a trial.
        theta: where the run begins, shape (d,).
        encoding: of the sum.
        data: the client's records; with fewer than two it votes at random.
        model: of the task.
        gradients: of the model, by record.
        random_bytes: the client's secret source of bits.

    Raises:
        OrderError: settings that are none, no steps, or a grid too coarse for votes.
    """
    settings = settings_in(order)
    if not encoding.grid <= MOST_ROUNDING:
        raise OrderError(
            f"rounding votes to steps of {encoding.grid:.3g} takes more than a tenth of one: use a larger "
            "budget, or more clients"
        )
    generator = np.random.default_rng(np.frombuffer(random_bytes(32), np.uint64))
    scores = [(0.0, 0.0)] * len(settings)
    if len(data) > 1:
        parts = np.array_split(generator.permutation(len(data)), min(FOLDS, len(data)))
        scores = [
            _score(order, theta, each, data, parts, model, gradients, random_bytes) for each in settings
        ]
    best = [number for number, score in enumerate(scores) if score == max(scores)]
    vote = torch.zeros(len(settings), dtype=torch.float64)
    vote[int(generator.choice(best))] = 1 - encoding.grid
    return vote


def settings_in(order: TrainingOrder) -> list[tuple[float, ...]]:
    """The settings of an order, each with a value for all of `VOTABLE`.

    Raises OrderError: they are none, too many, or out of range.
    """
    values, each = order.settings, len(VOTABLE)
    settings = [values[start : start + each] for start in range(0, len(values), each)]
    known = 2 <= len(settings) <= MOST_SETTINGS and len(values) % each == 0
    if not known or not all(isfinite(rate) and rate > 0 and 0 <= momentum < 1 for rate, momentum in settings):
        raise OrderError(
            f"the order's settings are {values}: give from 2 to {MOST_SETTINGS}, each with "
            f"{', '.join(VOTABLE)}"
        )
    return settings


def _score(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    setting: Sequence[float],
    data: Split,
    parts: Sequence[Ints],
    model: nn.Module,
    gradients: RecordGradients,
    random_bytes: RandomBytes,
) -> Score:
    """What a setting reaches on all parts, each under a model that is trained on the others."""
    rate, momentum = setting
    steps, training = order.records, replace(order.training, learning_rate=rate, momentum=momentum)
    if steps is None:
        raise OrderError("the order's work is vote and it does not say which steps a trial has")

    def holder(part: Ints) -> RecordHolder:
        """The client with the records of all other parts; its batches are smaller, and so is its noise."""
        rest = np.setdiff1d(np.arange(len(data)), part)
        own = replace(steps, noise_multiplier=steps.noise_multiplier * len(rest) / len(data))
        batches = PoissonBatches(own.batch_rates, np.zeros(len(rest), dtype=np.int64))
        return RecordHolder(rest, own, batches, random_bytes)

    def take(places: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        batch = data.take(places.reshape(-1))
        x, y = (torch.from_numpy(each).to(gradients.device) for each in (batch.x, batch.y))
        return x.view(*places.shape, *x.shape[1:]), y.view(*places.shape, *y.shape[1:])

    moved = noised_updates(gradients, theta, training, [holder(part) for part in parts], take)
    right, loss = 0.0, 0.0
    classes = 0 if order.task.form is None else order.task.form.num_classes
    for part, change in zip(parts, moved.cpu().numpy(), strict=True):
        tried = evaluate(
            model,
            (theta + change).astype(np.float32),
            data.take(part),
            loss=order.task.make_loss(),
            device=gradients.device,
            metrics=None if classes > 1 else {},
            target_range=None if classes > 1 else (-1.0, 1.0),
        )
        right += len(part) * (tried.accuracy or 0.0)
        loss += len(part) * (tried.loss if tried.loss is not None and isfinite(tried.loss) else np.inf)
    return right / len(data), -loss / len(data)
