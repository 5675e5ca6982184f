"""DP-SGD on the records of one client, or of several clients side by side.

One step of a client, from its model theta, over a batch that draws each own record with its rate q
(Abadi et al., arXiv:1607.00133, Algorithm 1)::

    theta <- theta - eta ( sum_{i in batch} clip_C(g_i) + C sigma N(0, I) ) / B

B is the expected size of a batch, never the size of the one that was drawn: that depends on the records. An
empty batch is a step of noise alone. Clipped gradients are truncated to integers and added as such. A sum in
float32 rounds what it has so far, so one record could move it by many times C. Momentum, other optimizers and
the proximal term take what has been noised, so they are post-processing.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from math import frexp, inf
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad import ENDS
from fastgrad.modules import Loss
from fastgrad.precision import one_thread
from gdpfed.learning.training.local_update import clip
from gdpfed.learning.training.optimizers import Descent, LocalTraining, Rows, difference
from gdpfed.learning.training.secret_draws import PoissonBatches, RandomBytes, gaussian_noise
from gdpfed.record_steps import RecordSteps

logger = logging.getLogger(__name__)

Positions = npt.NDArray[np.int64]
Take = Callable[[Positions], tuple[torch.Tensor, torch.Tensor]]
"""Inputs and targets at some positions, on the device: (clients, width) to (clients, width, ...)."""

StepBound = Literal["record", "convex", "step"]
"""What is held to the clipping norm: each record's gradient, by clipping (record) or by its loss (convex), or
the sum of a step's batch over B (step). Of the last two the end alone is released, so rounding counts: theta
is in float64, and so are the gradients of a convex loss."""

STEP_SLACK = 1 - 2.0**-18
"""Of C, for a step that is clipped as a whole: more than what float32 rounds away in it."""


class RecordGradients(Protocol):
    """Computes the gradients of single records, and sums of clipped gradients."""

    device: torch.device
    form: str
    loss: Loss
    most_clients: int | None
    sizes: list[int]
    stacks: bool

    @property
    def model(self) -> nn.Module:
        """The model whose gradients are computed."""

    def memory_budget(self) -> int:
        """Return how many bytes of memory the computation of gradients may use at once."""

    def records_at_once(self, least_bytes: int = 0) -> int:
        """Return how many records are processed at once, if each needs at least `least_bytes` of memory."""

    def steady_width(self, expected: float, least_bytes: int = 0, rows: int = 0) -> int:
        """Return how many records to compute at once so that rounding does not depend on the batch."""

    def clipped_sums(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        present: torch.Tensor,
        clipping_norms: torch.Tensor,
    ) -> torch.Tensor:
        """Return each model's sum of clipped gradients over the records that ``present`` marks."""

    def truncated_sums(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        present: torch.Tensor,
        bounds: torch.Tensor,
        unit: float | torch.Tensor,
    ) -> torch.Tensor:
        """Return each model's sum of clipped gradients, each divided by `unit` and truncated to integers."""

    def rows(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return every record's gradient, unclipped."""


Pass = tuple[list[int], Positions, npt.NDArray[np.bool_], int]
"""Clients, positions (clients, width), which of these are records, and how many rows of each person to take:
0 where a record is a row."""
T = TypeVar("T")

# One pass for all, unless more than this share of it would be places that no record fills.
MOST_EMPTY = 0.5
# Written out in float32, and in float64 with as much again in between.
EXACT_BYTES = 4 + 2 * 8
UNIT_BITS = 30


@dataclass(frozen=True, eq=False)
class RecordHolder:
    """A client that takes part in DP-SGD: its records, its steps, and its secret random bits.

    `records`: where its records lie among the examples, shape (n,). `steps`: what it is told. `batches`:
    draws from its records. `random_bytes`: its secret source of batches and noise. `rows`: how many
    to take of each person among the examples; None where a record is a row.
    """

    records: Positions
    steps: RecordSteps
    batches: PoissonBatches
    random_bytes: RandomBytes
    rows: Positions | None = None

    def draw(self) -> Positions:
        """Draw the client's next batch, as positions in its examples."""
        return self.records[self.batches.draw(self.random_bytes)]


def noised_updates(
    gradients: RecordGradients,
    theta: npt.NDArray[np.float32],
    training: LocalTraining,
    holders: Sequence[RecordHolder],
    take: Take,
    *,
    bound: StepBound = "record",
) -> torch.Tensor:
    """Return each client's update theta_i - theta after its DP-SGD steps.

    A client without records sends zeros: how many it has is public where a record is protected.

    Args:
        gradients: of the model.
        theta: what all start from, shape (d,), or each of them, shape (clients, d).
        training: the learning rate eta and the optimizer.
        holders: the clients.
        take: gives the records at some positions.
        bound: what is held to the clipping norm of a holder.

    Returns:
        Shape (clients, d), float64, on the device of the gradients; it may hold NaN where training diverged.
    """
    start = torch.from_numpy(theta.copy()).to(gradients.device)
    if bound != "record":
        start = start.double()
    ours = start.expand(len(holders), -1).clone()
    descent = Descent(ours, training)
    steps = [holder.steps.num_steps if len(holder.records) else 0 for holder in holders]
    with _one_thread_an_operation(gradients.device) if theta.shape[-1] < LARGE else nullcontext():
        for step in range(max(steps, default=0)):
            now = [k for k, own in enumerate(steps) if step < own]
            among: Rows = slice(None) if len(now) == len(holders) else now
            noised = _noised_means(gradients, ours[among], [holders[k] for k in now], take, bound)
            descent.step(noised, among)
    return difference(ours, start)


def _noised_means(
    gradients: RecordGradients,
    thetas: torch.Tensor,
    holders: Sequence[RecordHolder],
    take: Take,
    bound: StepBound,
) -> torch.Tensor:
    """Return each client's noised sum of clipped gradients, divided by the expected batch size."""
    if bound == "record":
        norms = [holder.steps.clipping_norm for holder in holders]
        units = torch.tensor([unit_for(norm) for norm in norms], dtype=torch.float64, device=gradients.device)
        integers = _integer_sums(gradients, thetas, holders, take, norms, units)
        exact_totals = units[:, None] * integers.double()
    else:
        exact_totals = _unclipped_sums(gradients, thetas, holders, take, bound).double()
    noised = torch.empty_like(thetas)
    for k, holder in enumerate(holders):
        stddev = holder.steps.clipping_norm * holder.steps.noise_multiplier
        exact = exact_totals[k]
        if stddev:
            exact += gaussian_noise(thetas.shape[1], stddev, holder.random_bytes, device=gradients.device)
        noised[k] = exact / holder.batches.expected_size
        if bound == "step":
            noised[k] = clip(noised[k].double(), STEP_SLACK * holder.steps.clipping_norm)
    return noised


def unit_for(clipping_norm: float) -> float:
    """Return the unit of integer gradient sums: the clipping norm is 2**29 to 2**30 units.

    It is a power of 2, so the sums times the unit are exact in float64, up to 2**23 records.
    """
    return 2.0 ** (frexp(clipping_norm)[1] - UNIT_BITS)


def _unclipped_sums(
    gradients: RecordGradients,
    thetas: torch.Tensor,
    holders: Sequence[RecordHolder],
    take: Take,
    bound: StepBound,
) -> torch.Tensor:
    """Return each client's sum of gradients over a batch, without clipping: shape (clients, d).

    The gradients of a convex loss are within its bound. To clip them, if by a hair, could expand distances.
    """
    models = thetas.float() if bound == "step" else thetas

    def sums_of(one: Pass, among: Rows) -> torch.Tensor:
        clients, places, present, rows = one
        x, y = _taken(take, places, rows)
        if bound == "convex":
            x = x.double()
        unbounded = models.new_full((len(clients),), inf)
        return gradients.clipped_sums(models[among], x, y, _on(present, models), unbounded)

    return _added_up(gradients, holders, torch.zeros_like(thetas), sums_of)


def _added_up(
    gradients: RecordGradients,
    holders: Sequence[RecordHolder],
    total: torch.Tensor,
    sums_of: Callable[[Pass, Rows], torch.Tensor],
    least_bytes: int = 0,
) -> torch.Tensor:
    """Draw a batch for each client, and add the sums of all passes over the batches to `total`; return it.

    `total`: shape (clients, d). `sums_of`: returns the sums of a pass, given its clients' rows of `total`.
    """

    def of_pass(one: Pass) -> tuple[Rows, torch.Tensor]:
        among: Rows = slice(None) if len(one[0]) == len(holders) else one[0]
        return among, sums_of(one, among)

    def attempted(one: Pass) -> list[tuple[Rows, torch.Tensor]]:
        # A package may raise anything, and no record decides for others. If the pass fails, each of its
        # records is tried alone, as two copies, since a loss may drop a dimension of size 1. If a pass
        # without the failing ones fails, memory is short: then each is tried as a whole pass of its copies.
        for copies in (0, 2):
            try:
                return [of_pass(each) for each in _without_failing(one, of_pass, copies)]
            except ENDS:
                raise
            except BaseException as error:
                # A simulation trains fewer clients at once.
                if len(one[0]) > 1 and isinstance(error, torch.cuda.OutOfMemoryError):
                    raise
            # The next try is made out here: inside `except`, the error would keep the failed pass's memory.
        return [of_pass(each) for each in _without_failing(one, of_pass, one[1].shape[1])]

    batches = [holder.draw() for holder in holders]
    if len(holders) == 1 or gradients.most_clients == 1:
        # With a single client, the number of places in a pass does not depend on the batch, so that no record
        # changes another's gradient.
        passes = [
            one
            for k, (holder, batch) in enumerate(zip(holders, batches, strict=True))
            for one in _steady_passes(k, holder, batch, gradients, least_bytes)
        ]
    else:
        at_once = gradients.records_at_once(least_bytes=least_bytes)
        passes = [
            (clients, places, present, int(_rows_of(holders[0], places.ravel()).max()))
            for clients, places, present in _shared_passes(batches, at_once, gradients.most_clients)
        ]

    for among, sums in chain.from_iterable(_side_by_side(attempted, passes, total.shape[-1], total.device)):
        total[among] += sums
    return total


def _without_failing(one: Pass, of_pass: Callable[[Pass], object], copies: int) -> Iterator[Pass]:
    """Yield a pass for each client, without records for which the loss or the model raises.

    So their gradients count as zeros, and they change nothing of the others. Each is tried in a pass of so
    many `copies` of it alone. Without any, nothing is tried, and the pass itself is yielded.
    """
    if not copies:
        yield one
        return
    clients, places, present, rows = one
    errors = list[str]()

    def raises(client: int, place: np.int64) -> bool:
        alike = np.full_like(places[:1, :copies], place)
        try:
            of_pass(([client], alike, np.ones_like(alike, dtype=np.bool_), rows))
        except ENDS:
            raise
        except BaseException as error:
            errors.append(type(error).__name__)
            return True
        return False

    for client, own, there in zip(clients, places, present, strict=True):
        if sound := [place for place in own[there] if not raises(client, place)]:
            yield [client], np.resize(sound, own.shape)[None], np.arange(len(own))[None] < len(sound), rows
    if errors:
        said = "records whose gradients count as zeros, since their loss or model raises %s: %d"
        logger.error(said, errors[0], len(errors))


def exact_sums(
    gradients: RecordGradients,
    theta: npt.NDArray[np.float32],
    holders: Sequence[RecordHolder],
    take: Take,
    *,
    bounds: Sequence[float],
    unit: float,
) -> npt.NDArray[np.int64]:
    """Return every client's integer sum over one batch: each gradient is clipped, truncated and added.

    Record i adds z_i = trunc(g_i min(1, bound / ||g_i||) / unit), by coordinate and towards zero, which makes
    no norm larger: so unit ||z_i|| <= bound, in the reals, as the norm is taken in float64 and of the numbers
    that are truncated. Sums of integers are exact in any order, and at a steady width g_i does not depend on
    the other records, so two sums of one client that differ by record i differ by z_i and nothing else. (Many
    clients of a simulation may share passes; there, other g_j may differ in their last bits.) A gradient that
    is not finite counts as zero. `gradients`, `theta`, `holders`, `take`: as in :func:`noised_updates`.
    `bounds`: every client's bound on a record's gradient. `unit`: of the integers, in the unit of a gradient.
    Returns shape (clients, d).
    """
    start = torch.from_numpy(theta.copy()).to(gradients.device)
    thetas = start.expand(len(holders), -1)
    exact: npt.NDArray[np.int64] = _integer_sums(gradients, thetas, holders, take, bounds, unit).cpu().numpy()
    return exact


def _integer_sums(
    gradients: RecordGradients,
    thetas: torch.Tensor,
    holders: Sequence[RecordHolder],
    take: Take,
    bounds: Sequence[float],
    unit: float | torch.Tensor,
) -> torch.Tensor:
    """Return the sums of :func:`exact_sums`, (clients, d), if each client has its own model in `thetas`."""
    total = torch.zeros(thetas.shape, dtype=torch.int64, device=gradients.device)

    def sums_of(one: Pass, among: Rows) -> torch.Tensor:
        clients, places, present, rows = one
        limits = torch.tensor([bounds[k] for k in clients], dtype=torch.float64, device=thetas.device)
        x, y = _taken(take, places, rows)
        units = unit if isinstance(unit, float) else unit[clients]
        return gradients.truncated_sums(thetas[among], x, y, _on(present, thetas), limits, units)

    return _added_up(gradients, holders, total, sums_of, EXACT_BYTES * thetas.shape[1])


def _taken(take: Take, places: Positions, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = take(places)
    if not rows:
        return x, y
    # Copied: how persons lie in memory, which other persons may decide, must not show in the last bits.
    copied = partial(torch.clone, memory_format=torch.contiguous_format)
    return copied(x[:, :, :rows]), copied(y[:, :, :rows])


def _rows_of(holder: RecordHolder, places: Positions) -> npt.NDArray[np.int64]:
    """Return how many rows of each person to process; return zeros if every record is a single row."""
    return np.zeros(len(places), np.int64) if holder.rows is None else holder.rows[places]


def _steady_passes(
    client: int, holder: RecordHolder, batch: Positions, gradients: RecordGradients, least_bytes: int
) -> Iterator[Pass]:
    """Cut a client's batch into parts whose size does not depend on the batch; pad the last part.

    Places that no record is left for repeat another record, and are not present.
    """
    rows_of = _rows_of(holder, batch)
    for rows in np.unique(rows_of).tolist():
        width = gradients.steady_width(holder.batches.expected_size, least_bytes, rows)
        alike = batch[rows_of == rows]
        for begin in range(0, len(alike), width):
            piece = alike[begin : begin + width]
            present = np.arange(width) < len(piece)
            yield [client], np.resize(piece, width)[None], present[None], rows


def _shared_passes(
    batches: Sequence[Positions], at_once: int, most_clients: int | None
) -> Iterator[tuple[list[int], Positions, npt.NDArray[np.bool_]]]:
    """Cut many clients' batches into parts that fit into memory; yield clients, positions and mask of each.

    Both have shape (clients, width). Each pass takes as many records of a client as of any other; a client
    with fewer has empty places.
    """
    sizes = np.array([len(batch) for batch in batches])
    begin = 0
    while left := [k for k, size in enumerate(sizes) if size > begin]:
        rest = sizes[left] - begin
        width = int(rest.max())
        together = min(len(left), most_clients or len(left))
        if together > 1 and rest.sum() < (1 - MOST_EMPTY) * width * len(left):
            width = int(np.median(rest))
        # In equal pieces.
        width = -(-width // -(-width // max(1, at_once // together)))
        fewer = min(together, max(1, at_once // width))
        for first in range(0, len(left), fewer):
            clients = left[first : first + fewer]
            places = np.zeros((len(clients), width), dtype=np.int64)
            present = np.zeros((len(clients), width), dtype=bool)
            for row, k in enumerate(clients):
                piece = batches[k][begin : begin + width]
                places[row, : len(piece)] = piece
                places[row, len(piece) :] = piece[0]
                present[row, : len(piece)] = True
            yield clients, places, present
        begin += width


LARGE = 1_000_000
"""Parameters from which on an operation on a model is worth sharing out."""
SHORT_WORK = 1e6
"""Records of a pass times parameters, below which passes are not shared out: less than half a millisecond."""
_threads = ContextVar("threads for the passes of a batch", default=1)


@contextmanager
def _one_thread_an_operation(device: torch.device) -> Iterator[None]:
    """In a ``with`` block on a CPU, leave torch's threads to the passes of a batch (`_side_by_side`).

    The operations of a step are too short to be shared out one by one: threads would wait for each other, and
    those of one operation, which spin for a while when it is done, would hold up the passes of the next step.
    """
    with one_thread(device) as threads:
        if device.type != "cpu" or threads == 1:
            yield
            return
        told = _threads.set(threads)
        try:
            yield
        finally:
            _threads.reset(told)


def _side_by_side(
    act: Callable[[Pass], T], passes: Sequence[Pass], dimension: int, device: torch.device
) -> Iterator[T]:
    """Call `act` for each part of a batch, on a CPU in several threads, and yield the results in order.

    Short passes follow each other: threads would wait for Python's lock and for being told. A single pass has
    one thread, too, so that its bits do not depend on how many passes there are. `dimension`: d.
    """
    work = max((places.size for _, places, *_ in passes), default=0) * dimension
    with _one_thread_an_operation(device):
        threads = 1 if work < SHORT_WORK else _threads.get()
        yield from map(act, passes) if threads == 1 else _pool(os.getpid(), threads).map(act, passes)


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The thread pool of this process; a forked process makes its own."""
    return ThreadPoolExecutor(threads)


def _on(present: npt.NDArray[np.bool_], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(present).to(like.device)
