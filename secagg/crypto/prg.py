"""Masks from a stream cipher: expands a key to random uint32 words, and adds them in place.

A mask is the keystream of one key, read as little-endian 32-bit words, so all 2**32 residues are equally
likely (the PRG of Bonawitz et al., CCS 2017, section 3.2). A key serves only one mask, so the numbers of the
mask's segments can be the nonces.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, pairwise

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

KEY_BYTES = {"aes128ctr": 16, "aes256ctr": 32, "chacha20": 32}
"""The cipher suites, with the length of their keys; ChaCha20 is for processors without AES instructions."""

# So small that a chunk, its keystream and the cipher's state stay in the second-level cache.
_CHUNK_BYTES = 256 * 1024
_CHUNK_WORDS = _CHUNK_BYTES // 4
_ZEROS = bytes(_CHUNK_BYTES)
_CACHE_LINE_BYTES = 64
_NONCE_BYTES = 12
SEGMENT_WORDS = 2**19
"""How many words of a mask one thread expands under one nonce."""
NUM_THREADS = min(2, os.cpu_count() or 1)
"""How many threads work on a long vector; the ciphers and numpy release the interpreter's lock."""
# For a keystream: fewer bytes are not worth the start of another thread.
_PART_BYTES, _KEYSTREAM_THREADS = 4 * 2**20, min(4, os.cpu_count() or 1)
# Bounds the memory of open cipher contexts when a server removes thousands of masks.
_BATCH_MASKS = 512


def cipher_stream(suite: str, key: bytes, start: bytes = bytes(16)) -> CipherContext:
    """Return a cipher under this key that encrypts zeros to its keystream of random bytes.

    `suite`: a name in `KEY_BYTES`. `key`: `KEY_BYTES[suite]` bytes. `start`: 16 bytes; the first counter
    block of AES-CTR (NIST SP 800-38A, 6.5), or the little-endian counter and nonce of ChaCha20 (RFC 8439,
    2.3).

    Raises ValueError for an unknown suite or a key of the wrong length.
    """
    _check_key(suite, key)
    if suite == "chacha20":
        return Cipher(algorithms.ChaCha20(key, start), mode=None).encryptor()
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()


def mask_stream(suite: str, key: bytes, segment: int) -> CipherContext:
    """Return a cipher whose encryption of zeros is one segment of a mask.

    The segment's number is the nonce, so segments can be expanded in any order and on any thread. AES runs in
    GCM (NIST SP 800-38D, 7.1), whose keystream begins at block (nonce, 2). GCM's code uses vector AES, which
    the code for plain CTR does not, and is nearly twice as fast, although it computes a tag that is not
    needed. Raises ValueError for an unknown suite or a key of the wrong length.
    """
    nonce = segment.to_bytes(_NONCE_BYTES, "big")
    if suite == "chacha20":
        return cipher_stream(suite, key, bytes(4) + nonce)
    _check_key(suite, key)
    return Cipher(algorithms.AES(key), modes.GCM(nonce)).encryptor()


