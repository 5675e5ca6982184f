"""The secret random draws of DP-SGD: Poisson batches and Gaussian noise, from a secure source of bits.

Privacy amplification in DP-SGD needs batches that are secret, so they are not drawn from a run's seed.
torch's CPU generator uses only 32 bits of its seed: an adversary who sees the noise of a few coordinates
could find the seed by trying all, and so all the noise. Here every bit comes from the caller's source, a
keystream whose key comes from the operating system.
"""

from collections.abc import Callable, Sequence
from math import pi
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

RandomBytes = Callable[[int], bytes]
"""Takes a number and returns that many secret, uniform bytes; it never returns a byte twice."""

_WORD_BYTES = 8
_RECORDS_AT_ONCE = 2**20


class PoissonBatches:
    """Draws a client's batches. A batch has record j with probability q_j, independently of other records.

    A record is drawn if 64 random bits, read as a number, are below q_j 2^64, rounded down. The probability
    is exactly q_j if q_j is at least 2^-11; else it is less than 2^-64 smaller. `rates`: q of each group of
    records. `groups`: the group of each record, shape (n,).
    """

    def __init__(self, rates: Sequence[float], groups: npt.NDArray[np.int64]) -> None:
        sizes, each = np.bincount(groups, minlength=len(rates)), np.asarray(rates)
        self.expected_size = float(sum(sizes * each))
        self.size_stddev = float(sum(sizes * each * (1 - each))) ** 0.5
        most = 2**64 - 1
        self._limits = np.array([min(int(rate * 2.0**64), most) for rate in rates], dtype=np.uint64)
        self._always = np.array([rate == 1.0 for rate in rates])
        self._groups = groups

    def __len__(self) -> int:
        return len(self._groups)

    def draw(self, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
        """Draw the next batch: positions of its records, ascending; there may be none."""
        drawn = []
        for start in range(0, len(self), _RECORDS_AT_ONCE):
            groups = self._groups[start : start + _RECORDS_AT_ONCE]
            words = np.frombuffer(random_bytes(_WORD_BYTES * len(groups)), dtype="<u8")
            single = len(self._limits) == 1
            limits, always = (each[0] if single else each[groups] for each in (self._limits, self._always))
            drawn.append(start + np.flatnonzero((words < limits) | always))
        return np.concatenate(drawn) if drawn else np.zeros(0, dtype=np.int64)


_UNIFORM_BITS, _LEFT_BITS = 53, 11
# In 2^-53: one radius in 8 billion is that long.
_LONG_BELOW = 2.0**20


def gaussian_noise(
    dimension: int, noise_stddev: float, random_bytes: RandomBytes, *, device: torch.device
) -> torch.Tensor:
    """Draw independent N(0, noise_stddev^2) for each coordinate, by Box-Muller in float64.

    `dimension`: d. `noise_stddev`: the standard deviation in the unit of the update; for 0 the result is
    zeros, and no bits are used. `random_bytes`: the secret source of bits.

    Returns:
        float64[dimension], on ``device``. No value is longer than sqrt(2 75 ln 2) = 10.2 standard deviations;
        plans and terms under which that would show a unit are refused
        (`gdpfed.privacy.accountants.longest_draw`).
    """
    if noise_stddev == 0:
        return torch.zeros(dimension, dtype=torch.float64, device=device)
    words = torch.empty(noise_shape(dimension), dtype=torch.int64)
    fill(words, random_bytes)
    return normal_of(words.to(device), dimension).mul_(noise_stddev)


def noise_shape(dimension: int) -> tuple[int, int]:
    """Return the shape of the 64-bit random words that noise in d coordinates needs: (2, ceil(d / 2))."""
    return 2, (dimension + 1) // 2


@runtime_checkable
class IntoBuffers(Protocol):
    """A source of random bytes that can write into a given buffer."""

    def into(self, buffer: memoryview) -> None:
        """Write the next bytes into a buffer of bytes."""


def fill(words: torch.Tensor, random_bytes: RandomBytes) -> None:
    """Fill a tensor of words, contiguous int64 on the CPU, with secret random bits."""
    values = words.view(-1).numpy()
    if isinstance(random_bytes, IntoBuffers):
        random_bytes.into(values.view(np.uint8).data)
    else:
        values[:] = np.frombuffer(random_bytes(values.nbytes), dtype="<i8")


def normal_of(words: torch.Tensor, dimension: int) -> torch.Tensor:
    """Turn random words of 64 bits into N(0, 1) draws: shape (..., 2, ceil(d / 2)) to float64 (..., d)."""
    # A right shift of a signed word adds copies of its sign bit; the mask removes them.
    uniform = (words >> (64 - _UNIFORM_BITS)).bitwise_and_(2**_UNIFORM_BITS - 1).double()
    first, rest = uniform[..., 0, :], torch.ones((), dtype=torch.float64, device=words.device)
    # A GPU would wait for the answer, and a recorded graph cannot ask.
    if words.is_cuda or (first.numel() and first.min() < _LONG_BELOW):
        # The bits that both words have left make a long radius longer, in steps of 2^-75.
        left = words.bitwise_and(2**_LEFT_BITS - 1)
        below = (left[..., 0, :] * 2**_LEFT_BITS + left[..., 1, :] + 1).double()
        rest = torch.where(first < _LONG_BELOW, below.mul_(2.0 ** (-2 * _LEFT_BITS)), rest)
    radius = first.add_(rest).mul_(2.0**-_UNIFORM_BITS).log_().mul_(-2.0).sqrt_()
    angle = uniform[..., 1, :].mul_(2.0 * pi * 2.0**-_UNIFORM_BITS)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)[..., :dimension]


def gaussian_of_words(words: torch.Tensor, dimension: int, noise_stddev: float) -> torch.Tensor:
    """Turn secret random words on a device into Gaussian noise on the same device: float64[dimension].

    Devices agree on sums, products and roots; logarithms, sines and cosines may differ in the last two
    places. `words`: int64[m], uniform and secret; m is `dimension`, or one more if that is odd.
    """
    return normal_of(words.view(noise_shape(dimension)), dimension).mul_(noise_stddev)


def gaussians_at(words: torch.Tensor, places: torch.Tensor, noise_stddev: float) -> torch.Tensor:
    """Compute, on the CPU, the Gaussian noise of `gaussian_of_words` at single coordinates: float64[k].

    Args:
        words: int64[m], on any device.
        places: int64[k], the coordinates, on the same device.
        noise_stddev: the standard deviation in the unit of the update.
    """
    pairs, count = len(words) // 2, len(places)
    at = places % pairs
    both = torch.stack([words[at], words[at + pairs]]).cpu()
    drawn = gaussian_of_words(both.view(-1), 2 * count, noise_stddev)
    return torch.where(places.cpu() < pairs, drawn[:count], drawn[count:])
