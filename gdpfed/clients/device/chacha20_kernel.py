"""ChaCha20 (RFC 8439) as a Triton kernel: adds the masks of many keys to a vector on a GPU.

A keystream is made of additions, exclusive ors and rotations of 32-bit words, so every device computes the
same one. The vector passes through memory once for all masks: a thread keeps 64 bytes of it, adds mask after
mask to them, and writes them back.
"""

import triton
import triton.language as tl


@triton.jit
def _quarter_round(a, b, c, d):  # type: ignore[no-untyped-def]
    """The quarter round of ChaCha20 (RFC 8439, section 2.1), on four words."""
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _swapped_bytes(x):  # type: ignore[no-untyped-def]
    return (x << 24) | ((x & 0xFF00) << 8) | ((x >> 8) & 0xFF00) | (x >> 24)


@triton.jit
def _word(at, mask):  # type: ignore[no-untyped-def]
    return tl.load(at, mask=mask, other=0).to(tl.uint32, bitcast=True)


@triton.jit
def _four_words(at, left):  # type: ignore[no-untyped-def]
    """Load four words of each block from a vector; words beyond its end (`left` words remain) become 0."""
    return _word(at, left > 0), _word(at + 1, left > 1), _word(at + 2, left > 2), _word(at + 3, left > 3)


@triton.jit
def _one_word(at, zero):  # type: ignore[no-untyped-def]
    """Return a vector with one copy of a 32-bit word for every ChaCha20 block."""
    return zero + tl.load(at).to(tl.uint32, bitcast=True)


@triton.jit
def _four_of_key(key, zero):  # type: ignore[no-untyped-def]
    return _one_word(key, zero), _one_word(key + 1, zero), _one_word(key + 2, zero), _one_word(key + 3, zero)


@triton.jit
def _put_four(at, left, a, b, c, d):  # type: ignore[no-untyped-def]
    tl.store(at, a.to(tl.int32, bitcast=True), mask=left > 0)
    tl.store(at + 1, b.to(tl.int32, bitcast=True), mask=left > 1)
    tl.store(at + 2, c.to(tl.int32, bitcast=True), mask=left > 2)
    tl.store(at + 3, d.to(tl.int32, bitcast=True), mask=left > 3)


# A kernel is compiled once, not again for numbers that are 1 or multiples of 16.
@triton.jit(do_not_specialize=["length", "num_masks", "segment_blocks"])  # type: ignore[untyped-decorator]
def add_chacha20(vector, keys, signs, length, num_masks, segment_blocks, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Add sign * keystream(key) modulo 2**32 to a vector in place, for every key.

    `vector`: int32[length]. `keys`: int32[num_masks, 8], little-endian. `signs`: int32[num_masks], 1 or -1.
    Block j of 16 words has counter j % `segment_blocks` and nonce j // `segment_blocks`, as the masks of
    `secagg.crypto.prg`; the last block may be a part of one. A program works on `BLOCKS` blocks, a power of
    two.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    counter = (block % segment_blocks).to(tl.uint32)
    nonce = _swapped_bytes((block // segment_blocks).to(tl.uint32))
    zero = tl.full([BLOCKS], 0, tl.uint32)
    at, left = vector + block * 16, length - block * 16
    v0, v1, v2, v3 = _four_words(at, left)
    v4, v5, v6, v7 = _four_words(at + 4, left - 4)
    v8, v9, v10, v11 = _four_words(at + 8, left - 8)
    v12, v13, v14, v15 = _four_words(at + 12, left - 12)
    for number in range(num_masks):
        k0, k1, k2, k3 = _four_of_key(keys + number * 8, zero)
        k4, k5, k6, k7 = _four_of_key(keys + number * 8 + 4, zero)
        sign = _one_word(signs + number, zero)
        x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
        x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
        x12, x13, x14, x15 = counter, zero, zero, nonce
        for _ in range(10):
            x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
            x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
            x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
            x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
            x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
            x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
            x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
            x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
        v0, v1 = v0 + sign * (x0 + 0x61707865), v1 + sign * (x1 + 0x3320646E)
        v2, v3 = v2 + sign * (x2 + 0x79622D32), v3 + sign * (x3 + 0x6B206574)
        v4, v5, v6 = v4 + sign * (x4 + k0), v5 + sign * (x5 + k1), v6 + sign * (x6 + k2)
        v7, v8, v9 = v7 + sign * (x7 + k3), v8 + sign * (x8 + k4), v9 + sign * (x9 + k5)
        v10, v11, v12 = v10 + sign * (x10 + k6), v11 + sign * (x11 + k7), v12 + sign * (x12 + counter)
        v13, v14, v15 = v13 + sign * x13, v14 + sign * x14, v15 + sign * (x15 + nonce)
    _put_four(at, left, v0, v1, v2, v3)
    _put_four(at + 4, left - 4, v4, v5, v6, v7)
    _put_four(at + 8, left - 8, v8, v9, v10, v11)
    _put_four(at + 12, left - 12, v12, v13, v14, v15)
