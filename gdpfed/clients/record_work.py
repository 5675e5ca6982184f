"""Code shared by client computations on single records: describes clients, and checks training instructions.

The code is that of one client on its node and of many clients in a simulation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.clients.noise import BitsOf
from gdpfed.clients.order import MOST_ROUNDING, OrderError, TrainingOrder
from gdpfed.clients.order_checks import ROWS_OF_PERSONS
from gdpfed.clients.record_forms import built_gradients, built_graphs
from gdpfed.clients.works import Job
from gdpfed.learning.data import Split
from gdpfed.learning.data.client_partition import record_groups
from gdpfed.learning.data.persons import rows_to_take
from gdpfed.learning.labels import LabelKind
from gdpfed.learning.models.networks import ConvexBounds
from gdpfed.learning.task import choose_device
from gdpfed.learning.training.record_graphs import RecordGraphs
from gdpfed.learning.training.record_training import (
    Positions,
    RecordGradients,
    RecordHolder,
    StepBound,
    Take,
    noised_updates,
)
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.record_steps import RecordSteps, record_move
from gdpfed.registry import is_ours
from secagg import Encoding


@dataclass(frozen=True, eq=False)
class RecordJobs:
    """The instructions, model and records of clients whose training steps are computed together.

    Attributes:
        orders: each client's own, all of one work.
        theta: what they start from, shape (d,), or each of them, shape (clients, d).
        gradients: of the model.
        holders: the clients, in the order of their orders.
        take: gives the records at some positions.
        grid: the value of one integer step of the sum's encoding.
        graphs: by which steps of SGD are replayed; None where they are called.
    """

    orders: Sequence[TrainingOrder]
    theta: npt.NDArray[np.float32]
    gradients: RecordGradients
    holders: Sequence[RecordHolder]
    take: Take
    grid: float
    graphs: RecordGraphs | None = None

    @property
    def bounds(self) -> list[float]:
        """For each client, the largest effect that one record may have on the result before rounding."""
        return [record_bound(order, self.theta.shape[-1], self.grid) for order in self.orders]

    def noised_updates(self, bound: StepBound = "record") -> torch.Tensor:
        """Return every client's model change theta_i - theta after its steps: shape (clients, d), float64."""
        training = self.orders[0].training
        if self.graphs is not None and bound == "record" and training.is_sgd:
            return self.graphs.updates(self.theta, training, self.holders, self.take)
        return noised_updates(self.gradients, self.theta, training, self.holders, self.take, bound=bound)


Updates = Callable[[RecordJobs], torch.Tensor]
"""Of a work's file: what each of these clients computes before it is weighed, shape (clients, d), float64."""
# Of the sum's grid: finer than it, so that rounding one record's gradient moves it by next to nothing.
UNITS_A_GRID_STEP = 256
# Outweighs rounding in a window, relative to how far a record moves its end: see `check_rounding`.
FLOAT_SLACK = 1 - 2.0**-10
FLOAT_UNIT = 2.0**-53
RARE_BATCH = 1e-9


def holder_of(
    order: TrainingOrder,
    client_id: int,
    records: Positions,
    load: Callable[[], Split],
    bits: BitsOf,
    rows: Positions | None = None,
) -> RecordHolder:
    """Return a client's data for DP-SGD steps: record positions, step parameters, batches and random bits.

    Args:
        order: the client's own.
        client_id: its number.
        records: where its records lie among the examples that its batches are taken from.
        load: loads them; called where they are of several groups.
        bits: the source of its secret bits.
        rows: how many to take of each person among all examples; None where a record is a row.

    Raises LearningError: a record of a group without a rate, or no shares to form groups by.
    """
    steps, task = checked_steps(order), order.task
    if (num_groups := len(steps.batch_rates)) == 1:
        groups = np.zeros(len(records), dtype=np.int64)
    else:
        groups = record_groups(load(), num_groups, task.record_shares, task.seed, client_id)
    return RecordHolder(records, steps, PoissonBatches(steps.batch_rates, groups), bits(client_id), rows)


def checked_steps(order: TrainingOrder) -> RecordSteps:
    """Return the DP-SGD parameters in a server's training instruction, after checking that they are valid.

    Raises OrderError: nothing, or numbers that are not for its work.
    """
    steps = order.records
    if steps is None:
        raise OrderError(
            f"the server asks for {order.work} and does not state the steps on records: it must state their "
            "number, batch rates, norm and noise"
        )
    if order.task.record_shares and 1 < len(steps.batch_rates) != len(order.task.record_shares):
        raise OrderError(
            f"the server states {len(steps.batch_rates)} batch rates for {len(order.task.record_shares)} "
            "groups of records: it must state one for each group"
        )
    if order.kind.own_noise:
        if steps.noise_multiplier == 0:
            raise OrderError(
                f"the server asks for {order.work} on records with noise_multiplier 0: use a positive one, "
                "or, in a run without privacy, plain updates"
            )
    elif order.kind.window:
        _check_window(order, steps)
    elif steps.noise_multiplier != 0 or steps.num_steps != 1:
        raise OrderError(
            f"the server asks for {order.work} with {steps.num_steps} steps on records and noise_multiplier "
            f"{steps.noise_multiplier}: it must be one step without noise, since the sum has the noise"
        )
    return steps


