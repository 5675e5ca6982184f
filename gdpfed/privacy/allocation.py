"""Random allocation: each client takes part in one round, drawn in secret, of every block of rounds.

Source: after the idea of Feldman and Shenfeld, "Privacy Amplification by Random Allocation",
arXiv:2502.08202, and "Efficient Privacy Loss Accounting for Subsampling and Random Allocation",
arXiv:2602.17284; derived here, with proofs in docs/privacy.md. In a block of b rounds, with noise
N(0, sigma^2) in units of C, the likelihood ratio of a client's presence is in the convex order at most

    R = (1 / b) sum_t exp(z_t / sigma - 1 / (2 sigma^2)),    z_1, ..., z_b independent N(0, 1).

So with Q the law of R and dP = R dQ, the pair (P, Q) bounds both directions, whatever updates depend on.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.losses import TAIL, BothLosses, Losses
from gdpfed.privacy.accountants.pld import (
    OwnLosses,
    Step,
    interval_bounds_of_losses,
    releases_of,
)
from gdpfed.privacy.accountants.rdp import RENYI_ROUNDING_SLACK, renyi_curve
from gdpfed.privacy.events import Adjacency, Event, Gaussian, NoiseLaw
from gdpfed.privacy.validation import require_count, require_number, require_positive

special = late_import("scipy.special")

Floats = npt.NDArray[np.float64]

POINTS_A_DEVIATION = 16
"""Points of a grid in a standard deviation of R; what a grid adds to the variance falls with their square."""
CUT = 1e-17
"""How much of a distribution of R may be cut off at either end of a grid; it counts as an infinite loss."""
LEAST_SIGMA = 0.2
"""With less noise (epsilon above 30) a block costs what its one sum does against who knows which it is.

That is never less, as R is a mean of ratios. The secret would save log b at most, and R leaves the floats.
"""
WHOLE_ORDERS = (*range(2, 64), 128, 256)


@dataclass(frozen=True, kw_only=True)
class AllocatedGaussian(Event):
    """A block of `block_rounds` noised sums; each client is in exactly one, drawn uniformly and in secret.

    Which one is drawn uniformly, for each client by itself, and is secret. A contribution has L2 norm at most
    `clipping_norm`; each sum carries noise of standard deviation `noise_stddev` per coordinate. A neighbour
    has one client's contribution zeroed.
    """

    kind: ClassVar[str] = "allocated_gaussian"
    adjacency: ClassVar[Adjacency] = "zero_out"
    noise: ClassVar[NoiseLaw] = "gaussian"

    block_rounds: int
    noise_stddev: float
    clipping_norm: float

    def __post_init__(self) -> None:
        require_count("block_rounds", self.block_rounds)
        require_positive("clipping_norm", self.clipping_norm)
        if not 0.0 <= require_number("noise_stddev", self.noise_stddev) < math.inf:
            raise PrivacyError(f"noise_stddev is {self.noise_stddev}; it must be finite and not negative")

    @property
    def noise_multiplier(self) -> float:
        """sigma: the noise's standard deviation divided by the clipping norm."""
        return self.noise_stddev / self.clipping_norm

    @property
    def sampling_rate(self) -> float:
        """1 / b: the probability that a client takes part in a given round of a block of b rounds."""
        return 1 / self.block_rounds

    @property
    def num_releases(self) -> int:
        return self.block_rounds

    @property
    def is_noisy(self) -> bool:
        return self.noise_stddev > 0.0

    def for_members(self) -> Gaussian:
        """Return the event of one Gaussian sum: the cost against attackers who know the client's round."""
        return Gaussian(noise_stddev=self.noise_stddev, clipping_norm=self.clipping_norm)


