"""A second, independent account of a sampled Gaussian: lower bounds on epsilon by FFT.

Both runs of the mechanism differ in one client along one axis, in units of C. A round releases
(1 - q) N(0) + q N(drawn) in one run and (1 - q) N(0) + q N(drawn_otherwise) in the other, 0 being
where the sum lies if the client is not drawn. Privacy losses are rounded down to a grid and
convolved `num_rounds` times, so that no valid epsilon can be below the one returned.
"""

import numpy as np
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
    """Return a lower bound of the epsilon of any valid (epsilon, delta) guarantee."""
    step = 1e-4 * noise_stddev
    edges = np.arange(-12 * noise_stddev, abs(drawn) + 12 * noise_stddev, step)

    def log_density(mean):
        at_rest, moved = -((edges / noise_stddev) ** 2) / 2, -(((edges - mean) / noise_stddev) ** 2) / 2
        return np.logaddexp(np.log1p(-sampling_rate) + at_rest, np.log(sampling_rate) + moved)

    cumulative = (1 - sampling_rate) * ndtr(edges / noise_stddev)
    cumulative += sampling_rate * ndtr((edges - drawn) / noise_stddev)
    loss = log_density(drawn) - log_density(drawn_otherwise)
    cells = np.floor(np.minimum(loss[:-1], loss[1:]) / GRID).astype(int)
    lowest = int(cells.min())
    masses = np.bincount(cells - lowest, np.diff(cumulative))
    length = 2 ** int(np.ceil(np.log2(max(4 * len(masses), 40 / GRID))))
    circular = np.fft.irfft(np.fft.rfft(masses, length) ** num_rounds, length)
    mean = int(num_rounds * (np.arange(len(masses)) * masses).sum())
    index = np.arange(mean - length // 3, mean - length // 3 + length)
    composed, losses = np.clip(circular[index % length], 0, None), GRID * (index + num_rounds * lowest)

    def excess(epsilon):
        beyond = losses > epsilon
        return float((composed[beyond] * -np.expm1(epsilon - losses[beyond])).sum()) - delta

    return float(brentq(excess, 0.0, 60.0))
