"""Packs the masked integers of a secure sum into bytes on a GPU, with the same result as on a CPU."""

import numpy as np
import torch

from gdpfed.clients.rounding import on_host
from secagg.arithmetic.packing import FULL_BITS

_WORD_BITS = 64
_BLOCK = 64


def packed_words(residues: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the lowest `bits` bits of each integer next to each other into words of 32 or 64 bits.

    Sixty-four residues fill `bits` words of 64 bits; residue i is in them from bit i `bits` on. The last
    block is filled up with zeros. Residues of 32 bits are left as they are.

    Args:
        residues: int32[d].
        bits: b, of each.
    """
    if bits == FULL_BITS:
        return residues
    blocks = -(-len(residues) // _BLOCK)
    padded = residues.new_zeros(blocks * _BLOCK)
    padded[: len(residues)] = residues
    columns = padded.view(blocks, _BLOCK).T.contiguous().long().bitwise_and_((1 << bits) - 1)
    words = columns.new_zeros(bits, blocks)
    for number, column in enumerate(columns):
        word, bit = divmod(number * bits, _WORD_BITS)
        words[word] |= column << bit
        if bit + bits > _WORD_BITS:
            words[word + 1] |= column >> (_WORD_BITS - bit)
    return words.T.contiguous().view(-1)


def copied(words: torch.Tensor) -> memoryview:
    """Copy words from a device to host memory, as bytes."""
    return on_host(words).view(np.uint8).data