def add_masks(
    vector: NDArray[np.uint32],
    masks: Iterable[tuple[bytes, int]],
    suite: str = "aes128ctr",
    num_threads: int | None = None,
) -> None:
    """Add the mask of each key, times its sign, to `vector` modulo 2**32, in place.

    All masks are added to one chunk of the vector while the chunk is in cache, and all ciphers write into the
    same buffer. Adding one whole mask after the other would read the vector from memory for every mask.

    Args:
        vector: uint32[d], contiguous and writable.
        masks: pairs of a key of `KEY_BYTES[suite]` bytes and a sign, +1 or -1.
        suite: the stream cipher.
        num_threads: how many segments of the vector to work on at once; by default `NUM_THREADS`.

    Raises ValueError for a wrong array, sign, suite or key.
    """
    if vector.dtype != np.uint32 or vector.ndim != 1 or not vector.flags.c_contiguous:
        raise ValueError(f"masks are added to a contiguous uint32 vector, not to {vector.dtype}")
    segments = range(-(-len(vector) // SEGMENT_WORDS))
    threads = max(1, min(num_threads or NUM_THREADS, len(segments)))
    pending = iter(masks)
    with ThreadPoolExecutor(threads) as pool:
        while batch := [(key, _checked_sign(sign)) for key, sign in islice(pending, _BATCH_MASKS)]:
            add = partial(_add_segment, vector, batch, suite)
            for _ in map(add, segments) if threads == 1 else pool.map(add, segments):
                pass


def _add_segment(
    vector: NDArray[np.uint32], masks: list[tuple[bytes, int]], suite: str, segment: int
) -> None:
    part = vector[segment * SEGMENT_WORDS : (segment + 1) * SEGMENT_WORDS]
    streams = [(mask_stream(suite, key, segment), sign) for key, sign in masks]
    # An uninitialised little-endian buffer that begins on a cache line, and chunks of which all but the first
    # begin on one: adding to others takes up to 50 % longer.
    spare = np.empty(4 * _CHUNK_WORDS + _CACHE_LINE_BYTES, dtype=np.uint8)
    aligned = -spare.ctypes.data % _CACHE_LINE_BYTES
    words: NDArray[np.uint32] = spare[aligned : aligned + 4 * _CHUNK_WORDS].view("<u4")
    first = -part.ctypes.data % _CACHE_LINE_BYTES // 4
    edges = sorted({0, *range(min(first, len(part)), len(part), _CHUNK_WORDS), len(part)})
    for start, stop in pairwise(edges):
        chunk, mask = part[start:stop], words[: stop - start]
        zeros, buffer = memoryview(_ZEROS)[: chunk.nbytes], mask.view(np.uint8).data
        for stream, sign in streams:
            stream.update_into(zeros, buffer)
            if sign > 0:
                np.add(chunk, mask, out=chunk)
            else:
                np.subtract(chunk, mask, out=chunk)


def unknown_suite(suite: str) -> str:
    """Return the error message for an unknown name of a cipher suite."""
    *others, last = KEY_BYTES
    return f"suite={suite} is not known: use {', '.join(others)} or {last}"


def _check_key(suite: str, key: bytes) -> None:
    if suite not in KEY_BYTES:
        raise ValueError(unknown_suite(suite))
    if len(key) != KEY_BYTES[suite]:
        raise ValueError(f"{suite} takes a key of {KEY_BYTES[suite]} bytes, got {len(key)}")


def _checked_sign(sign: int) -> int:
    if sign not in (1, -1):
        raise ValueError(f"a mask's sign is +1 or -1, got {sign}")
    return sign


class Keystream:
    """A secure source of random bytes: read(n) returns the next n bytes of a cipher's keystream.

    Args:
        key: `KEY_BYTES[suite]` secret bytes, used for nothing else.
        suite: the stream cipher, AES-256-CTR by default.
        start: 16 bytes, as for `cipher_stream`.

    Raises ValueError for an unknown suite or a key of the wrong length.
    """

    def __init__(self, key: bytes, suite: str = "aes256ctr", start: bytes = bytes(16)) -> None:
        self._stream, self._key, self._suite = cipher_stream(suite, key, start), key, suite
        self._start, self._position = int.from_bytes(start, "big"), 0

    def __call__(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes` random bytes."""
        self._position += num_bytes
        return self._stream.update(bytes(num_bytes))

    def into(self, buffer: memoryview) -> None:
        """Write the next random bytes into a buffer, in several threads if there are many."""
        size = max(_PART_BYTES, -(-len(buffer) // _KEYSTREAM_THREADS))
        parts = [buffer[start : start + size] for start in range(0, len(buffer), size)]
        if len(parts) < 2 or self._suite == "chacha20":
            _write(self._stream, buffer)
            self._position += len(buffer)
            return
        streams = []
        for part in parts:
            streams.append(self._from_here())
            self._position += len(part)
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(_write, streams, parts))
        self._stream = self._from_here()

    def _from_here(self) -> CipherContext:
        """Return an AES stream that continues from the present position."""
        counter = (self._start + self._position // 16) % 2**128
        stream = cipher_stream(self._suite, self._key, counter.to_bytes(16, "big"))
        stream.update(bytes(self._position % 16))
        return stream


def _write(stream: CipherContext, buffer: memoryview) -> None:
    for start in range(0, len(buffer), _CHUNK_BYTES):
        chunk = buffer[start : start + _CHUNK_BYTES]
        stream.update_into(memoryview(_ZEROS)[: len(chunk)], chunk)


keystream = Keystream
