"""Test vectors of discrete Gaussian noise: its exact distribution, and samples for given bytes."""

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from hashlib import sha256
from typing import Any

import numpy as np

from secagg.arithmetic.discrete_gaussian import sample, tables
from secagg.arithmetic.noise_levels import INTEGER_NOISE_STDDEVS

ABOUT = (
    "Discrete Gaussian noise from AES-256-CTR. The law of one draw of the tables as an exact fraction over "
    "2**shift, and the first draws of whole noise z1 + k z2 from a key."
)

SIGMAS = {40: 2**11, 512: 2**14}
VALUES = (0, 1, -1, 2, 17, 40, -40, 100, 250)
KEYS = (bytes(range(32)), sha256(b"test vector").digest())
DRAWN = 16
# So many, that the draws take some of the rare branch, and more than one chunk of the sampler.
LONG = 40_000
_THRESHOLD_BITS = 128
UNSETTLED = -(2**15)


def noise_cases() -> Iterator[dict[str, Any]]:
    """Yield test cases of discrete Gaussian noise: exact distributions, then samples."""
    for sigma, cells in SIGMAS.items():
        yield _law(sigma, cells)
    for stddev in INTEGER_NOISE_STDDEVS:
        for key in KEYS:
            drawn = sample(LONG, stddev, key)
            yield {
                "name": f"noise of deviation {stddev} from {key.hex()[:8]}",
                "given": {"integer_stddev": stddev, "key": key.hex(), "dimension": LONG},
                "expected": {
                    "first": drawn[:DRAWN].tolist(),
                    "sum": int(drawn.sum()),
                    "sum_of_squares": int(np.dot(drawn, drawn)),
                    "sha256_of_int64_little_endian": sha256(drawn.astype("<i8").tobytes()).hexdigest(),
                },
            }


def _law(sigma: int, cells: int) -> dict[str, Any]:
    """Return a test case: the exact probabilities of some values of a discrete Gaussian, as fractions."""
    made = tables(sigma, cells)
    settled = Counter(made.direct.tolist())
    unsettled = settled.pop(UNSETTLED)
    weights: Counter[int] = Counter()
    for cell, (high, low, alias) in enumerate(zip(made.high, made.low, made.alias, strict=True)):
        own = (int(high) << 64) + int(low)
        weights[cell - cells // 2] += own
        weights[int(alias)] += (1 << _THRESHOLD_BITS) - own
    total, shift = len(made.direct), int(math.log2(len(made.direct) * cells)) + _THRESHOLD_BITS
    found = {
        x: Fraction(settled[x], total) + Fraction(unsettled * weights[x], total * cells << _THRESHOLD_BITS)
        for x in VALUES
    }
    return {
        "name": f"law of one draw, sigma {sigma}",
        "given": {"sigma": sigma, "values": list(VALUES), "support": [1 - cells // 2, cells // 2 - 1]},
        "expected": {"shift": shift, "numerators": [str(int(found[x] * (1 << shift))) for x in VALUES]},
    }
