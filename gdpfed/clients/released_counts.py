"""A client's noised class counts: the Gaussian mechanism on its number of records of each class."""

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.errors import PrivacyError
from gdpfed.learning.training.gaussian_noise import gaussian_noise
from gdpfed.learning.training.record_batches import RandomBytes

GRID = 2.0**-10
"""What is released is a multiple of this, so that its last digits tell nothing."""


def noised_counts(
    counts: npt.NDArray[np.int64], noise_stddev: float, random_bytes: RandomBytes
) -> npt.NDArray[np.float64]:
    """counts + N(0, s^2) in each, rounded, shape (B,).

    One record that is replaced moves two counts by one each, or none: sqrt 2 in norm, so that it costs
    1 / s^2 zCDP. Values may lie below 0; who uses them clips them, which is post-processing.

    Args:
        counts: records of every class, shape (B,).
        noise_stddev: s, above 0.
        random_bytes: the client's secret source of bits.

    Raises:
        PrivacyError: no noise.
    """
    if not noise_stddev > 0:
        raise PrivacyError(f"class counts are asked for under noise of standard deviation {noise_stddev:g}")
    noise = gaussian_noise(len(counts), noise_stddev, random_bytes, device=torch.device("cpu")).numpy()
    return np.asarray(np.rint((counts + noise) / GRID) * GRID)
