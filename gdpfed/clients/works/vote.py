"""Votes on training settings: a client tries every setting on its own records and votes for the best.

Nothing of a trial leaves the client but the vote. A trial is the run as the client can do it alone: all steps
on a part of its records, with the noise that the common model would have, and then a test on the others. It
may be anything, since only the vote is accounted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from conf.limits import MOST_SETTINGS, VOTABLE
from gdpfed.clients.order import MOST_ROUNDING, OrderError, TrainingOrder
from gdpfed.clients.order_checks import built_model
from gdpfed.clients.record_forms import built_gradients
from gdpfed.clients.record_work import taken_from
from gdpfed.clients.works import Job
from gdpfed.learning.data import Split
from gdpfed.learning.data.persons import rows_to_take
from gdpfed.learning.data.text import one_label
from gdpfed.learning.task import choose_device
from gdpfed.learning.training.evaluate import evaluate
from gdpfed.learning.training.local_update import clip, local_update
from gdpfed.learning.training.record_training import RecordGradients, RecordHolder, noised_updates
from gdpfed.learning.training.secret_draws import PoissonBatches, RandomBytes, gaussian_noise
from gdpfed.record_steps import RecordSteps
from secagg import Encoding

PARTS = 4
"""Of a client's records. Steps on records are tested on each part once, after training on the others; rounds
of local training, which take longer, on one of them."""

Ints = npt.NDArray[np.int64]


def work(job: Job) -> torch.Tensor:
    """Return the client's vote: a one-hot vector, shape (settings,), for the best training setting.

    Its entry is 1 - grid, not 1, with the step size (grid) of the sum.

    So after rounding to the grid it is within norm 1, and two votes are at most sqrt(2) apart. A client with
    fewer than two records votes at random.

    Raises:
        OrderError: settings that are none, no steps, or a grid too coarse for votes.
    """
    order, theta, data = job.order, job.theta, job.examples()
    gradients = partial(built_gradients, order.task, job.device)
    client = Trial(built_model(order.task), gradients, job.bits(job.client_id), job.device)
    settings = settings_in(order)
    generator, scores = generator_of(client.random_bytes), [0.0] * len(settings)
    if len(data) > 1:
        parts = np.array_split(generator.permutation(len(data)), min(PARTS, len(data)))
        scores = [_mean_score(order, theta, setting, data, parts, client) for setting in settings]
    best = [number for number, score in enumerate(scores) if score == max(scores)]
    vote = torch.zeros(len(settings), dtype=torch.float64)
    vote[int(generator.choice(best))] = one_vote(job.encoding)
    return vote


def check(order: TrainingOrder, *sum_of: object) -> None:
    """Raise OrderError if the settings to vote on, or the steps to try them with, are missing."""
    settings_in(order)
    if order.records is None:
        raise OrderError(
            "the server asks for a vote and does not state the steps of a trial: it must state them"
        )
    if order.work == "vote":
        built_gradients(order.task, choose_device(order.device))


def model_dimension(order: TrainingOrder, dimension: int) -> int:
    """Return the number of model parameters; raise OrderError if sums of votes have another `dimension`."""
    if dimension * len(VOTABLE) != len(order.settings):
        raise OrderError(
            f"a vote on {len(order.settings)} values cannot have {dimension} coordinates: give one for each "
            "setting that is compared"
        )
    return order.task.dimension


def check_grid(order: TrainingOrder, theta: object, encoding: Encoding) -> None:
    """Raise OrderError if a sum's rounding step exceeds a tenth of one vote."""
    one_vote(encoding)


def one_vote(encoding: Encoding, what: str = "votes") -> float:
    """Return the value of one vote, 1 minus the sum's rounding step; raise OrderError if the step is too big.

    `what`: they are called in an error, where it is not settings that are voted on.
    """
    if not encoding.grid <= MOST_ROUNDING:
        raise OrderError(
            f"rounding {what} to steps of {encoding.grid:.3g} takes more than a tenth of one: use a larger "
            "budget, or more clients"
        )
    return 1 - encoding.grid


def settings_in(order: TrainingOrder) -> list[tuple[float, ...]]:
    """Return the training settings that clients vote on, each a learning rate, a momentum and a decay.

    Raises OrderError: they are none, too many, or out of range.
    """
    values, each = order.settings, len(VOTABLE)
    settings = [values[start : start + each] for start in range(0, len(values), each)]
    known = 2 <= len(settings) <= MOST_SETTINGS and len(values) % each == 0
    known = known and all(
        isfinite(rate) and rate > 0 and 0 <= momentum < 1 and 0 < decay <= 1
        for rate, momentum, decay in settings
    )
    if not known:
        raise OrderError(
            f"the server asks for a vote on {values}: give from 2 to {MOST_SETTINGS} settings, each with "
            f"{', '.join(VOTABLE)}"
        )
    return settings


