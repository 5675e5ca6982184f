"""Estimates the epsilon of Poisson-sampled steps fast; only for searches, never for a guarantee.

The loss of one step is put on a grid by whole cells, between two of them by shares that keep its mean, and
composed by one fast Fourier transform. Nothing is rounded up, so the figure may lie on either side of the
truth, within about 1e-3 of it. Every search that uses it ends with `gdpfed.privacy.accountants.pld`.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.accountant import Accountant
from gdpfed.privacy.accountants.composition import AfterRelease, with_release
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.privacy.accountants.pld import Step, is_known, pld_epsilon, releases_of
from gdpfed.privacy.events import Event, Gaussian, GaussianMixture

fft = late_import("scipy.fft")
optimize = late_import("scipy.optimize")

Vector = npt.NDArray[np.float64]

NODES = 4001
REACH = 10.0
"""How far noise is followed, in standard deviations."""
CELLS_A_DEVIATION = 20
LEAST_CELLS, MOST_CELLS = 2**14, 2**20
LARGEST_POWER = 600.0
OUTSIDE = 1e-4
"""The share of delta that may lie beyond either end of the grid."""


def estimate_by(accountant: Accountant) -> Callable[[Event, int, float], float]:
    """Return an epsilon function for searches: the accountant's own one or, for PLD, a fast estimate."""
    if accountant.name != "pld":
        return accountant.epsilon
    paid = accountant.paid.event if isinstance(accountant, AfterRelease) else None
    if not isinstance(paid, Gaussian):
        return estimated_epsilon
    return lambda event, count, delta: with_release(paid, estimated_epsilon(event, count, delta), delta)


def estimated_epsilon(event: Event, count: int, delta: float) -> float:
    """Estimate epsilon at delta of `count` releases of one event, with a relative error of about 1e-3.

    Raises PrivacyError for fixed_size sampling.
    """
    release, times = releases_of(event)
    if not isinstance(release, Step) or is_known(release):
        return pld_epsilon(event, count, delta)
    # The log densities of an output with and without the client or record, at many output values.
    sigma, rate = release.sigma, release.rate
    centre = 1.0 if release.adjacency == "replace_one" else 0.0
    axis = np.linspace(-centre - REACH * sigma, 1 + REACH * sigma, NODES)
    at_rest = math.log1p(-rate) - axis**2 / (2 * sigma**2)

    def drawn(mean: float) -> Vector:
        moved: Vector = np.logaddexp(at_rest, math.log(rate) - (axis - mean) ** 2 / (2 * sigma**2))
        return moved

    with_client = drawn(1.0)
    without: Vector = drawn(-1.0) if release.adjacency == "replace_one" else -(axis**2) / (2 * sigma**2)
    sides = [(with_client, without)]
    if release.adjacency == "zero_out":  # The other adjacency is its own mirror image.
        sides.append((without, with_client))
    return max(_composed_epsilon(one, other, count * times, delta) for one, other in sides)


def estimated_mixture_noise(mixture: GaussianMixture, count: int, *, epsilon: float, delta: float) -> float:
    """Estimate, to about 1 %, the noise at which `count` releases of a Gaussian mixture cost epsilon.

    By the central limit of many small moves: mu^2 = count (sum_ij w_i w_j exp(s_i s_j / z^2) - 1), where mu
    is that of one Gaussian release of this epsilon (Bu, Dong, Long, Su, arXiv:1911.11607).
    """
    moves, chances = np.asarray(mixture.sensitivities), np.asarray(mixture.weights)
    products, weights = np.outer(moves, moves), np.outer(chances, chances)
    square = 1 / gaussian_sigma(epsilon, delta) ** 2

    def excess(log_noise: float) -> float:
        powers = np.minimum(products * math.exp(-2 * log_noise), LARGEST_POWER)
        return count * float((weights * np.expm1(powers)).sum()) - square

    low = math.log(float(moves @ chances) * math.sqrt(count / square))
    high = low + 1
    while excess(high) > 0:
        high += 1
    return math.exp(optimize.brentq(excess, low, high, xtol=1e-6))


def _composed_epsilon(log_density: Vector, other: Vector, count: int, delta: float) -> float:
    """Estimate epsilon at delta of `count` releases from two log densities, by composing their losses."""
    losses = log_density - other
    masses = np.exp(log_density - log_density.max())
    masses /= masses.sum()
    mean = float(masses @ losses)
    deviation = math.sqrt(float(masses @ (losses - mean) ** 2))
    if deviation == 0.0:
        return 0.0
    lowest, highest = _likely_range(losses, masses, count, math.log(1 / (OUTSIDE * delta)))
    finest = deviation / CELLS_A_DEVIATION
    margin = 6 * math.sqrt(count) * finest  # The shares between cells move a sum by up to a cell a step.
    lowest, highest = lowest - margin, highest + margin
    cells = min(max(2 ** math.ceil(math.log2((highest - lowest) / finest)), LEAST_CELLS), MOST_CELLS)
    width = (highest - lowest) / cells
    places = (losses - mean) / width
    below = np.floor(places).astype(np.int64)
    share = places - below
    one = np.bincount(below % cells, masses * (1 - share), cells)
    one += np.bincount((below + 1) % cells, masses * share, cells)
    composed = fft.irfft(fft.rfft(one) ** count, cells)
    index = math.floor((lowest - count * mean) / width) + np.arange(cells)
    sums, chances = count * mean + width * index, np.maximum(composed[index % cells], 0.0)

    def excess(epsilon: float) -> float:
        first = int(np.searchsorted(sums, epsilon))
        return float(chances[first:] @ -np.expm1(epsilon - sums[first:])) - delta

    low, high = 0.0, float(sums[-1])
    if high <= low or excess(low) <= 0:
        return 0.0
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _likely_range(losses: Vector, masses: Vector, count: int, log_odds: float) -> tuple[float, float]:
    """Return a range: the sum of privacy losses is outside it with probability at most exp(-log_odds).

    By Chernoff's bound.
    """
    # With little noise most masses are smaller than any float: the largest loss that has one counts.
    some = masses[::4] > 0
    losses, masses = losses[::4][some], masses[::4][some] / masses[::4].sum()
    deviation = math.sqrt(float(masses @ (losses - masses @ losses) ** 2))
    tilts = np.geomspace(0.02, 50, 24) / (deviation * math.sqrt(count))

    def largest(signed: Vector) -> float:
        top = float(signed.max())
        moments = np.log(np.exp(np.outer(tilts, signed - top)) @ masses) * count
        return count * top + min(0.0, float(np.min((moments + log_odds) / tilts)))

    return -largest(-losses), largest(losses)