def _check_window(order: TrainingOrder, steps: RecordSteps) -> None:
    """Raise OrderError unless steps are plain SGD on rows without noise, as the privacy bound assumes."""
    if order.task.by_person:
        raise OrderError(
            f"the server asks for {order.work} on persons, and its privacy bound is for single rows: "
            "protect rows, or use a method that clips by person, such as dp_sgd"
        )
    if steps.noise_multiplier != 0:
        raise OrderError(
            f"the server asks for {order.work} on records with noise_multiplier "
            f"{steps.noise_multiplier}: its steps must be without noise, since the sum has the noise"
        )
    if not order.training.is_sgd:
        raise OrderError(
            f"the server asks for {order.work} with optimizer {order.training.optimizer} and proximal "
            f"{order.training.proximal:g}: its privacy bound covers plain steps of sgd alone"
        )
    if order.training.momentum != 0:
        raise OrderError(
            f"the server asks for {order.work} with momentum {order.training.momentum}: by momentum a "
            "record acts in later steps, too, which the privacy bound does not cover; use momentum 0"
        )


def check_convex_steps(order: TrainingOrder, num_records: int, bounds: ConvexBounds | None) -> None:
    """Raise OrderError if the learning rate on a convex loss is too large for this many records.

    A batch of b records of a loss with smoothness beta, divided by B, is beta b / B smooth, and a step eta <=
    2 B / (beta b) of it expands no distance. Batches are larger than that b with a chance of `RARE_BATCH` at
    most; the plan has it in its delta.
    """
    known = check_convex(order, bounds)
    for rate in checked_steps(order).batch_rates:
        chance = known.chance_of_long_step(order.training.learning_rate, rate, num_records)
        if chance > RARE_BATCH:
            raise OrderError(
                f"learning rate {order.training.learning_rate:g} at batch rate {rate:g} of {num_records} "
                f"records breaks the privacy bound with a chance of {chance:.2g}: use a smaller learning rate"
            )


def check_convex(order: TrainingOrder, bounds: ConvexBounds | None) -> ConvexBounds:
    """Return bounds on the gradient and smoothness of a convex loss, which hold for any records.

    Raises OrderError: a model whose loss is not known to be convex, labels that are not one class, or a bound
    that is not its own.
    """
    steps, labels = checked_steps(order), order.task.known_form.labels
    if bounds is None or order.task.loss != "cross_entropy" or order.task.class_weights:
        raise OrderError(
            f"the server asks for convex_steps of {order.task.model} with loss {order.task.loss}: only "
            "softmax with cross_entropy and without class weights is known to be convex and bounded"
        )
    if not one_class(labels):
        raise OrderError(
            f"the server asks for convex_steps on labels that are {labels.words}: their bound holds for "
            "labels that are one class, since others, such as shares of classes, have longer gradients"
        )
    if not steps.clipping_norm >= bounds.gradient_norm * (1 - 1e-6):
        raise OrderError(
            f"the server bounds gradients by {steps.clipping_norm:.6g}, and those of its model reach "
            f"{bounds.gradient_norm:.6g}: use a larger clipping norm"
        )
    return bounds


def one_class(labels: LabelKind) -> bool:
    """Whether a label is the number of one class, by this project's code, as the convex bounds assume."""
    return is_ours(type(labels)) and labels.is_one_class and not labels.shape


def check_rounding(order: TrainingOrder, theta: npt.NDArray[np.float32], expected_batch: float) -> None:
    """Raise OrderError if float64 rounding in local steps could break the bound on one record's effect.

    The end is a sum S of steps in float64, read as (theta_i - theta) B / eta, or without B where each step
    is clipped. Let R bound the models on the way, u = 2**-53, and D be the number of records. In either of
    two neighbouring runs

    * writing theta after a step, and the end, changes S by at most 2 u R B / eta: theta is rounded once, and
      so is the step;
    * a gradient of `convex_steps` is (p - y) x with ||x|| = r. Its scores are inner products of at most d
      terms of norms r and R, which float64 has within d u r R, and p moves no further than they do. So the
      sum of a batch's gradients is off by at most 2 D d u r^2 (R + 1). The exact steps expand no distance:
      errors of all steps add up, and no more.

    With m steps both runs together are off by E = 2 (m + 1) (2 u R B / eta + 2 D d u r^2 (R + 1)). A record
    that is met is accounted with C at least, so FLOAT_SLACK (C + E) <= C is enough; without it both runs are
    the same to the bit. Steps that are clipped each are bounded whatever their gradients are: for them the
    second term falls away. Raises OrderError: E is larger; with a larger step, or a smaller model, it is not.
    """
    steps, eta, convex = checked_steps(order), order.training.learning_rate, order.kind.window == "convex"
    if not 0.0 < eta < inf:
        raise OrderError(f"the server's learning rate is {eta}: it must be positive and finite")
    most = steps.num_steps + 1
    largest_step = steps.clipping_norm / (min(steps.batch_rates) if convex else 1.0)
    norm = float(np.linalg.norm(theta.astype(np.float64), axis=-1).max())
    reach = norm + most * eta * largest_step
    error = 2 * FLOAT_UNIT * reach * (expected_batch if convex else 1.0) / eta
    if convex:
        num_records = expected_batch / min(steps.batch_rates)
        # C = sqrt(2) r.
        error += FLOAT_UNIT * num_records * theta.shape[-1] * steps.clipping_norm**2 * (reach + 1)
    slack = (1 / FLOAT_SLACK - 1) * record_move(order.work, steps)
    if not 2 * most * error <= slack:
        raise OrderError(
            f"steps of {eta:g} from a model of norm {reach:.3g} are below rounding errors, and could "
            "reveal more of a record than epsilon counts: use a larger learning rate or smaller parameters"
        )


