"""Releases that are asked for, and the same once they are charged.

A fleet sums `ChargedSum`s and nothing else, and `Ledger.charge` is the only maker of them. So whatever a
method asks for is checked against the plan and the round's cohort before any message leaves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.privacy.events import NoiseLaw, Unit
from gdpfed.privacy.plan import Work
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.record_steps import RecordSteps

# Between a product of sigma and C and the plan's there is rounding.
ROUNDING = 1e-9

Vector = npt.NDArray[np.float64]


class NoiseAt(Enum):
    """Who adds the noise of a sum: every client its share, the edge that sums in clear, or nobody."""

    CLIENT = "client"
    EDGE = "edge"
    NOWHERE = "nowhere"


@dataclass(frozen=True, eq=False, kw_only=True)
class Release:
    """The privacy side of one sum over a cohort.

    Client i contributes w_i clip(x_i, C_i), x_i being what its work computes.

    Attributes:
        name: unique in the round, bound into the masks of the sum.
        clients: ids of the cohort.
        clipping_norm: C, the L2 bound on every contribution; infinite for none.
        noise_multiplier: sigma; the sum carries noise of variance at least C^2 sigma^2 a coordinate.
        noise_at: who adds it; an edge, only where the plan trusts one.
        client_clipping_norms: C_i of every client, in the order of ``clients``; None for C each.
        client_weights: w_i of every client; None for 1 each.
        least_norm: no client that could have been drawn contributes less than this bound; None for the
            least of those that were. Clients are told it, so the second says who was drawn.
        weight_range: the same of the weights, least and largest.
        noise: the law of the noise.
        work: what clients compute.
        unit: whose presence is protected.
        records: the steps of DP-SGD of every client, in the order of ``clients``; None where whole clients
            are protected.
        alone: whether it is one client's update, to be read in clear.

    Raises:
        PrivacyError: norms, weights or steps that are not one a client, or norms and weights not positive.
    """

    name: str
    clients: ClientIds
    clipping_norm: float
    noise_multiplier: float
    noise_at: NoiseAt
    client_clipping_norms: Vector | None = None
    client_weights: Vector | None = None
    least_norm: float | None = None
    weight_range: tuple[float, float] | None = None
    noise: NoiseLaw = "gaussian"
    work: Work = "update"
    unit: Unit = "client"
    records: Sequence[RecordSteps] | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        if self.records is not None and len(self.records) != len(self.clients):
            raise PrivacyError(
                f"{self.name}: records has {len(self.records)} entries for {len(self.clients)} clients; "
                "give one each"
            )
        for name in ("client_clipping_norms", "client_weights"):
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != self.clients.shape or not np.all((values > 0) & (values < np.inf)):
                raise PrivacyError(
                    f"{self.name}: {name} must be {len(self.clients)} finite numbers above 0, one a client"
                )
        norms, weights = self.contribution_norms, self.weights
        if self.least_norm is not None and np.any(norms < self.least_norm * (1 - ROUNDING)):
            raise PrivacyError(f"{self.name}: norm {norms.min():.6g} is below least_norm {self.least_norm}")
        least, largest = self.weights_between
        if np.any((weights < least) | (weights > largest)):
            raise PrivacyError(
                f"{self.name}: weights from {weights.min():.6g} to {weights.max():.6g} are not in "
                f"weight_range {self.weight_range}"
            )

    @property
    def weights(self) -> Vector:
        """w_i, in the order of ``clients``."""
        return np.ones(len(self.clients)) if self.client_weights is None else self.client_weights

    @property
    def smallest_norm(self) -> float:
        """The bound that no client's contribution is below."""
        if self.least_norm is not None:
            return self.least_norm
        return float(self.contribution_norms.min(initial=self.clipping_norm))

    @property
    def weights_between(self) -> tuple[float, float]:
        """The least and the largest weight that a client may have."""
        if self.weight_range is not None:
            return self.weight_range
        weights = self.weights
        return float(weights.min(initial=np.inf)), float(weights.max(initial=0.0))

    @property
    def contribution_norms(self) -> Vector:
        """w_i C_i: how far each client may move the sum, in the order of ``clients``."""
        norms = np.full(len(self.clients), self.clipping_norm)
        if self.client_clipping_norms is not None:
            norms = self.client_clipping_norms
        return norms if self.client_weights is None else self.weights * norms

    @property
    def noise_stddev(self) -> float:
        """C sigma, per coordinate of the sum; 0 without noise, whatever C is."""
        return self.clipping_norm * self.noise_multiplier if self.noise_multiplier else 0.0


