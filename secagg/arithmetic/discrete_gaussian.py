"""Discrete Gaussian noise drawn exactly (to 2**-135) from a 32-byte key, so that it can be drawn again.

The discrete Gaussian D(S) takes the integer x with probability exp(-x**2 / (2 S**2)) / Z
(Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020). Its
large S are drawn as z = z1 + k z2 with z1 and z2 from D(sigma) (Micciancio and Walter, "Gaussian
Sampling over the Integers", CRYPTO 2017): summing over z2,

    P(z = x) = D(S)(x) * theta(x) / E[theta],   S**2 = (1 + k**2) sigma**2,
    theta(x) = sum_j exp(-(j - c x)**2 / (2 eta**2)),   eta = sigma / sqrt(1 + k**2) >= 3.19,

and by Poisson summation theta varies by a factor of 1 +- 2 exp(-2 pi**2 eta**2) only: with the
pairs used here, sigma, k = 512, 160 or 512, 40 or 40, 12, by less than 2**-289.

D(sigma) comes from two tables, computed in integers and so the same on every machine. The first
has 2**16 entries: x stands in floor(2**16 p(x)) of them, so that 16 random bits settle a draw in 97
of 100 cases. What is left of each p(x) goes into an alias table (Walker, 1977; Vose, 1991) of 2**14
(or 2**11) cells with 128-bit thresholds, which settles the other draws exactly.

The bits are AES-256-CTR, so "exact" is against an adversary who cannot tell AES from random. The
time taken depends a little on the noise: do not let others measure it closely.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Context, Decimal, localcontext
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from secagg.crypto.prg import NUM_THREADS, cipher_stream

KEY_BYTES = 32
# sigma, k and the cells of the alias table, which span at least 16 sigma to either side.
_SHAPES = {81921.6: (512, 160, 2**14), 20486.0: (512, 40, 2**14), 481.7: (40, 12, 2**11)}

_DIRECT_BITS = 16
_THRESHOLD_BITS = 128
_FRACTION_BITS = 320
UNSETTLED = -(2**15)
_WORD = (1 << 64) - 1
# Direct words count up from block 0; 2**127 blocks on are the words of the alias table.
DIRECT_START = bytes(16)
ALIAS_START = b"\x80" + bytes(15)
ALIAS_DRAW_WORDS = 3
_BLOCK_BYTES = 16
# What one thread draws at once.
_PART = 2**17
# A chunk's words, their indices and the table stay in the second-level cache.
_CHUNK = 2**14
_ZEROS = bytes(4 * _CHUNK)

Integers = NDArray[np.int64]
_Part = tuple[NDArray[np.int16], NDArray[np.intp]]


class Tables(NamedTuple):
    """Lookup tables of a discrete Gaussian: a direct table and, where that has no value, an alias table.

    An entry -2**15 of `direct` means to use the alias table.

    Cell i of the alias table is the value i - cells / 2 with probability
    (high[i] 2**64 + low[i]) / 2**128, else alias[i].
    """

    direct: NDArray[np.int16]
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    alias: NDArray[np.int16]


def sample(dimension: int, integer_stddev: float, key: bytes) -> Integers:
    """Draw one client's discrete Gaussian noise from a key, independent by coordinate: int64[dimension].

    A shorter vector under the same key is the beginning of a longer one. `dimension`: d, at least 1.
    `integer_stddev`: the name of S in `noise_levels.INTEGER_NOISE_STDDEVS`. `key`: 32 secret bytes, used for
    nothing else. Raises ValueError: another dimension, standard deviation or length of key.
    """
    if dimension < 1:
        raise ValueError(f"dimension is {dimension}: draw at least 1 coordinate")
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key has {len(key)} bytes: give {KEY_BYTES}, from HKDF or os.urandom")
    sigma, factor, cells = shape_of(integer_stddev)
    law, drawn = tables(sigma, cells), np.empty(dimension, dtype=np.int64)
    alias_stream, starts = cipher_stream("aes256ctr", key, ALIAS_START), range(0, dimension, _PART)
    direct = partial(_draw_direct, law, key, dimension)
    # The words of the alias table are taken in the order of the coordinates, so by one thread.
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        parts = _ahead(pool, direct, starts) if len(starts) > NUM_THREADS else map(direct, starts)
        for start, (values, unsettled) in zip(starts, parts, strict=True):
            values[unsettled] = _draw_alias(law, alias_stream, len(unsettled))
            # Pairs (z1, z2) of 16 bits each, as numbers of 32 bits: z2 is the upper half.
            pairs = values.view("<i4")
            scaled = np.right_shift(pairs, 16)
            scaled *= factor
            pairs <<= 16
            pairs >>= 16
            np.add(scaled, pairs, out=drawn[start : start + _PART])
    return drawn


def _ahead(pool: ThreadPoolExecutor, act: Callable[[int], _Part], starts: Iterable[int]) -> Iterator[_Part]:
    """Yield the parts in order, of which only a few wait at a time; `Executor.map` would hold all of them."""
    pending = deque[Future[_Part]]()
    for start in starts:
        pending.append(pool.submit(act, start))
        if len(pending) > NUM_THREADS:
            yield pending.popleft().result()
    yield from (each.result() for each in pending)


def _draw_direct(law: Tables, key: bytes, dimension: int, start: int) -> _Part:
    """Draw pairs for a part of the coordinates: int16[2 m], and the places that the direct table leaves."""
    values = np.empty(2 * min(_PART, dimension - start), dtype="<i2")
    block = int.from_bytes(DIRECT_START) + start * values.itemsize * 2 // _BLOCK_BYTES
    stream = cipher_stream("aes256ctr", key, block.to_bytes(_BLOCK_BYTES))
    words, indices = np.empty(2 * _CHUNK, dtype="<u2"), np.empty(2 * _CHUNK, dtype=np.intp)
    for at in range(0, len(values), len(words)):
        chunk = values[at : at + len(words)]
        size = len(chunk)
        stream.update_into(memoryview(_ZEROS)[: chunk.nbytes], words[:size].view(np.uint8).data)
        np.copyto(indices[:size], words[:size])
        # Every index is in range; "wrap" spares numpy a copy of the output.
        np.take(law.direct, indices[:size], out=chunk, mode="wrap")
    return values, np.flatnonzero(values == UNSETTLED)


def _draw_alias(law: Tables, stream: CipherContext, count: int) -> NDArray[np.int16]:
    words = np.frombuffer(stream.update(bytes(8 * ALIAS_DRAW_WORDS * count)), dtype="<u8")
    cell, high, low = words.reshape(count, ALIAS_DRAW_WORDS).T
    cell = (cell & np.uint64(len(law.alias) - 1)).astype(np.intp)
    bound = law.high[cell]
    own, tied = high < bound, high == bound
    if tied.any():
        own |= tied & (low < law.low[cell])
    chosen: NDArray[np.int16] = np.where(own, cell - len(law.alias) // 2, law.alias[cell]).astype(np.int16)
    return chosen


@lru_cache(maxsize=len(_SHAPES))
def tables(sigma: int, cells: int) -> Tables:
    """Make the tables for drawing discrete Gaussian noise with |x| < cells / 2 and mean exactly 0."""
    shift = _FRACTION_BITS - _DIRECT_BITS
    probabilities = _probabilities(sigma, cells // 2)
    counts = [probability >> shift for probability in probabilities]
    rests = [probability - (count << shift) for probability, count in zip(probabilities, counts, strict=True)]
    signed = [abs(value) for value in _span(cells)]
    direct = np.repeat(np.array(_span(cells), dtype=np.int16), [counts[x] for x in signed])
    num_unsettled = (1 << _DIRECT_BITS) - len(direct)
    total = cells << _THRESHOLD_BITS
    weights = [(rest * total // (num_unsettled << shift - 1) + 1) // 2 for rest in rests]
    weights[0] = total - 2 * sum(weights[1:])
    thresholds, aliases = _alias_table([0, *(weights[x] for x in signed)])
    made = Tables(
        direct=np.concatenate([direct, np.full(num_unsettled, UNSETTLED, dtype=np.int16)]),
        high=np.array([threshold >> 64 for threshold in thresholds], dtype=np.uint64),
        low=np.array([threshold & _WORD for threshold in thresholds], dtype=np.uint64),
        alias=(np.array(aliases) - cells // 2).astype(np.int16),
    )
    for array in made:
        array.flags.writeable = False
    return made


def _alias_table(weights: list[int]) -> tuple[list[int], list[int]]:
    """Build an alias table (Walker): spread weights over cells so that each holds at most two values."""
    full = 1 << _THRESHOLD_BITS
    # A cell that is full sends every draw to its alias, itself: 2**128 does not fit two words.
    thresholds, aliases = [0] * len(weights), list(range(len(weights)))
    left = list(weights)
    below = [cell for cell, weight in enumerate(left) if weight < full]
    above = [cell for cell, weight in enumerate(left) if weight > full]
    while below:
        small, large = below.pop(), above[-1]
        thresholds[small], aliases[small] = left[small], large
        left[large] -= full - left[small]
        if left[large] <= full:
            above.pop()
        if left[large] < full:
            below.append(large)
    return thresholds, aliases


@lru_cache(maxsize=len(_SHAPES))
def _probabilities(sigma: int, half: int) -> tuple[int, ...]:
    """Compute 2**320 p(x) for x = 0 .. half - 1, with p(x) = exp(-x**2 / (2 sigma**2)) / Z.

    w(x + 1) = w(x) r**(2 x + 1), r = exp(-1 / (2 sigma**2)): in 120 digits, off by less than
    half**2 * 1e-120 of itself, so that all together differ from p by less than 2**-300.
    """
    with localcontext(Context(prec=120)):
        step = (Decimal(-1) / (2 * sigma**2)).exp()
        square = step * step
        weights = [Decimal(1)]
        for _ in range(half - 1):
            weights.append(weights[-1] * step)
            step *= square
        scale = Decimal(1 << _FRACTION_BITS) / (2 * sum(weights, Decimal(0)) - 1)
        return tuple(int(weight * scale) for weight in weights)


def _span(cells: int) -> range:
    return range(1 - cells // 2, cells // 2)


def shape_of(integer_stddev: float) -> tuple[int, int, int]:
    """Look up sigma, scale factor k and number of table cells for noise of this standard deviation."""
    if integer_stddev not in _SHAPES:
        raise ValueError(f"integer_stddev is {integer_stddev!r}: use one of {', '.join(map(str, _SHAPES))}")
    return _SHAPES[integer_stddev]
