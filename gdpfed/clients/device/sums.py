"""A client's part in a secure sum, computed on the GPU where it trains: rounding, noise, masks, packing.

Where the device runs short of memory, a CPU does the same from the beginning. Any other error of masking ends
the session.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from gdpfed.clients.device.discrete import sample_on
from gdpfed.clients.device.masks import SUITE, DeviceMasks
from gdpfed.clients.device.packing import copied, packed_words
from gdpfed.clients.keyed_noise import CHACHA20, KeyedNoise
from gdpfed.clients.noise import check_keyed, keyed_noise, keyed_steps
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.rounding import clipped_steps, noise_as_steps
from gdpfed.clients.update import contribution_steps, weighed
from gdpfed.learning.training.secret_draws import fill, gaussian_of_words, gaussians_at, noise_shape
from secagg import Encoding, add_masks, keystream
from secagg.arithmetic.discrete_gaussian import sample
from secagg.arithmetic.packing import pack
from secagg.protocol.held_vector import NoisePart

CPU = torch.device("cpu")
WORDS_A_DRAW = 2


class DeviceSum:
    """Computes a client's part of one secure sum on the GPU where the client trains."""

    def __init__(self, masks: DeviceMasks) -> None:
        self.device, self.masks = masks.device, masks

    def contribution(self, order: TrainingOrder, update: torch.Tensor, encoding: Encoding) -> torch.Tensor:
        """Weight, clip and quantise an update on the GPU for a secure sum: int64[d]."""
        try:
            values, own = weighed(order, update.to(self.device), encoding)
            return clipped_steps(values[None].clone(), [own])[0]
        except torch.cuda.OutOfMemoryError:
            return torch.from_numpy(contribution_steps(order, update.cpu(), encoding))

    def noise(
        self, encoding: Encoding, new: Sequence[KeyedNoise], taken_back: Sequence[KeyedNoise]
    ) -> torch.Tensor:
        """Return the noise of the keys `new` minus that of `taken_back`, drawn on the GPU: int64[d]."""
        check_keyed(encoding)

        def draw(part: KeyedNoise) -> torch.Tensor:
            return gaussian_of_words(self._words(part, encoding.dimension), encoding.dimension, part.stddev)

        def exactly(places: torch.Tensor) -> torch.Tensor:
            def draw_at(part: KeyedNoise) -> torch.Tensor:
                return gaussians_at(self._words(part, encoding.dimension), places, part.stddev)

            return keyed_noise(len(places), new, taken_back, draw_at)

        try:
            drawn = keyed_noise(encoding.dimension, new, taken_back, draw)
            return noise_as_steps(drawn, encoding, exactly)
        except torch.cuda.OutOfMemoryError:
            return torch.from_numpy(keyed_steps(encoding, new, taken_back, CPU))

    def _words(self, part: KeyedNoise, dimension: int) -> torch.Tensor:
        """Return, on the GPU, the random words from which noise is drawn under a key."""
        shape = noise_shape(dimension)
        if part.suite == CHACHA20:
            return self.masks.keystream(part.key, WORDS_A_DRAW * prod(shape)).view(torch.int64)
        words = torch.empty(shape, dtype=torch.int64)
        fill(words, keystream(part.key, part.suite))
        return words.view(-1).to(self.device)

    def vector(self, steps: torch.Tensor, noise: torch.Tensor | None = None) -> "DeviceVector":
        """Join an update and its noise into a vector that can be masked on the GPU."""
        return DeviceVector(self.masks, steps, noise)


@dataclass(frozen=True, eq=False)
class DeviceVector:
    """A client's quantised update and noise on the GPU, int64[d] each; both are masked there.

    It is a `secagg.protocol.held_vector.HeldVector`. `noise`: None where the session draws it, or nobody.
    """

    masks: DeviceMasks
    steps: torch.Tensor
    noise: torch.Tensor | None = None

    @property
    def dimension(self) -> int:
        """The number d of coordinates of the contribution."""
        return len(self.steps)

    @property
    def noise_squared_norm(self) -> float | None:
        """The squared norm |z|^2 of the noise in integer grid steps; None if no noise was given."""
        return None if self.noise is None else float(self.noise.double().square().sum())

    def masked(
        self, parts: Sequence[NoisePart], masks: Sequence[tuple[bytes, int]], suite: str, bits: int
    ) -> memoryview:
        """Add noise and masks on the device, and pack the result into bytes.

        Raises:
            ValueError: the masks are of a cipher that no device computes.
            PrivacyError: the device has masked otherwise than a CPU.
        """
        if suite != SUITE:
            raise ValueError(f"masks of {suite} are not computed on {self.masks.device}: use {SUITE}")
        try:
            return self._masked_there(parts, masks, bits)
        except torch.cuda.OutOfMemoryError:
            return self._masked_here(parts, masks, bits)

    def _masked_there(
        self, parts: Sequence[NoisePart], masks: Sequence[tuple[bytes, int]], bits: int
    ) -> memoryview:
        device = self.masks.device
        total = self.steps.to(device, copy=True)
        if self.noise is not None:
            total += self.noise.to(device)
        for stddev, factor, key in parts:
            total.add_(sample_on(device, self.dimension, stddev, key), alpha=factor)
        residues = total.to(torch.int32)
        self.masks.add(residues, masks)
        return copied(packed_words(residues, bits))

    def _masked_here(
        self, parts: Sequence[NoisePart], masks: Sequence[tuple[bytes, int]], bits: int
    ) -> memoryview:
        total = self.steps.cpu().numpy().copy()
        if self.noise is not None:
            total += self.noise.cpu().numpy()
        for stddev, factor, key in parts:
            total += factor * sample(self.dimension, stddev, key)
        residues = total.astype(np.uint32)
        add_masks(residues, masks, SUITE)
        return pack(residues, bits)
