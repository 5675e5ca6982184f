"""Packs integers of b bits each (residues modulo 2**b) next to each other into bytes.

A block of 64 residues fills b little-endian 64-bit words; residue i begins at bit i b. The last block is
filled up with zeros. With b = 32, residues are plain little-endian words.

The code joins two residues into one number of 2 b bits. The positions of such pairs in words repeat after
64 / gcd(2 b, 64) pairs. For each position in this pattern, all repetitions are handled at once.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import gcd

import numpy as np
from numpy.typing import NDArray

from secagg.crypto.prg import NUM_THREADS
from secagg.sum_errors import DecodeError

FULL_BITS = 32
FEWEST_BITS = 8
_BLOCK = 64
# Blocks handled at once, so that they and their transposed pairs stay in cache.
_BATCH = 2048
# Blocks of a chunk of a sum: operations are longer there, since each waits until other threads let Python go.
_SUM_BATCH = 8192

Residues = NDArray[np.uint32]
Words = NDArray[np.uint64]


def packed_bytes(dimension: int, bits: int) -> int:
    """Return the number of bytes for `dimension` residues of `bits` bits each."""
    if bits == FULL_BITS:
        return 4 * dimension
    return -(-dimension // _BLOCK) * bits * 8


def pack(residues: Residues, bits: int) -> memoryview:
    """Pack the low `bits` bits of each residue next to each other into bytes."""
    residues = np.ascontiguousarray(residues, dtype="<u4")
    if bits == FULL_BITS:
        return residues.view(np.uint8).data
    words = np.empty(packed_bytes(len(residues), bits) // 8, dtype="<u8")
    whole = len(residues) // _BLOCK * _BLOCK
    for start in range(0, whole, _BATCH * _BLOCK):
        stop = min(whole, start + _BATCH * _BLOCK)
        _pack_blocks(residues[start:stop], words[start * bits // 64 : stop * bits // 64], bits)
    if whole < len(residues):
        last = np.zeros(_BLOCK, dtype="<u4")
        last[: len(residues) - whole] = residues[whole:]
        _pack_blocks(last, words[-bits:], bits)
    return words.view(np.uint8).data


def check_packed(data: memoryview, dimension: int, bits: int) -> None:
    """Raise DecodeError unless bytes have the length of `dimension` packed residues, and zero padding."""
    if len(data) != packed_bytes(dimension, bits):
        raise DecodeError(
            f"a vector of {dimension} residues of {bits} bits does not fill {len(data)} bytes: send "
            "it as it was packed"
        )
    if bits != FULL_BITS and dimension % _BLOCK:
        last = int.from_bytes(data[-bits * 8 :], "little")
        if last >> (dimension % _BLOCK * bits):
            raise DecodeError("the padding after the last residue is not zero")


def unpack(data: memoryview, dimension: int, bits: int) -> Residues:
    """Unpack the integers that `pack` wrote: uint32[dimension].

    Raises DecodeError for another length, or padding that is not zero.
    """
    residues = np.zeros(dimension, dtype=np.uint32)
    add_packed(residues, [data], bits)
    residues &= np.uint32(2**bits - 1)
    return residues


def add_packed(
    total: Residues, vectors: Sequence[bytes | memoryview], bits: int, num_threads: int = NUM_THREADS
) -> None:
    """Unpack several vectors of d residues and add them modulo 2**bits to `total`, uint32[d], in place.

    The higher bits of `total` have no meaning afterwards. Raises DecodeError for a vector of another length,
    or with padding that is not zero.
    """
    views = [memoryview(vector) for vector in vectors]
    for view in views:
        check_packed(view, len(total), bits)
    starts = range(0, len(total), _SUM_BATCH * _BLOCK)
    with ThreadPoolExecutor(max(1, min(num_threads, len(starts)))) as pool:
        for _ in pool.map(partial(_add_chunk, total, views, bits), starts):
            pass


def _add_chunk(total: Residues, views: Sequence[memoryview], bits: int, start: int) -> None:
    """Add the vectors to one chunk of the sum: pairs of residues are added as they lie in their words.

    Of pairs x + 2**bits y, the first sum adds everything and the second adds x. Their difference is 2**bits
    times the sum of y, but for what stands above the pairs in their words: multiples of 2**(2 bits).
    """
    chunk = total[start : start + _SUM_BATCH * _BLOCK]
    if bits == FULL_BITS:
        for view in views:
            chunk += np.frombuffer(view, dtype="<u4", count=len(chunk), offset=4 * start)
        return
    num_pairs, num_words, places = _pattern(bits)
    num_blocks = -(-len(chunk) // _BLOCK)
    shape = num_pairs, num_blocks * bits // num_words
    pair_sums, first_sums = np.zeros(shape, dtype=np.uint64), np.zeros(shape, dtype=np.uint64)
    columns = np.empty((num_words, shape[1]), dtype=np.uint64)
    pair, rest = np.empty((2, shape[1]), dtype=np.uint64)
    low = np.uint64(2**bits - 1)
    for view in views:
        words = np.frombuffer(view, dtype="<u8", count=num_blocks * bits, offset=start // 8 * bits)
        columns[:] = words.reshape(-1, num_words).T
        for (word, bit), pair_sum, first_sum in zip(places, pair_sums, first_sums, strict=True):
            np.right_shift(columns[word], np.uint64(bit), out=pair)
            if bit + 2 * bits > 64:
                pair |= np.left_shift(columns[word + 1], np.uint64(64 - bit), out=rest)
            pair_sum += pair
            pair &= low
            first_sum += pair
    pair_sums -= first_sums
    pair_sums >>= np.uint64(bits)
    residues = np.stack((first_sums.T, pair_sums.T), axis=2).astype("<u4").ravel()
    chunk += residues[: len(chunk)]


def _pattern(bits: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Return the repeating pattern by which pairs of residues of this many bits fill 64-bit words.

    Returns the numbers of pairs and words in one pattern, and word and bit where each pair begins.
    """
    pairs = 64 // gcd(2 * bits, 64)
    return pairs, 2 * bits * pairs // 64, [divmod(2 * bits * pair, 64) for pair in range(pairs)]


def _pack_blocks(residues: Residues, words: Words, bits: int) -> None:
    num_pairs, num_words, places = _pattern(bits)
    low = np.uint64(2**bits - 1)
    two = residues.view("<u8")
    pairs = two >> np.uint64(FULL_BITS - bits)
    pairs &= low << np.uint64(bits)
    pairs |= two & low
    by_place = np.ascontiguousarray(pairs.reshape(-1, num_pairs).T)
    columns = np.zeros((num_words, by_place.shape[1]), dtype=np.uint64)
    for pair, (word, bit) in zip(by_place, places, strict=True):
        columns[word] |= pair << np.uint64(bit)
        if bit + 2 * bits > 64:
            columns[word + 1] |= pair >> np.uint64(64 - bit)
    words.reshape(-1, num_words)[:] = columns.T
