"""A sum with all that is needed to compute it: request, parameters, and each client's settings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, inf
from typing import Self

import numpy as np

from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.methods.base import SumRequest, Theta
from gdpfed.privacy.release import ROUNDING, NoiseAt, Vector
from gdpfed.record_steps import RecordSteps
from gdpfed.rounds.extensions.base import NOTHING_BESIDE, Beside
from secagg import SumParameters


@dataclass(frozen=True, eq=False)
class PreparedSum:
    """One sum with all that is needed to compute it: request, parameters, and each client's settings.

    Attributes:
        name: the name of the request.
        parameters: the public parameters, to which the clients agree.
        clients: the ids of the clients that send an update or zeros.
        order: the instruction for all clients; each client's own values are in ``parts``.
        start: the model from which the clients start.
        parts: each client's own values; a client without an entry has the sum's norm, and weight 1.
        at_edge: whether a trusted edge sums in clear and adds the noise.
        beside: what extensions add to the sum.
    """

    name: str
    parameters: SumParameters
    clients: Sequence[int]
    order: TrainingOrder
    start: Theta
    parts: dict[int, ClientPart]
    at_edge: bool = False
    beside: Beside = NOTHING_BESIDE

    @classmethod
    def of(cls, request: SumRequest, parameters: SumParameters, order: TrainingOrder) -> Self:
        """Combine a request with its parameters and the server's instruction for the round."""
        return cls(
            name=request.name,
            parameters=parameters,
            clients=request.clients.tolist(),
            order=order_of_sum(request, order),
            start=request.start,
            parts=client_parts(request),
            at_edge=request.noise_at is NoiseAt.EDGE,
        )

    def part(self, client_id: int) -> ClientPart:
        """The clipping norm, weight and local DP-SGD parameters of one client in this sum."""
        return self.parts.get(client_id, ClientPart())

    @cached_property
    def fillers(self) -> frozenset[int]:
        """The clients that were not sampled, and send zeros so that the sum takes place."""
        return frozenset(client for client, part in self.parts.items() if part.fills)

    @cached_property
    def drawn(self) -> list[int]:
        """The clients that send real updates, in the order of ``clients``."""
        return [client for client in self.clients if client not in self.fillers]

    @cached_property
    def without_update(self) -> frozenset[int]:
        """The clients that send no update and only subtract earlier noise."""
        return frozenset(self.beside.members).difference(self.clients)

    @cached_property
    def members(self) -> frozenset[int]:
        """All clients that are asked in this sum."""
        return self.without_update.union(self.clients)

    @property
    def norms(self) -> Vector:
        """The norm to which every client's contribution is clipped, in the order of ``clients``."""
        largest = self.parameters.clipping_norm
        if not self.parts:
            return np.full(len(self.clients), largest)
        return np.array([min(self.part(client_id).clipping_norm, largest) for client_id in self.clients])

    @property
    def noise_stddev(self) -> float:
        """C sigma, the standard deviation of the noise in the sum; 0 without noise."""
        sigma = self.parameters.noise_multiplier
        return self.parameters.clipping_norm * sigma if sigma else 0.0

    def norms_of(self, clients: Iterable[int]) -> float:
        """Return the sum of the norms to which these clients' contributions are clipped."""
        largest = self.parameters.clipping_norm
        return fsum(min(self.part(client_id).clipping_norm, largest) for client_id in clients)

    @cached_property
    def context(self) -> bytes:
        """A hash of the server's instruction and the start model, the same for all clients of the sum."""
        return self.order.context(self.start)


def order_of_sum(request: SumRequest, order: TrainingOrder) -> TrainingOrder:
    """Return the server's instruction for the round, with the changes that this request asks for."""
    alike = _are_alike(request)
    least, largest = (1.0, 1.0) if alike else request.weights_between
    return replace(
        order,
        training=order.training if request.training is None else request.training,
        smallest_norm=inf if alike else request.smallest_norm,
        smallest_weight=least,
        largest_weight=largest,
        **request.told,
    )


def client_parts(request: SumRequest) -> dict[int, ClientPart]:
    """Return each client's clipping norm, weight and DP-SGD settings; {} if all are alike, without DP-SGD."""
    if _are_alike(request) and not request.records:
        return {}
    weights, norms, largest = request.weights, request.contribution_norms, request.clipping_norm
    # A norm that exceeds the sum's norm only by rounding becomes the sum's norm.
    norms = np.where(norms <= largest * (1 + ROUNDING), np.minimum(norms, largest), norms)
    if _are_alike(request):
        norms = np.full(len(norms), inf)
    records: Sequence[RecordSteps | None] = request.records or [None] * len(norms)
    parts = zip(request.clients.tolist(), norms.tolist(), weights.tolist(), records, strict=True)
    return {client_id: ClientPart(norm, weight, own) for client_id, norm, weight, own in parts}


def _are_alike(request: SumRequest) -> bool:
    """Whether all clients in a request have weight 1 and the same clipping norm."""
    return request.client_clipping_norms is None and request.client_weights is None