R = TypeVar("R", bound=Release)


@dataclass(frozen=True, kw_only=True)
class CountsRequest:
    """A request for the class counts of every client, each under its client's own noise.

    Attributes:
        noise_stddev: of the noise in every count.
    """

    noise_stddev: float


class ChargedCounts:
    """A request for class counts that a ledger has charged; every client answers it once."""

    def __init__(self, seal: object, request: CountsRequest) -> None:
        if seal is not SEAL:
            raise PrivacyError("only a ledger's charge makes what clients release of their class counts")
        self._request = request
        self._is_taken = False

    def take(self) -> CountsRequest:
        """Return the request to the fleet that has it answered.

        Raises PrivacyError the second time: it was charged once.
        """
        if self._is_taken:
            raise PrivacyError("the class counts have been released already; they were charged once")
        self._is_taken = True
        return self._request


class ChargedSum(Generic[R]):
    """A release that a ledger has charged; it is summed once.

    Attributes:
        request: what was charged.
        round_index: the round that it was charged in.
    """

    def __init__(self, seal: object, request: R, round_index: int) -> None:
        if seal is not SEAL:
            raise PrivacyError(f"{request.name}: only a ledger's charge makes what a fleet sums")
        self.request = request
        self.round_index = round_index
        self._is_taken = False
        self._charged = tuple(request.clients.tolist()), request.contribution_norms, request.noise_stddev

    def check(self, clients: Sequence[int], norms: Vector, noise_stddev: float) -> None:
        """Compare what a fleet is about to sum with what was charged.

        Args:
            clients: ids of those who are asked.
            norms: the bound on the contribution of each, in their order.
            noise_stddev: of the noise in the sum.

        Raises:
            PrivacyError: other clients, a larger bound or less noise.
        """
        charged, largest, least_noise = self._charged
        of_sum = f"round {self.round_index}: {self.request.name} is about to be summed"
        if tuple(clients) != charged:
            raise PrivacyError(f"{of_sum} over other clients than were charged")
        if np.any(~(norms <= largest * (1 + ROUNDING))):
            raise PrivacyError(f"{of_sum} with norms up to {norms.max():.6g}, above those that were charged")
        if not noise_stddev >= least_noise * (1 - ROUNDING):
            raise PrivacyError(
                f"{of_sum} with noise of standard deviation {noise_stddev:.6g}, below the {least_noise:.6g} "
                "that were charged"
            )

    def take(self) -> R:
        """Return the request to whoever sums it.

        Raises PrivacyError the second time: it was charged once.
        """
        if self._is_taken:
            raise PrivacyError(
                f"round {self.round_index}: {self.request.name} has been summed already; it was charged once"
            )
        self._is_taken = True
        return self.request


class ExpectedSum(Generic[R]):
    """A release that fits the plan of the next round and is not charged: keys may be agreed for it.

    Attributes:
        request: what is expected.
        round_index: the round that it is expected in.
    """

    def __init__(self, seal: object, request: R, round_index: int) -> None:
        if seal is not SEAL:
            raise PrivacyError(f"{request.name}: only a ledger says what is expected of a round")
        self.request = request
        self.round_index = round_index


SEAL = object()
"""What a ledger shows that it makes one of these."""


def planned_norm_exceeded(norm: float, planned: float) -> bool:
    """Whether a contribution may be larger than was planned, up to rounding; NaN is larger than anything."""
    return not (math.isinf(planned) or norm <= planned * (1 + ROUNDING))
