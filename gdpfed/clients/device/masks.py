"""ChaCha20 masks on a GPU, compared with the CPU's in random blocks before they are used.

The keys are copied to the device for one call, and wiped there after it.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.errors import PrivacyError
from secagg.crypto.prg import KEY_BYTES, SEGMENT_WORDS, cipher_stream

SUITE = "chacha20"
BLOCK_WORDS = 16
BLOCKS_A_PROGRAM = 128
CHECKED_BLOCKS = 3
_BLOCK_BYTES = 4 * BLOCK_WORDS

Words = npt.NDArray[np.uint32]


class DeviceMasks:
    """Adds the masks of secure aggregation to vectors on one device, with the same result as on a CPU.

    Every call compares the last block and some random blocks of its result with a CPU's. This finds a device
    that masks nothing, or computes wrongly throughout; it is likely to miss a few wrong blocks.

    Args:
        device: of the vectors.
        segment_words: the words of a mask under one nonce, a multiple of 16; that of all masks by default.
        blocks: of 16 words that a program of the kernel works on, a power of two.
        kernel: of the signature of `add_chacha20`, which it is by default.

    Raises ImportError: there is no Triton.
    """

    def __init__(
        self,
        device: torch.device,
        segment_words: int = SEGMENT_WORDS,
        blocks: int = BLOCKS_A_PROGRAM,
        kernel: Any = None,
    ) -> None:
        if kernel is None:
            from gdpfed.clients.device.chacha20_kernel import add_chacha20 as kernel

        self.device, self._kernel, self._blocks = device, kernel, blocks
        self._segment_blocks = segment_words // BLOCK_WORDS

    def add(self, vector: torch.Tensor, masks: Sequence[tuple[bytes, int]]) -> None:
        """Add sign * PRG(key) modulo 2**32 to int32[d] in place, for each (key, sign).

        Raises:
            ValueError: the vector is not a contiguous int32[d], or a key or a sign is not valid.
            PrivacyError: the device computed something else than a CPU.
        """
        if vector.dtype != torch.int32 or vector.ndim != 1 or not vector.is_contiguous():
            raise ValueError(
                f"masks are added to a contiguous int32 vector, not to {vector.dtype}: convert the vector"
            )
        if any(len(key) != KEY_BYTES[SUITE] or sign not in (1, -1) for key, sign in masks):
            raise ValueError(f"a mask is a key of {KEY_BYTES[SUITE]} bytes and a sign, +1 or -1: give both")
        self._add(
            vector,
            masks,
            self._segment_blocks,
            f"{self.device} has not masked as a CPU does, so nothing was sent: use run.device=cpu, "
            "or leave secagg.suite out",
        )

    def keystream(self, key: bytes, num_words: int) -> torch.Tensor:
        """Return the first words of the ChaCha20 keystream of a key: int32[num_words].

        Raises PrivacyError if the device computed something else than a CPU.
        """
        words = torch.zeros(num_words, dtype=torch.int32, device=self.device)
        self._add(
            words,
            [(key, 1)],
            -(-num_words // BLOCK_WORDS),
            f"{self.device} has not drawn the random bits of noise that a CPU draws: use run.device=cpu",
        )
        return words

    def _add(
        self, vector: torch.Tensor, masks: Sequence[tuple[bytes, int]], segment_blocks: int, refusal: str
    ) -> None:
        """Add masks to the vector on the device, and check some blocks against the CPU's results.

        Raises PrivacyError with the text `refusal` if a block differs.
        """
        places = self._places(len(vector))
        before = [_words(vector, place) for place in places]
        self._launch(vector, masks, segment_blocks)
        for place, words in zip(places, before, strict=True):
            if not np.array_equal(_words(vector, place), _masked(words, place, segment_blocks, masks)):
                raise PrivacyError(refusal)

    def _launch(self, vector: torch.Tensor, masks: Sequence[tuple[bytes, int]], segment_blocks: int) -> None:
        programs = -(-len(vector) // (BLOCK_WORDS * self._blocks))
        if not programs or not masks:
            return
        packed = bytearray()
        for key, _ in masks:
            packed += key
        here = torch.frombuffer(packed, dtype=torch.int32)
        keys = here.to(self.device, copy=True)
        try:
            signs = torch.tensor([sign for _, sign in masks], dtype=torch.int32, device=self.device)
            with torch.cuda.device_of(vector):  # type: ignore[no-untyped-call]
                self._kernel[programs,](
                    vector, keys, signs, len(vector), len(masks), segment_blocks, BLOCKS=self._blocks
                )
        finally:
            here.zero_()
            keys.zero_()

    def _places(self, length: int) -> list[int]:
        """Choose the blocks of a mask to compare with the CPU: the last one, and some random ones."""
        num_blocks = -(-length // BLOCK_WORDS)
        drawn = np.frombuffer(os.urandom(8 * CHECKED_BLOCKS), dtype=np.uint64) % max(1, num_blocks)
        return [num_blocks - 1, *drawn.tolist()] if num_blocks else []


def _masked(words: Words, block: int, segment_blocks: int, masks: Sequence[tuple[bytes, int]]) -> Words:
    """Add masks to one block on the CPU, to compare with what the device computed."""
    segment, counter = divmod(block, segment_blocks)
    start = counter.to_bytes(4, "little") + segment.to_bytes(12, "big")
    total = words.copy()
    for key, sign in masks:
        stream = np.frombuffer(cipher_stream(SUITE, key, start).update(bytes(_BLOCK_BYTES)), dtype="<u4")
        total = total + stream[: len(words)] if sign > 0 else total - stream[: len(words)]
    return total


def _words(vector: torch.Tensor, block: int) -> Words:
    part = vector[block * BLOCK_WORDS : (block + 1) * BLOCK_WORDS]
    return part.cpu().numpy().view(np.uint32).copy()