@dataclass(frozen=True)
class Allocation(OwnLosses):
    """A block of rounds, in exactly one of which a client takes part; `sigma` is the noise multiplier."""

    sigma: float
    rounds: int

    def interval_bounds(self) -> tuple[float, float]:
        exponent = 10 / self.sigma
        largest = math.log1p(math.expm1(exponent) / self.rounds) if exponent < 500 else exponent
        return interval_bounds_of_losses(_deviation(self.sigma, self.rounds) / 20, largest)

    def losses(self, interval: float) -> BothLosses:
        """Return a block of rounds' discretised privacy losses: for removing and for adding a client."""
        law = _mean_ratio(self.sigma, self.rounds, interval)
        chances = law.masses * np.exp(law.logs)
        highest = law.lowest + len(law.masses) - 1
        removed = Losses(interval, law.lowest, chances, law.infinite)
        added = Losses(interval, -highest, law.masses[::-1].copy(), law.zero)
        return BothLosses((removed, added))


@releases_of.register
def _(event: AllocatedGaussian) -> tuple[Step | Allocation, int]:
    if event.block_rounds == 1 or event.noise_multiplier < LEAST_SIGMA:
        return Step(event.noise_multiplier), 1
    return Allocation(event.noise_multiplier, event.block_rounds), 1


@renyi_curve.register
def _(event: AllocatedGaussian) -> dict[float, float]:
    """Return a block of rounds' Renyi divergence by integer order, the larger of removing or adding a client.

    Removed: E R^a = a! b^-a [x^a] (sum_n exp(n (n - 1) / (2 sigma^2)) x^n / n!)^b, exactly. Added: R is at
    least its geometric mean, so (a - 1) D_a <= (a - 1) (a - 1 + b) / (2 b sigma^2).
    """
    if event.noise_multiplier < LEAST_SIGMA:
        return renyi_curve(event.for_members())
    b, inverse = event.block_rounds, 1 / (2 * event.noise_multiplier**2)
    moments = _log_moments(event.noise_multiplier, b)
    return {
        float(a): max(moments[a] / (a - 1), (a - 1 + b) / b * inverse) + RENYI_ROUNDING_SLACK
        for a in WHOLE_ORDERS
    }


@lru_cache(maxsize=64)
def _log_moments(sigma: float, rounds: int) -> tuple[float, ...]:
    """Return log E R^a for a = 0, 1, ..., R being the likelihood ratio of the sums in a block of rounds."""
    n = np.arange(WHOLE_ORDERS[-1] + 1, dtype=np.float64)
    power, result = n * (n - 1) / (2 * sigma**2) - special.gammaln(n + 1), None
    left = rounds
    while left:
        if left % 2:
            result = power if result is None else _log_product(result, power)
        left //= 2
        if left:
            power = _log_product(power, power)
    coefficients = power if result is None else result
    return tuple((coefficients + special.gammaln(n + 1) - n * math.log(rounds)).tolist())


def _log_product(left: Floats, right: Floats) -> Floats:
    """Multiply two power series whose coefficients are given as logarithms."""
    return np.array([np.logaddexp.reduce(left[: a + 1] + right[a::-1][: a + 1]) for a in range(len(left))])


@dataclass(frozen=True)
class _Ratio:
    """An approximate distribution of the likelihood ratio R of a block of rounds, with at least R's spread.

    `step`: of the grid of log R. `lowest`: its first point, in steps. `masses`: chances under Q, shape (n,).
    `zero`: that of R = 0. `infinite`: the part of the mean that has left for infinity, where Q has no mass.
    """

    step: float
    lowest: int
    masses: Floats
    zero: float
    infinite: float

    @property
    def logs(self) -> Floats:
        """log R at each point of the discretised distribution, shape (n,)."""
        return self.step * (self.lowest + np.arange(len(self.masses), dtype=np.float64))

    def trimmed(self) -> "_Ratio":
        """Cut off both tails of the distribution, each of mass at most CUT, without reducing its spread."""
        ratios = np.exp(self.logs)
        below, above = np.cumsum(self.masses), np.cumsum((self.masses * ratios)[::-1])[::-1]
        first = int(np.searchsorted(below, CUT))
        end = max(first + 1, int(np.count_nonzero(above > CUT)))
        low, high = slice(0, first), slice(end, None)
        masses = self.masses[first:end].copy()
        to_first = float((self.masses[low] * ratios[low]).sum() / ratios[first])
        masses[0] += to_first
        masses[-1] += self.masses[high].sum()
        gone = float((self.masses[high] * (ratios[high] - ratios[end - 1])).sum())
        return _Ratio(
            self.step,
            self.lowest + first,
            masses,
            self.zero + max(0.0, float(self.masses[low].sum()) - to_first),
            self.infinite + gone,
        )


