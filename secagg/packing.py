"""Residues of b bits each, side by side on the wire.

Sixty-four residues fill b little-endian 64-bit words, residue i from bit i b on; the last block is
filled up with zeros. 32 bits travel as plain little-endian words.
"""

import numpy as np
from numpy.typing import NDArray

from secagg.errors import DecodeError

FULL_BITS = 32
FEWEST_BITS = 8
_BLOCK = 64
# Blocks handled at once, so that their columns stay in cache.
_BATCH = 1024

Residues = NDArray[np.uint32]


def packed_bytes(dimension: int, bits: int) -> int:
    """How many bytes `dimension` residues of `bits` bits take."""
    if bits == FULL_BITS:
        return 4 * dimension
    return -(-dimension // _BLOCK) * bits * 8


def pack(residues: Residues, bits: int) -> memoryview:
    """The low `bits` bits of each residue, `packed_bytes` bytes."""
    if bits == FULL_BITS:
        return np.ascontiguousarray(residues, dtype="<u4").view(np.uint8).data
    blocks = -(-len(residues) // _BLOCK)
    words = np.zeros((blocks, bits), dtype="<u8")
    for start in range(0, blocks, _BATCH):
        _pack_blocks(residues[start * _BLOCK : (start + _BATCH) * _BLOCK], words[start : start + _BATCH])
    return words.reshape(-1).view(np.uint8).data


def unpack(data: memoryview, dimension: int, bits: int) -> Residues:
    """uint32[dimension] from what `pack` wrote; a view of `data` at 32 bits.

    Raises:
        DecodeError: another length, or something in the padding.
    """
    if len(data) != packed_bytes(dimension, bits):
        raise DecodeError(f"{len(data)} bytes where {dimension} residues of {bits} bits belong")
    if bits == FULL_BITS:
        return np.frombuffer(data, dtype="<u4").astype(np.uint32, copy=False)
    words = np.frombuffer(data, dtype="<u8").reshape(-1, bits)
    residues = np.empty(len(words) * _BLOCK, dtype=np.uint32)
    for start in range(0, len(words), _BATCH):
        part = residues[start * _BLOCK : (start + _BATCH) * _BLOCK].reshape(-1, _BLOCK)
        _unpack_blocks(words[start : start + _BATCH], part, bits)
    if residues[dimension:].any():
        raise DecodeError("the padding after the last residue is not zero")
    return residues[:dimension]


def _pack_blocks(residues: Residues, words: NDArray[np.uint64]) -> None:
    bits = words.shape[1]
    padded = np.zeros((_BLOCK, len(words)), dtype=np.uint64)
    full = np.zeros(len(words) * _BLOCK, dtype=np.uint32)
    full[: len(residues)] = residues & np.uint32(2**bits - 1)
    padded[:] = full.reshape(-1, _BLOCK).T
    columns = np.zeros((bits, len(words)), dtype=np.uint64)
    for i in range(_BLOCK):
        word, offset = divmod(i * bits, 64)
        columns[word] |= padded[i] << np.uint64(offset)
        if offset + bits > 64:
            columns[word + 1] |= padded[i] >> np.uint64(64 - offset)
    words[:] = columns.T


def _unpack_blocks(words: NDArray[np.uint64], residues: Residues, bits: int) -> None:
    columns = np.ascontiguousarray(words.T)
    unpacked = np.empty((_BLOCK, len(words)), dtype=np.uint32)
    mask = np.uint64(2**bits - 1)
    for i in range(_BLOCK):
        word, offset = divmod(i * bits, 64)
        value = columns[word] >> np.uint64(offset)
        if offset + bits > 64:
            value |= columns[word + 1] << np.uint64(64 - offset)
        unpacked[i] = value & mask
    residues[:] = unpacked.T
