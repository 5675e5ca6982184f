"""Works on records of many clients at once: batches, clipping and noise of each, one pass for all."""

from collections.abc import Sequence
from functools import partial

import torch

from fastgrad.record_gradients import RecordGradients
from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.clients.record_work import BitsOf, holder_of, record_updates, secret_bits
from gdpfed.learning.training.record_training import Take
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Cohort

MOST_CLIENTS = 1024
# Model, update, velocity, noise and their copies, in 32 and in 64 bits.
BYTES_A_PARAMETER = 4 * 4 + 6 * 8


class BatchedRecords:
    """Work on records, for many clients at once if the model allows it.

    The models of a chunk of clients go together through one pass if the form of the gradients knows how.
    Else one client comes after the other, and its records go together.

    Args:
        gradients: of the model.
        bits: the source of every client's secret bits.
    """

    def __init__(self, gradients: RecordGradients, bits: BitsOf = secret_bits) -> None:
        self._gradients = gradients
        self._bits = bits

    @property
    def form(self) -> str:
        """How gradients are computed, in words."""
        return self._gradients.form

    def clients_at_once(self, dimension: int) -> int:
        """How many clients go together: as many as the memory is meant to hold of their models."""
        if not self._gradients.stacks:
            return 1
        need = BYTES_A_PARAMETER * dimension
        return max(1, min(MOST_CLIENTS, self._gradients.memory_budget() // need))

    def updates(
        self,
        order: TrainingOrder,
        theta: Theta,
        clients: Sequence[int],
        cohort: Cohort,
        take: Take,
    ) -> torch.Tensor:
        """The unweighted results of these clients: shape (clients, d), float64, on the device.

        ``take`` gives the records at some places among the examples.
        """
        orders = [order.for_part(cohort.parts.get(client_id, ClientPart())) for client_id in clients]
        holders = [
            holder_of(
                own,
                client_id,
                order.task.client_indices(client_id),
                partial(order.task.client_data, client_id),
                self._bits,
            )
            for own, client_id in zip(orders, clients, strict=True)
        ]
        return record_updates(orders, theta, self._gradients, holders, take, cohort.encoding.grid)