def _deviation(sigma: float, rounds: int) -> float:
    """Return the standard deviation of the likelihood ratio R of a block of rounds."""
    return math.sqrt(math.expm1(min(sigma**-2, 50.0)) / rounds)


@lru_cache(maxsize=64)
def _mean_ratio(sigma: float, rounds: int, interval: float) -> _Ratio:
    """Return the distribution of the likelihood ratio of a block of rounds, from those of two parts of it."""
    if rounds == 1:
        return _one_ratio(sigma, interval)
    first = rounds // 2 if rounds % 2 == 0 else rounds - 1
    parts = [
        _mean_ratio(sigma, part, min(1 / sigma, _deviation(sigma, part)) / POINTS_A_DEVIATION)
        for part in (first, rounds - first)
    ]
    # The law of share R + (1 - share) R', for independent likelihood ratios R and R' of the two parts.
    share = first / rounds
    ratios = [np.append(0.0, np.exp(each.logs)) for each in parts]
    masses = [np.append(each.zero, each.masses) for each in parts]
    values = (share * ratios[0][:, None] + (1 - share) * ratios[1][None, :]).ravel()
    chances = (masses[0][:, None] * masses[1][None, :]).ravel()
    zero, values, chances = float(chances[0]), values[1:], chances[1:]
    lowest = math.floor(math.log(values.min()) / interval)
    places = np.floor(np.log(values) / interval).astype(np.int64)
    low = np.exp(interval * places)
    raised = chances * np.clip((values - low) / (low * math.expm1(interval)), 0.0, 1.0)
    number = int(places.max()) - lowest + 2
    stay = np.bincount(places - lowest, weights=chances - raised, minlength=number)
    move = np.bincount(places - lowest + 1, weights=raised, minlength=number)
    kept = np.asarray(stay + move, dtype=np.float64)
    infinite = share * parts[0].infinite + (1 - share) * parts[1].infinite
    return _Ratio(interval, lowest, kept, zero, infinite).trimmed()


def _one_ratio(sigma: float, step: float) -> _Ratio:
    """Discretise the lognormal likelihood ratio of one round without changing its mean."""
    reach = -float(special.ndtri(TAIL))
    ends = [(place - 0.5 / sigma) / sigma for place in (-reach, reach + 1 / sigma)]
    lowest, highest = math.floor(ends[0] / step), math.ceil(ends[1] / step)
    points = step * np.arange(lowest, highest + 1, dtype=np.float64)
    ratios = np.exp(points)
    z = sigma * points + 0.5 / sigma
    at_z, at_shifted = _between(z), _between(z - 1 / sigma)
    raised = np.clip((at_shifted - ratios[:-1] * at_z) / np.diff(ratios), 0.0, at_z)
    masses = np.zeros(len(points))
    masses[1:] += raised
    masses[:-1] += at_z - raised
    low_q, low_p = float(special.ndtr(z[0])), float(special.ndtr(z[0] - 1 / sigma))
    high_q, high_p = float(special.ndtr(-z[-1])), float(special.ndtr(1 / sigma - z[-1]))
    masses[0] += low_p / ratios[0]
    masses[-1] += high_q
    infinite = max(0.0, high_p - ratios[-1] * high_q)
    return _Ratio(step, lowest, masses, max(0.0, low_q - low_p / ratios[0]), infinite)


def _between(z: Floats) -> Floats:
    """Return the probabilities under N(0, 1) of the intervals between neighbouring points z."""
    below, above = np.diff(special.ndtr(z)), -np.diff(special.ndtr(-z))
    return np.asarray(np.where(z[:-1] < 0, below, above))