def alone(job: Job, updates: Updates) -> torch.Tensor:
    """Compute one client's unweighted result by `updates`, which also serves many clients: (d,), float64."""
    data = job.examples()
    # After the examples were read: if they had changed before, the order that comes back knows it.
    order = job.dealt(job.order)
    if data.persons is not None:
        raise OrderError(ROWS_OF_PERSONS)
    rows = rows_to_take(data) if order.task.by_person else None
    holder = holder_of(order, job.client_id, np.arange(len(data)), lambda: data, job.bits, rows)
    gradients = built_gradients(order.task, job.device)
    taken = taken_from(data, job.device)
    # A graph has one shape for all, so the person with the most rows would decide how all are computed.
    graphs = None if order.task.by_person else built_graphs(order.task, job.device)
    return updates(RecordJobs([order], job.theta, gradients, [holder], taken, job.encoding.grid, graphs))[0]


def taken_from(data: Split, device: torch.device) -> Take:
    """Return a function that reads the records at given positions of a data set onto a device."""

    def take(places: Positions) -> tuple[torch.Tensor, torch.Tensor]:
        batch = data.take(places.reshape(-1))
        x, y = (torch.from_numpy(values).to(device) for values in (batch.x, batch.y))
        return x.view(*places.shape, *x.shape[1:]), y.view(*places.shape, *y.shape[1:])

    return take


def checked_model(order: TrainingOrder) -> nn.Module:
    """Build and return the model; raise OrderError if the server's instruction has invalid DP-SGD steps."""
    model = built_gradients(order.task, choose_device(order.device)).model
    checked_steps(order)
    return model


def check_window(order: TrainingOrder, theta: npt.NDArray[np.float32], encoding: Encoding) -> None:
    """Raise OrderError if rounding is too coarse to keep the privacy bound of local steps for one record."""
    record_bound(order, len(theta), encoding.grid)
    # As of one record: how many there are is known once they are read, and is public.
    check_rounding(order, theta, min(checked_steps(order).batch_rates))


def ends_of_windows(jobs: RecordJobs, bound: Literal["convex", "step"]) -> torch.Tensor:
    """Return clients' model changes by local steps, scaled so that `jobs.bounds` limits a record's effect."""
    convex, bounds, eta = bound == "convex", jobs.bounds, jobs.orders[0].training.learning_rate
    for order, holder in zip(jobs.orders, jobs.holders, strict=True):
        check_rounding(order, jobs.theta, holder.batches.expected_size)
    ends = jobs.noised_updates(bound)
    factors = [
        FLOAT_SLACK
        * (least / record_move(order.work, checked_steps(order)))
        * (holder.batches.expected_size if convex else 1.0)
        / eta
        for order, holder, least in zip(jobs.orders, jobs.holders, bounds, strict=True)
    ]
    return ends * ends.new_tensor(factors)[:, None]


def record_bound(order: TrainingOrder, dimension: int, grid: float) -> float:
    """Return how far one record may move a client's result: the accounting's distance C minus rounding error.

    Let S and S' be the sums with a record and without. They differ by C - grid sqrt(d) / w at most, exactly.
    Weighing makes that w C - grid sqrt(d). Clipping to the ball of the encoding, and clamping to its range,
    are projections onto convex sets, which bring no two points further apart. Rounding to the grid moves each
    of the two by half a step in a coordinate, together by grid sqrt(d) in norm. So what is encoded differs by
    w C at most. What has been clipped to `Encoding.clip_bound` cannot round to a norm above that of the
    encoding, so no sum is replaced by zeros. float64 is off by less than the 2**-30 of C that `exact_sums`
    leaves, as long as the ball is no more than 2**20 times as large as C. Raises OrderError: rounding would
    take more than a tenth of C.
    """
    norm = record_move(order.work, checked_steps(order))
    rounding = grid * sqrt(dimension) / order.weight
    if not rounding <= MOST_ROUNDING * norm:
        raise OrderError(
            f"rounding {dimension} coordinates to steps of {grid:.3g} moves a sum by {rounding:.3g}, more "
            f"than a tenth of the records' clipping norm {norm:.6g}: use less noise, or more contributors"
        )
    return norm - rounding
