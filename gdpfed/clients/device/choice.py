"""Decides whether a GPU adds noise and masks to the updates that it has trained, and if not, says why."""

import os
from collections.abc import Callable
from functools import lru_cache

import torch

from gdpfed.clients.device.masks import BLOCK_WORDS, SUITE, DeviceMasks
from gdpfed.clients.device.sums import WORDS_A_DRAW, DeviceSum
from gdpfed.clients.keyed_noise import KEY_BYTES
from gdpfed.errors import kind_and_words

RandomBits = Callable[[int], torch.Tensor]
"""Returns that many secret, uniform words of 64 bits on a device: int64[n]; each of them once."""
TRIED_BLOCKS = 3
MOST_DEVICES = 64


def device_sum(device: torch.device, suite: str) -> DeviceSum | str:
    """Return the object that adds noise and masks on the device, or the reason why the CPU must do it.

    `suite`: of the masks of the sum.
    """
    if suite != SUITE:
        return f"the CPU masks with {suite}: secagg.suite={SUITE} does it on {device}"
    masks = tried_masks(device)
    if isinstance(masks, str):
        return f"the CPU masks, since {device} does not: {masks}"
    return DeviceSum(masks)


@lru_cache(maxsize=MOST_DEVICES)
def tried_masks(device: torch.device) -> DeviceMasks | str:
    """Return the mask generator of a device, or a sentence that says why masks cannot be computed there.

    Triton may be missing, or the compiler that it asks for, or a folder that it can write to.
    """
    try:
        masks = DeviceMasks(device)
        vector = torch.zeros(TRIED_BLOCKS * BLOCK_WORDS - 1, dtype=torch.int32, device=device)
        masks.add(vector, [(bytes(range(32)), 1), (bytes(range(1, 33)), -1)])
    except Exception as error:
        return kind_and_words(error, 200)
    return masks


def device_bits(device: torch.device) -> RandomBits | None:
    """Return a function that draws secret random words on a GPU, or None if a CPU must draw them.

    Each call has a new key.
    """
    masks = tried_masks(device)
    if isinstance(masks, str):
        return None

    def draw(num_words: int) -> torch.Tensor:
        return masks.keystream(os.urandom(KEY_BYTES), WORDS_A_DRAW * num_words).view(torch.int64)

    return draw
