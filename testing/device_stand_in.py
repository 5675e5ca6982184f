"""A replacement for the GPU kernel that adds masks; it runs on a CPU without Triton."""

from typing import Any

import numpy as np
import torch

from gdpfed.clients.device.masks import DeviceMasks
from secagg.crypto import prg


class MaskingKernel:
    """A CPU implementation of the GPU kernel `add_chacha20`, which adds ChaCha20 masks to a vector.

    `launches`: how often it was started. `keys`: of the last start, which are wiped afterwards.
    """

    def __init__(self) -> None:
        self.launches, self.keys = 0, torch.zeros(0)

    def __getitem__(self, grid: Any) -> "MaskingKernel":
        return self

    def __call__(
        self,
        vector: torch.Tensor,
        keys: torch.Tensor,
        signs: torch.Tensor,
        length: int,
        num_masks: int,
        segment_blocks: int,
        BLOCKS: int,  # noqa: N803
    ) -> None:
        """Add the masks to the vector in place, segment by segment."""
        self.launches, self.keys = self.launches + 1, keys
        words, segment_words = vector.numpy().view(np.uint32), 16 * segment_blocks
        for key, sign in zip(keys.view(num_masks, 8), signs.tolist(), strict=True):
            for segment, start in enumerate(range(0, length, segment_words)):
                part = words[start : start + segment_words]
                stream = prg.mask_stream("chacha20", key.numpy().tobytes(), segment)
                part += np.uint32(sign % 2**32) * np.frombuffer(
                    stream.update(bytes(part.nbytes)), dtype="<u4"
                )


def masks_on_cpu() -> DeviceMasks:
    """Return a mask generator for GPUs that works on this CPU instead."""
    return DeviceMasks(torch.device("cpu"), kernel=MaskingKernel())
