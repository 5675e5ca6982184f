"""Gaussian noise on the training device from a secure source of bits.

torch's own CPU generator keeps 32 bits of its seed, so whoever sees the noise of a few coordinates could
search for all of it. Here every bit comes from the caller's source (a keystream keyed by the operating
system), and only the arithmetic runs on the device.
"""

from collections.abc import Callable
from math import pi

import numpy as np
import torch

_UNIFORM_BITS = 53


def gaussian_noise(
    dimension: int,
    noise_stddev: float,
    random_bytes: Callable[[int], bytes],
    *,
    device: torch.device,
) -> torch.Tensor:
    """Independent N(0, noise_stddev^2) per coordinate, by the Box-Muller transform in float64.

    Args:
        dimension: d.
        noise_stddev: standard deviation in the unit of the update; 0 gives zeros.
        random_bytes: returns that many secret, uniform bytes.

    Returns:
        float64[dimension], on ``device``. The largest value that can come out is 8.6 standard deviations,
        the 2**-53 quantile.
    """
    if noise_stddev == 0:
        return torch.zeros(dimension, dtype=torch.float64, device=device)
    pairs = (dimension + 1) // 2
    words = np.frombuffer(random_bytes(16 * pairs), dtype="<u8") >> np.uint64(64 - _UNIFORM_BITS)
    uniform = torch.from_numpy(words.astype(np.float64)).to(device).view(2, pairs)
    radius = uniform[0].add_(1.0).mul_(2.0**-_UNIFORM_BITS).log_().mul_(-2.0).sqrt_()
    angle = uniform[1].mul_(2.0 * pi * 2.0**-_UNIFORM_BITS)
    noise = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])
    return noise[:dimension].mul_(noise_stddev)
