"""What clients compute as norm_histogram: a one-hot vector for the bin that the update's norm lies in."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.works import Job, update
from gdpfed.clients.works.vote import one_vote
from gdpfed.record_steps import NORM_MULTIPLES
from secagg import Encoding

COUNTED = "counts of norms"


def work(job: Job) -> torch.Tensor:
    """Return a one-hot vector for the bin that the norm of the client's update lies in: shape (bins,).

    The entry of that bin is 1 - grid, not 1, with the step size (grid) of the sum.

    Bins end at `NORM_MULTIPLES` of the client's clipping norm, each of them included; the last has no end,
    and is for updates that are not finite, too. As of votes, two vectors are at most sqrt(2) apart.

    Raises OrderError: no clipping norm, or a grid too coarse for counts.
    """
    return histograms(update.work(job)[None], [job.order], job.encoding)[0]


def without_examples(job: Job) -> torch.Tensor:
    """Return the one-hot vector for the bin of norm 0, for a client without usable examples."""
    return histograms(torch.zeros((1, 1), dtype=torch.float64), [job.order], job.encoding)[0]


def histograms(updates: torch.Tensor, orders: Sequence[TrainingOrder], encoding: Encoding) -> torch.Tensor:
    """Return, for each client, a one-hot vector for the bin of its update's norm: shape (clients, bins).

    `updates`: shape (clients, d). The result is float64, on the same device, with 1 - grid in place of 1.
    """
    ends = updates.new_tensor(NORM_MULTIPLES) * updates.new_tensor([[norm_of(each)] for each in orders])
    norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
    # Not the other way round: a norm that is not a number is within no end.
    bins = (~(norms <= ends)).sum(dim=1, keepdim=True)
    counted = updates.new_zeros((len(updates), len(NORM_MULTIPLES) + 1))
    return counted.scatter_(1, bins, one_vote(encoding, COUNTED))


def norm_of(order: TrainingOrder) -> float:
    """Return the clipping norm that the server's instruction names; raise OrderError if it is missing."""
    if order.records is None:
        raise OrderError(
            f"the server asks for {order.work} and does not state the clipping norm of updates: it must "
            "state the norm"
        )
    return order.records.clipping_norm


def check(order: TrainingOrder, *sum_of: object) -> None:
    """Raise OrderError if the clipping norm is missing, or if training would keep a node busy for hours."""
    norm_of(order)
    replace(order, records=None).check_work(order.task.dimension)


def model_dimension(order: TrainingOrder, dimension: int) -> int:
    """Return the number of model parameters; raise OrderError if norm histograms have another `dimension`."""
    if dimension != len(NORM_MULTIPLES) + 1:
        raise OrderError(
            f"norms are counted in {len(NORM_MULTIPLES) + 1} bins, not {dimension}: ask for as many numbers"
        )
    return order.task.dimension


def check_grid(order: TrainingOrder, theta: object, encoding: Encoding) -> None:
    """Raise OrderError if a sum's rounding step exceeds a tenth of one count."""
    one_vote(encoding, COUNTED)
