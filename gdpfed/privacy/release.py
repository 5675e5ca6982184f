"""Privacy parameters of what a method requests: a sum over a cohort, or the class counts of clients."""

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

# A product of sigma and C may be rounded differently than in the plan.
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

    Client i contributes w_i clip(x_i, C_i), where x_i is the result of its work.

    Attributes:
        name: a name that is unique in the round; the masks of the sum depend on it.
        clients: ids of the cohort.
        clipping_norm: C, the L2 bound on every contribution; infinite for no bound.
        noise_multiplier: sigma; the sum's noise has variance at least C^2 sigma^2 in each coordinate.
        noise_at: who adds the noise; an edge adds it only if the plan trusts that edge.
        client_clipping_norms: C_i of every client, in the order of ``clients``; None if each is C.
        client_weights: w_i of every client; None if each is 1.
        least_norm: a lower bound on w_i C_i for all clients that could be drawn; None for the least of the
            drawn clients. Clients are told it, so with None it tells of who was drawn.
        weight_range: bounds on the weights, least and largest, in the same way.
        noise: the law of the noise.
        work: the kind of computation of the clients.
        unit: the privacy unit.
        records: the DP-SGD steps of each client, or the parameters of its own noise, in the order of
            ``clients``; empty without either.
        taps: g_1, ..., g_p: the parts of the noise of the last p rounds' sums of this name that this sum
            subtracts; empty if noise is independent.
        alone: whether it is one client's update, which the server reads in clear.
        scheduled_members: the number of members by the schedule, correctors included; 0 without turns.
        agreed: the digest of what all members must have agreed to, for the label; empty for nothing.

    Raises PrivacyError: not one norm, weight or steps for each client, or a norm or weight is not positive,
    not finite or outside its range.
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
    agreed: str = ""

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
                    f"{self.name}: {name} must be {len(self.clients)} finite numbers above 0, one per client"
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
        """The smallest bound on a client's contribution: `least_norm` if given, else the least in the sum."""
        if self.least_norm is not None:
            return self.least_norm
        return float(self.contribution_norms.min(initial=self.clipping_norm))

    @property
    def weights_between(self) -> tuple[float, float]:
        """The least and the largest client weight: `weight_range` if given, else those of the cohort."""
        if self.weight_range is not None:
            return self.weight_range
        weights = self.weights
        return float(weights.min(initial=np.inf)), float(weights.max(initial=0.0))

    @property
    def contribution_norms(self) -> Vector:
        """w_i C_i: how much (L2 norm) each client may change the sum, in the order of ``clients``."""
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
        noise_stddev: the standard deviation of the noise in each count.
    """

    noise_stddev: float


def planned_norm_exceeded(norm: float, planned: float) -> bool:
    """Whether a norm is above the planned norm by more than rounding; NaN counts as above a finite norm."""
    return not (math.isinf(planned) or norm <= planned * (1 + ROUNDING))


def broken_number(request: Release) -> str:
    """Return why a requested sum's norm or noise is invalid whatever the plan is, or "" if valid."""
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
