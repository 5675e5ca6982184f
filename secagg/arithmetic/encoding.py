"""Encodes real updates as integers modulo 2**b, so that no rounded update exceeds the clipping norm.

The grid follows the distributed discrete Gaussian of Kairouz, Liu and Steinke (ICML 2021): the standard
deviation s of a client's noise is fixed in integer steps. The size of a step (the grid) follows from s and
from the noise that the plan asks for.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.noise_levels import NOISE_TAIL, Contributors, NoiseLevels
from secagg.arithmetic.packing import FEWEST_BITS, FULL_BITS
from secagg.sum_errors import EncodingError

_CHUNK = 2**16
# BLAS splits longer products among threads, which wait for each other on a busy processor.
_DOT_TERMS = 2**13
UNCLIPPED_GRID = 2.0**-20
LEAST_NORM = 1e-100
# A norm that a GPU sums in float32 has a relative error of about 1e-6.
_CLIP_SLACK = 1e-4

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The integer grid (step size) of one secure sum: converts updates to integers modulo 2**b, and back.

    Make it with `for_sum`. Client and server compute the same encoding from public numbers.

    Attributes:
        grid: the value of one integer step, in the unit of updates.
        num_contributors: n2, the number of clients among which the range of integers is divided.
        dimension: d.
        clipping_norm: C, the L2 sensitivity that `encode` guarantees; inf without clipping.
        integer_noise_stddev: the standard deviation of a client's whole noise, in steps; 0 without noise.
        modulus_bits: b; sums are taken modulo 2**b.
        levels: the parts of the noise; None without noise.
        integer_correction_stddev: the largest standard deviation of the earlier noise that one member takes
            back, in steps.
    """

    grid: float
    num_contributors: int
    dimension: int
    clipping_norm: float
    integer_noise_stddev: float
    modulus_bits: int = FULL_BITS
    levels: NoiseLevels | None = None
    integer_correction_stddev: float = 0.0

    @classmethod
    def for_sum(
        cls,
        contributors: Contributors,
        *,
        dimension: int,
        clipping_norm: float,
        noise_multiplier: float,
        modulus_bits: int = FULL_BITS,
    ) -> "Encoding":
        """Choose the finest grid (step size) with which the sum of all contributors cannot wrap around 2**b.

        With noise: grid = C sigma / (sqrt(n2 - D - c) s), and s is the largest of
        `noise_levels.INTEGER_NOISE_STDDEVS` with n2 (C / grid + 1/2) + z s sqrt(n2) < 2**(b - 1), z =
        `NOISE_TAIL`. Here each client adds to a coordinate at most C / grid steps of its update, 1/2 for
        rounding its noise, and noise of standard deviation s; earlier noise that members take back
        (`Corrections`) adds to this bound. With noise levels, s is that of the part that always stays, and
        grid = C sigma / (sqrt(n2 - c) s). Without noise: C / grid = 2**(b - 1) / n2 - 1. Without clipping:
        grid = 2**-20.

        Raises EncodingError if the numbers are impossible, no s fits, or rounding `dimension` coordinates
        would use up the whole clipping norm.
        """
        check_numbers(dimension, clipping_norm, noise_multiplier, modulus_bits)
        levels, half = None, 1 << modulus_bits - 1
        if noise_multiplier > 0:
            levels = contributors.fitting_levels(noise_multiplier, half)
            norm = contributors.norm_in_noise(noise_multiplier) * math.sqrt(levels.variance(0))
            grid = clipping_norm / norm
        elif math.isinf(clipping_norm):
            grid = UNCLIPPED_GRID
        else:
            grid = clipping_norm / (half / contributors.number - 1)
        encoding = cls(
            grid=grid,
            num_contributors=contributors.number,
            dimension=dimension,
            clipping_norm=clipping_norm,
            integer_noise_stddev=levels.stddev if levels else 0.0,
            modulus_bits=modulus_bits,
            levels=levels,
            integer_correction_stddev=(
                clipping_norm * contributors.corrections.multiplier / grid if levels else 0.0
            ),
        )
        encoding._check_clip_bound()
        return encoding

    def clipped_to(self, clipping_norm: float) -> "Encoding":
        """Return the encoding for one member, with its own clipping norm; the integer grid stays the same.

        `clip_bound` and the exact check of encoded updates use this norm C_i. Range, noise and decoding
        are those of the sum. Raises EncodingError if C_i is not in (0, C], or if rounding would use it up.
        """
        if not 0 < clipping_norm <= self.clipping_norm:
            raise EncodingError(
                f"a clipping norm of {clipping_norm} in a sum with {self.clipping_norm}: use a positive "
                "one, at most the sum's"
            )
        own = replace(self, clipping_norm=clipping_norm)
        own._check_clip_bound()
        return own

    def _check_clip_bound(self) -> None:
        if not self.clip_bound > 0:
            raise EncodingError(
                f"rounding {self.dimension} coordinates to steps of {self.grid:.3g} takes more than the "
                f"clipping norm {self.clipping_norm}: use more contributors or less noise"
            )

    @property
    def clip_bound(self) -> float:
        """The bound to which updates are clipped, so that rounded updates stay within the clipping norm.

        Rounding adds at most grid sqrt(d) / 2. The factor 1 - 2**-36 covers the errors of float64.
        """
        return (self.clipping_norm - self.grid * math.sqrt(self.dimension) / 2) * (1 - 2.0**-36)

    @property
    def client_noise_stddev(self) -> float:
        """One client's noise as a standard deviation in the update's unit; 0 without noise."""
        return self.integer_noise_stddev * self.grid

    @property
    def coordinate_limit(self) -> int:
        """The largest coordinate, in steps, that each contributor may send so that the sum fits b bits."""
        return self._largest // self.num_contributors

    @property
    def _largest(self) -> int:
        return (1 << self.modulus_bits - 1) - 1

    @cached_property
    def norm_limit_squared(self) -> int:
        """The exact limit on a quantised update's squared norm (in integers), from the clipping norm C."""
        return math.floor((Fraction(self.clipping_norm) / Fraction(self.grid)) ** 2)

    def encode(self, update: Floats) -> Integers:
        """Round an update to integer steps z with grid * |z|_2 <= C: float[d] -> int64[d].

        The update's L2 norm must be at most `clip_bound`. An excess of up to 1e-4 of it, as left by clipping
        in float32, is scaled away. The norm of the integers is then checked exactly, so the sensitivity is at
        most C despite all floating-point errors. Raises EncodingError for NaN or infinity, and for a norm or
        a coordinate out of range.
        """
        self._check_array(update)
        scale = 1.0
        if not math.isinf(self.clipping_norm):
            length = _norm(update)
            if not length <= self.clip_bound * (1 + _CLIP_SLACK):
                raise EncodingError(
                    f"the update's norm {length:.9g} is above clip_bound {self.clip_bound:.9g}: "
                    "clip to clip_bound, not to the clipping norm"
                )
            scale = min(1.0, self.clip_bound / length) if length > 0 else 1.0
        steps = _rounded(update, scale, self.grid, self.coordinate_limit)
        self._check_integer_norm(steps)
        return steps

    def encode_noise(self, noise: Floats) -> Integers:
        """Round a client's noise, given in the update's unit, to integer steps: float[d] -> int64[d].

        The noise includes the earlier noise that the client takes back. Raises EncodingError for NaN or
        infinity, and for a value beyond `NOISE_TAIL` standard deviations, as if drawn in another unit than
        `client_noise_stddev`. If the sum has no noise, every value but 0 is refused.
        """
        self._check_array(noise)
        return _rounded(noise, 1.0, self.grid, self.noise_limit)

    @property
    def noise_limit(self) -> int:
        """The largest magnitude that a coordinate of a client's noise may have, in quantisation steps."""
        stddev = math.hypot(self.integer_noise_stddev, self.integer_correction_stddev)
        return min(math.ceil(NOISE_TAIL * stddev), self._largest)

    def to_residues(self, steps: Integers) -> NDArray[np.uint32]:
        """Return integer steps modulo 2**32: int64[d] -> uint32[d]; a session sends only the low b bits."""
        if steps.dtype != np.int64 or steps.shape != (self.dimension,):
            raise EncodingError(f"steps are int64[{self.dimension}], got {_kind(steps)}")
        return steps.astype(np.uint32)

    def is_encoded(self, residues: NDArray[np.uint32]) -> bool:
        """Whether residues modulo 2**b, uint32[d], are a possible result of `encode`, without added noise.

        They can if no coordinate exceeds `coordinate_limit` and, with clipping, the exact norm is at most C.
        """
        steps = residues.view(np.int32).astype(np.int64)
        if int(np.abs(steps).max()) > self.coordinate_limit:
            return False
        if math.isinf(self.clipping_norm):
            return True
        # This bound on the norm in floats keeps the exact computation below from overflowing.
        if _norm(steps.astype(np.float64)) ** 2 > 2.0 * self.norm_limit_squared:
            return False
        return _squared_norm(steps) <= self.norm_limit_squared

    def decode(self, residues: NDArray[np.uint32]) -> NDArray[np.float64]:
        """Decode integers modulo 2**b, read as -2**(b-1) to 2**(b-1) - 1, into real values: float64[d]."""
        if residues.dtype != np.uint32 or residues.shape != (self.dimension,):
            raise EncodingError(f"residues are uint32[{self.dimension}], got {_kind(residues)}")
        spare = FULL_BITS - self.modulus_bits
        values = np.empty(len(residues))
        buffer = np.empty(min(_CHUNK, len(residues)), np.uint32)
        for start in range(0, len(residues), _CHUNK):
            chunk = residues[start : start + _CHUNK]
            # Shifting up, then down again, copies the sign bit of b bits to the higher bits.
            shifted = np.left_shift(chunk, spare, out=buffer[: len(chunk)], dtype=np.uint32)
            centred = shifted.view(np.int32)
            np.right_shift(centred, spare, out=centred)
            np.multiply(centred, self.grid, out=values[start : start + _CHUNK], dtype=np.float64)
        return values

    def _check_array(self, values: Floats) -> None:
        if not np.issubdtype(values.dtype, np.floating) or values.shape != (self.dimension,):
            raise EncodingError(f"values are float[{self.dimension}], got {_kind(values)}")
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK]
            if not np.isfinite(chunk).all():
                where = int(np.flatnonzero(~np.isfinite(chunk))[0])
                raise EncodingError(
                    f"coordinate {start + where} is {chunk[where]}: send a zero update instead"
                )

    def _check_integer_norm(self, steps: Integers) -> None:
        if math.isinf(self.clipping_norm):
            return
        squared = _squared_norm(steps)
        if squared > self.norm_limit_squared:
            raise EncodingError(
                f"rounded, the update's squared norm is {squared} steps, above "
                f"{self.norm_limit_squared}: clip to clip_bound {self.clip_bound:.9g}"
            )


