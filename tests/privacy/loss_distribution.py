"""An independent computation for a sampled Gaussian: lower bounds on epsilon by FFT.

Both runs of the mechanism differ in one client along one axis, in units of C. A round releases
(1 - q) N(0) + q N(drawn) in one run and (1 - q) N(0) + q N(drawn_otherwise) in the other, 0 being
where the sum lies if the client is not drawn. Privacy losses are rounded down to a grid and
convolved `num_rounds` times, so that no valid epsilon can be below the one returned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr

GRID = 1e-4


def least_epsilon(
    *,
    noise_stddev: float,
    sampling_rate: float,
    num_rounds: int,
    delta: float,
    drawn: float,
    drawn_otherwise: float,
) -> float:
    """Return a lower bound of any valid epsilon at `delta`, for the given rounds of a sampled Gaussian."""
    one_round = Round(noise_stddev, sampling_rate, drawn, drawn_otherwise)
    return least_epsilon_of([(one_round, num_rounds)], delta)


@dataclass(frozen=True)
class Round:
    """One noised round: a sampled client adds `drawn` in one run, and `drawn_otherwise` in the other run."""

    noise_stddev: float
    sampling_rate: float
    drawn: float
    drawn_otherwise: float

    def losses(self) -> tuple[npt.NDArray[np.float64], int]:
        """Return the probability of each loss on the grid, and the index of the lowest loss."""
        stddev, rate = self.noise_stddev, self.sampling_rate
        edges = np.arange(-12 * stddev, abs(self.drawn) + 12 * stddev, 1e-4 * stddev)

        def log_density(mean: float) -> npt.NDArray[np.float64]:
            at_rest, moved = -((edges / stddev) ** 2) / 2, -(((edges - mean) / stddev) ** 2) / 2
            density: npt.NDArray[np.float64] = np.logaddexp(np.log1p(-rate) + at_rest, np.log(rate) + moved)
            return density

        cumulative = (1 - rate) * ndtr(edges / stddev) + rate * ndtr((edges - self.drawn) / stddev)
        loss = log_density(self.drawn) - log_density(self.drawn_otherwise)
        cells = np.floor(np.minimum(loss[:-1], loss[1:]) / GRID).astype(int)
        lowest = int(cells.min())
        return np.bincount(cells - lowest, np.diff(cumulative)).astype(np.float64), lowest


def least_epsilon_of(rounds: Sequence[tuple[Round, int]], delta: float) -> float:
    """Return the same lower bound as `least_epsilon` for rounds of several kinds, each with its count."""
    parts = [(*one_round.losses(), count) for one_round, count in rounds]
    longest = max(len(masses) for masses, _, _ in parts)
    length = 2 ** int(np.ceil(np.log2(max(4 * longest, 40 / GRID))))
    spectrum, lowest, mean = np.ones(length // 2 + 1, complex), 0, 0
    for masses, low, count in parts:
        spectrum *= np.fft.rfft(masses, length) ** count
        lowest += count * low
        mean += int(count * (np.arange(len(masses)) * masses).sum())
    circular = np.fft.irfft(spectrum, length)
    index = np.arange(mean - length // 3, mean - length // 3 + length)
    composed, losses = np.clip(circular[index % length], 0, None), GRID * (index + lowest)

    def excess(epsilon: float) -> float:
        beyond = losses > epsilon
        return float((composed[beyond] * -np.expm1(epsilon - losses[beyond])).sum()) - delta

    return float(brentq(excess, 0.0, 60.0))
