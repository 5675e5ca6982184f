"""Privacy parameters of a method's requests: of a sum over a cohort, or of class counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.privacy.events import NoiseLaw, Unit
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.record_steps import RecordSteps, Work

# Between a product of sigma and C and the plan's there is rounding.
ROUNDING = 1e-9

Vector = npt.NDArray[np.float64]


class NoiseAt(Enum):
    """Who adds a sum's noise: all clients (a part each), a trusted edge server, or no one."""

    CLIENT = "client"
    EDGE = "edge"
    NOWHERE = "nowhere"


@dataclass(frozen=True, eq=False, kw_only=True)
class Release:
    """Privacy parameters of one requested sum: its clients, clipping norms, weights and noise.

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
        records: the steps of DP-SGD of every client, in the order of ``clients``; none where whole clients
            are protected.
        taps: g_1, ..., g_p: so much of the noise of the last p rounds' sums of this name is taken back in
            this one; none where noise is not correlated.
        alone: whether it is one client's update, to be read in clear.
        scheduled_members: how many members the plan's schedule has in it, those without an update included;
            0 where nobody has a turn.

    Raises PrivacyError: norms, weights or steps that are not one a client, or norms and weights not positive.
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
    records: Sequence[RecordSteps] = ()
    taps: tuple[float, ...] = ()
    alone: bool = False
    scheduled_members: int = 0

    def __post_init__(self) -> None:
        if self.records and len(self.records) != len(self.clients):
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
        """w_i, the weight of each client's update in the sum, in the order of ``clients``."""
        return np.ones(len(self.clients)) if self.client_weights is None else self.client_weights

    @property
    def smallest_norm(self) -> float:
        """The smallest norm bound of a client: `least_norm` if given, else the least one in the sum."""
        if self.least_norm is not None:
            return self.least_norm
        return float(self.contribution_norms.min(initial=self.clipping_norm))

    @property
    def weights_between(self) -> tuple[float, float]:
        """The smallest and the largest client weight: `weight_range` if given, else those in the sum."""
        if self.weight_range is not None:
            return self.weight_range
        weights = self.weights
        return float(weights.min(initial=np.inf)), float(weights.max(initial=0.0))

    @property
    def contribution_norms(self) -> Vector:
        """w_i C_i: how far each client may move the sum in norm, in the order of ``clients``."""
        norms = np.full(len(self.clients), self.clipping_norm)
        if self.client_clipping_norms is not None:
            norms = self.client_clipping_norms
        return norms if self.client_weights is None else self.weights * norms

    @property
    def noise_stddev(self) -> float:
        """C sigma: the noise's standard deviation per coordinate of the sum; 0 without noise."""
        return self.clipping_norm * self.noise_multiplier if self.noise_multiplier else 0.0


@dataclass(frozen=True, kw_only=True)
class CountsRequest:
    """A request for the class counts of every client, each with noise that the client adds.

    Attributes:
        noise_stddev: of the noise in every count.
    """

    noise_stddev: float


def planned_norm_exceeded(norm: float, planned: float) -> bool:
    """Whether a norm is above the planned one, beyond rounding; NaN is above every finite one."""
    return not (math.isinf(planned) or norm <= planned * (1 + ROUNDING))


def broken_number(request: Release) -> str:
    """Return which number of a requested sum is invalid under any plan; "" if all are valid."""
    norm, sigma = request.clipping_norm, request.noise_multiplier
    if not norm > 0:
        return f"clipping_norm is {norm}; it must be above 0"
    if not 0 <= sigma < math.inf:
        return f"noise_multiplier is {sigma}; it must be finite and not negative"
    if math.isinf(norm) and sigma > 0:
        return f"noise_multiplier is {sigma:.6g} without a clipping_norm; noise needs a finite one"
    largest = float(request.contribution_norms.max(initial=0.0))
    if planned_norm_exceeded(largest, norm):
        return f"a client may contribute a norm of {largest:.6g}, above the sum's clipping_norm of {norm:.6g}"
    return ""
