"""Draws secret random bits, a client's own part of a sum's noise, and noise for class counts."""

import os
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.keyed_noise import AES, CHACHA20, KEY_BYTES, KeyedNoise
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.errors import PrivacyError
from gdpfed.learning.task import choose_device
from gdpfed.learning.training.secret_draws import RandomBytes, gaussian_noise
from secagg import Encoding, SumParameters, keystream

BitsOf = Callable[[int], RandomBytes]
"""A secret source of bits for each client, by its id."""


def secret_bits(client_id: int) -> RandomBytes:
    """Return a secret random stream with a fresh key; `client_id` is not used."""
    return keystream(os.urandom(32))


def law_of(
    order: TrainingOrder, parameters: SumParameters
) -> Literal["gaussian", "discrete_gaussian"] | None:
    """Return which distribution a client's noise in a sum has, or None if the sum has no noise."""
    if parameters.noise_multiplier == 0:
        return None
    return "discrete_gaussian" if order.noise == "discrete_gaussian" else "gaussian"


def new_share(parameters: SumParameters, num_contributors: int) -> KeyedNoise:
    """Draw a fresh key for a client's own part of a sum's noise.

    If the masks use ChaCha20, which a GPU can compute, the noise uses ChaCha20 as well.
    """
    suite = CHACHA20 if parameters.suite == CHACHA20 else AES
    return KeyedNoise(os.urandom(KEY_BYTES), parameters.client_noise_stddev(num_contributors), suite)


def own_noise(
    order: TrainingOrder,
    parameters: SumParameters,
    num_contributors: int,
    share: KeyedNoise | None = None,
    taken_back: Sequence[KeyedNoise] = (),
) -> npt.NDArray[np.int64] | Literal["discrete_gaussian"] | None:
    """Return a client's noise in a sum: int64[d] if Gaussian, "discrete_gaussian" if discrete, None if none.

    It is None if the sum has no noise, and "discrete_gaussian" for discrete noise, which the session draws.

    Args:
        share: the new noise; by default it has a fresh key of the operating system.
        taken_back: parts of earlier noise to subtract; new and old noise are rounded together.
    """
    law = law_of(order, parameters)
    if law != "gaussian":
        return law
    encoding, new = parameters.encoding(num_contributors), share or new_share(parameters, num_contributors)
    return keyed_steps(encoding, [new], taken_back, choose_device(order.device))


def noise_steps(
    order: TrainingOrder, parameters: SumParameters, num_contributors: int
) -> npt.NDArray[np.int64]:
    """Draw one client's part of the noise in a sum, as integers, shape (d,).

    It is a Gaussian, drawn on the training device and rounded, or a discrete Gaussian, drawn in integers;
    without noise levels its standard deviation is C sigma / sqrt(n2 - D - max(1, c)).
    """
    noise = own_noise(order, parameters, num_contributors)
    if noise is not None and not isinstance(noise, str):
        return noise
    levels = parameters.encoding(num_contributors).levels
    if levels is None:
        return np.zeros(parameters.dimension, dtype=np.int64)
    return levels.draw(0, parameters.dimension, os.urandom(32))


def keyed_steps(
    encoding: Encoding, new: Sequence[KeyedNoise], taken_back: Sequence[KeyedNoise], device: torch.device
) -> npt.NDArray[np.int64]:
    """Return the noise of keys `new` minus that of keys `taken_back`, rounded to integers: int64[d]."""

    def draw(part: KeyedNoise) -> torch.Tensor:
        return gaussian_noise(encoding.dimension, part.stddev, keystream(part.key, part.suite), device=device)

    check_keyed(encoding)
    return encoding.encode_noise(keyed_noise(encoding.dimension, new, taken_back, draw).cpu().numpy())


def check_keyed(encoding: Encoding) -> None:
    """Raise OrderError if a sum splits noise into removable parts, since noise from a key cannot be split."""
    if encoding.levels is not None and encoding.levels.multipliers:
        raise OrderError("noise that is subtracted later must be discrete_gaussian, not gaussian")


def keyed_noise(
    dimension: int,
    new: Sequence[KeyedNoise],
    taken_back: Sequence[KeyedNoise],
    draw: Callable[[KeyedNoise], torch.Tensor],
) -> torch.Tensor:
    """Draw the noise of the keys `new` and subtract that of the keys `taken_back`: float64[dimension].

    It is not rounded; without keys it is zeros. `draw`: returns the noise of a key, of shape (dimension,).
    """
    noise = torch.zeros(dimension, dtype=torch.float64)
    for sign, parts in ((1, new), (-1, taken_back)):
        for part in parts:
            drawn = draw(part)
            noise = noise.to(drawn.device).add_(drawn, alpha=sign)
    return noise


GRID = 2.0**-10
"""Released counts are rounded to multiples of this number, so that their last digits tell nothing."""


def noised_counts(
    counts: npt.NDArray[np.int64], noise_stddev: float, random_bytes: RandomBytes
) -> npt.NDArray[np.float64]:
    """Return a client's counts of B classes plus Gaussian noise, rounded to multiples of `GRID`: shape (B,).

    Replacing one record changes no count, or two counts by 1 each: sqrt(2) in norm. The release therefore
    costs 1 / s^2 zCDP. Values may be below 0; code that uses them clips them, which is post-processing.
    `counts`: records of each class, shape (B,). `noise_stddev`: s. `random_bytes`: the client's secret source
    of bits. Raises PrivacyError: s is not above 0.
    """
    if not noise_stddev > 0:
        raise PrivacyError(
            f"class counts are requested with noise of standard deviation {noise_stddev:g}; it must "
            "be above 0"
        )
    noise = gaussian_noise(len(counts), noise_stddev, random_bytes, device=torch.device("cpu")).numpy()
    return np.asarray(np.rint((counts + noise) / GRID) * GRID)