def _squared_norm(steps: Integers) -> int:
    """Compute |z|**2 of integer steps z exactly, in chunks that cannot overflow."""
    chunks = (steps[start : start + _CHUNK] for start in range(0, len(steps), _CHUNK))
    return sum(int(np.dot(chunk, chunk)) for chunk in chunks)


def check_numbers(dimension: int, clipping_norm: float, noise_multiplier: float, modulus_bits: int) -> None:
    """Raise EncodingError if one of these parameters is out of range, so that no sum can be encoded."""
    if dimension < 1:
        raise EncodingError(f"dimension is {dimension}: use at least 1")
    if not clipping_norm >= LEAST_NORM:
        raise EncodingError(f"clipping_norm is {clipping_norm}: use {LEAST_NORM:g} or more")
    if not 0 <= noise_multiplier < math.inf:
        raise EncodingError(f"noise_multiplier is {noise_multiplier}: use 0 or more")
    if math.isinf(clipping_norm) and noise_multiplier > 0:
        raise EncodingError(
            f"noise_multiplier {noise_multiplier} needs a finite clipping_norm: without clipping the "
            "sensitivity is unbounded"
        )
    if not FEWEST_BITS <= modulus_bits <= FULL_BITS:
        raise EncodingError(f"modulus_bits is {modulus_bits}: use {FEWEST_BITS} to {FULL_BITS}")


def _norm(values: Floats) -> float:
    starts = range(0, len(values), _DOT_TERMS)
    chunks = (values[i : i + _DOT_TERMS].astype(np.float64) for i in starts)
    return math.sqrt(math.fsum(float(np.dot(chunk, chunk)) for chunk in chunks))


def _rounded(values: Floats, scale: float, grid: float, limit: int) -> Integers:
    """Round values to integer steps, round(values * scale / grid); raise EncodingError beyond `limit`."""
    steps = np.empty(len(values), dtype=np.int64)
    buffer = np.empty(min(_CHUNK, len(values)))
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        exact = buffer[: len(chunk)]
        np.multiply(chunk, scale, out=exact, dtype=np.float64)
        np.divide(exact, grid, out=exact)
        np.rint(exact, out=exact)
        if not max(exact.max(), -exact.min()) <= limit:
            worst = int(np.argmax(np.abs(exact)))
            raise EncodingError(
                f"coordinate {start + worst} is {chunk[worst]:.9g}, outside "
                f"+-{limit * grid:.9g}: it would wrap the sum"
            )
        steps[start : start + len(chunk)] = exact
    return steps


def _kind(values: NDArray[Any]) -> str:
    return f"{values.dtype}{list(values.shape)}"