def _mean_score(
    order: TrainingOrder,
    theta: npt.NDArray[np.float32],
    setting: Sequence[float],
    data: Split,
    parts: Sequence[Ints],
    client: "Trial",
) -> float:
    """Try a training setting by cross-validation; return its mean score on records left out of training.

    Where a trial is rounds of local training it is tested on the first part alone.

    That is the share of right answers or, where labels are not classes, minus the loss. Of classes a loss
    would make a client with few records, which no model tells from others, vote for the most timid setting.
    """
    if order.records is None:
        raise OrderError(
            "the server asks for a vote and does not state the steps of a trial: it must state them"
        )
    by_steps = order.work == "vote"
    parts = parts if by_steps else parts[:1]
    rests = [np.setdiff1d(np.arange(len(data)), part) for part in parts]
    by = client.steps_on_records if by_steps else client.rounds
    reached, tested = 0.0, sum(map(len, parts))
    classes = order.task.classes_counted
    for part, change in zip(parts, by(order, order.records, theta, setting, data, rests), strict=True):
        found = evaluate(
            client.model,
            (theta + change).astype(np.float32),
            one_label(data.take(part)) if order.task.at_every_position else data.take(part),
            loss=order.task.make_loss(),
            device=client.device,
            metrics=None if classes else {},
        )
        lost = found.loss if found.loss is not None and isfinite(found.loss) else np.inf
        reached += len(part) / tested * (-lost if found.accuracy is None else found.accuracy)
    return reached


@dataclass(frozen=True, eq=False)
class Trial:
    """What a client needs for trying training settings: model, gradients, secret random bits and device.

    Attributes:
        model: of the task.
        gradients: makes those of the model, by record; called where steps on records are tried.
        random_bytes: the client's secret source of bits.
        device: where it trains.
    """

    model: nn.Module
    gradients: Callable[[], RecordGradients]
    random_bytes: RandomBytes
    device: torch.device

    def steps_on_records(
        self,
        order: TrainingOrder,
        steps: RecordSteps,
        theta: npt.NDArray[np.float32],
        setting: Sequence[float],
        data: Split,
        rests: Sequence[Ints],
    ) -> npt.NDArray[np.float64]:
        """Train by DP-SGD on several training sets; return each model's change, one row for each set.

        With fewer records batches are smaller, and noise is as much less, so that it is the same in a step.
        """
        rate, momentum, _ = setting
        training = replace(order.training, learning_rate=rate, momentum=momentum)

        def holder(rest: Ints) -> RecordHolder:
            own = replace(steps, noise_multiplier=steps.noise_multiplier * len(rest) / len(data))
            batches = PoissonBatches(own.batch_rates, np.zeros(len(rest), dtype=np.int64))
            return RecordHolder(rest, own, batches, self.random_bytes, rows)

        rows = rows_to_take(data) if order.task.by_person else None
        holders, taken = [holder(rest) for rest in rests], taken_from(data, self.device)
        moved = noised_updates(self.gradients(), theta, training, holders, taken)
        return np.asarray(moved.cpu().numpy())

    def rounds(
        self,
        order: TrainingOrder,
        steps: RecordSteps,
        theta: npt.NDArray[np.float32],
        setting: Sequence[float],
        data: Split,
        rests: Sequence[Ints],
    ) -> npt.NDArray[np.float64]:
        """Simulate rounds of noised local training on each training set; return model changes, one row a set.

        A round is local training, clipped to C, with noise of the multiplier that the step of all has.
        """
        rate, momentum, decay = setting
        stddev, moved = steps.clipping_norm * steps.noise_multiplier, np.zeros((len(rests), len(theta)))
        generator, loss = generator_of(self.random_bytes), order.task.make_loss()
        for change, rest in zip(moved, map(data.take, rests), strict=True):
            for index in range(steps.num_steps):
                training = replace(order.training, learning_rate=rate * decay**index, momentum=momentum)
                start = (theta + change).astype(np.float32)
                update = local_update(
                    self.model, start, rest, training, rng=generator, device=self.device, loss=loss
                )
                noise = gaussian_noise(len(theta), stddev, self.random_bytes, device=self.device)
                change += (clip(update, steps.clipping_norm) + noise).cpu().numpy()
        return moved


def generator_of(random_bytes: RandomBytes) -> np.random.Generator:
    """Return a random generator that is seeded with secret bits."""
    return np.random.default_rng(np.frombuffer(random_bytes(32), np.uint64))
