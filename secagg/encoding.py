"""Real updates as integers modulo 2**32, with a sensitivity that rounding cannot exceed.

The grid follows the distributed discrete Gaussian of Kairouz, Liu and Steinke (ICML 2021): fix the
standard deviation s of a client's noise in integer steps, and let the step (the grid) follow from
the noise the plan asks for.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.errors import EncodingError

MODULUS = 2**32
INTEGER_NOISE_STDDEVS = (81921.6, 20486.0, 481.7)
"""Choices of s, finest first: 512 sqrt(1 + 160**2), 512 sqrt(1 + 40**2), 40 sqrt(1 + 12**2).

Each is what z1 + k z2 has when both come from one table of discrete Gaussians of 512 (or 40)
steps, so that an exact sampler can draw it (Micciancio and Walter, CRYPTO 2017).
"""
NOISE_TAIL = 16.0
"""How many standard deviations of the summed noise fit below the wrap.

The summed noise has standard deviation s sqrt(n2) steps. It leaves +-16 of them with probability
at most 2 exp(-16**2 / 2) < 2**-183 a coordinate, so over d < 2**31 coordinates below 2**-152.
"""
UNCLIPPED_GRID = 2.0**-20
_MAX_CENTRED = 2**31 - 1
# The norm of a float32 update, summed in float32 on a GPU, is off by about 1e-6 of itself.
_CLIP_SLACK = 1e-4
_CHUNK = 2**16

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The grid of one sum: update (float) <-> integer steps (int64) <-> residues (uint32).

    Make it with `for_sum`. Client and server compute the same one from public numbers.

    Attributes:
        grid: the value of one integer step, in the update's own unit.
        num_contributors: n2, over how many clients the range was divided.
        dimension: d.
        clipping_norm: C, the L2 sensitivity that `encode` guarantees; inf without clipping.
        integer_noise_stddev: s, a client's noise in steps; 0 without noise.
    """

    grid: float
    num_contributors: int
    dimension: int
    clipping_norm: float
    integer_noise_stddev: float

    @classmethod
    def for_sum(
        cls,
        *,
        num_contributors: int,
        dimension: int,
        clipping_norm: float,
        noise_multiplier: float,
        dropout_tolerance: int = 0,
        corrupt_tolerance: int = 0,
    ) -> "Encoding":
        """The finest grid on which a sum over `num_contributors` clients cannot wrap.

        With noise: grid = C sigma / (sqrt(n2 - D - c) s), and s is the largest of
        `INTEGER_NOISE_STDDEVS` with n2 (C / grid + 1/2) + z s sqrt(n2) < 2**31, z = `NOISE_TAIL`:
        each client brings at most C / grid of signal in a coordinate, 1/2 of rounded noise, and
        noise of standard deviation s. Without noise: C / grid = 2**31 / n2 - 1. Without clipping:
        grid = 2**-20.

        Raises:
            EncodingError: the numbers are impossible, no s fits, or rounding `dimension`
                coordinates would use up the whole clipping norm.
        """
        noisy = num_contributors - dropout_tolerance - corrupt_tolerance
        if noisy < 1:
            raise EncodingError(
                f"{num_contributors} contributors less {dropout_tolerance} dropouts less "
                f"{corrupt_tolerance} corrupt leave {noisy}: at least 1 must add noise"
            )
        _check_numbers(dimension, clipping_norm, noise_multiplier)
        stddev = 0.0
        if noise_multiplier > 0:
            steps_per_s = math.sqrt(noisy) / noise_multiplier
            stddev = _integer_noise_stddev(num_contributors, steps_per_s)
            grid = clipping_norm / (steps_per_s * stddev)
        elif math.isinf(clipping_norm):
            grid = UNCLIPPED_GRID
        else:
            grid = clipping_norm / (2**31 / num_contributors - 1)
        encoding = cls(
            grid=grid,
            num_contributors=num_contributors,
            dimension=dimension,
            clipping_norm=clipping_norm,
            integer_noise_stddev=stddev,
        )
        if not encoding.clip_bound > 0:
            raise EncodingError(
                f"rounding {dimension} coordinates to steps of {grid:.3g} takes more than the "
                f"clipping norm {clipping_norm}: use more contributors or less noise"
            )
        return encoding

    @property
    def clip_bound(self) -> float:
        """C - grid sqrt(d) / 2, less 2**-36 of itself: clip to this, and rounding stays within C.

        The last part outweighs the errors of float64 in the norm, the grid and this bound.
        """
        return (self.clipping_norm - self.grid * math.sqrt(self.dimension) / 2) * (1 - 2.0**-36)

    @property
    def client_noise_stddev(self) -> float:
        """s * grid = C sigma / sqrt(n2 - D - c), in the update's unit; 0 without noise."""
        return self.integer_noise_stddev * self.grid

    @property
    def coordinate_limit(self) -> int:
        """The largest magnitude, in steps, that n2 clients may all send: (2**31 - 1) // n2."""
        return _MAX_CENTRED // self.num_contributors

    @cached_property
    def _norm_limit_squared(self) -> int:
        """floor((C / grid)**2), exact: |z|**2 at most this means grid |z| <= C in the reals."""
        return math.floor((Fraction(self.clipping_norm) / Fraction(self.grid)) ** 2)

    def encode(self, update: Floats) -> Integers:
        """Round an update to the grid: float[d] -> int64[d] with grid * |z|_2 <= C.

        The update's L2 norm must be at most `clip_bound`. An excess within 1e-4 of it, which a
        norm summed in float32 leaves, is scaled away; the norm of the integers is then checked
        exactly, so the sensitivity is at most C whatever the floats did.

        Raises:
            EncodingError: NaN or infinity, a norm or (without clipping) a coordinate out of range.
        """
        self._check_array(update)
        scale = 1.0
        if not math.isinf(self.clipping_norm):
            norm = _norm(update)
            if norm > self.clip_bound * (1 + _CLIP_SLACK):
                raise EncodingError(
                    f"the update's norm {norm:.9g} is above clip_bound {self.clip_bound:.9g}: "
                    "clip to clip_bound, not to the clipping norm"
                )
            scale = min(1.0, self.clip_bound / norm) if norm > 0 else 1.0
        steps = _rounded(update, scale, self.grid, self.coordinate_limit)
        self._check_integer_norm(steps)
        return steps

    def encode_noise(self, noise: Floats) -> Integers:
        """Round a client's noise (same unit as the update) to the grid: float[d] -> int64[d].

        Raises:
            EncodingError: NaN or infinity, or a value beyond `NOISE_TAIL` standard deviations
                (any but 0 without noise): it was drawn in another unit than `client_noise_stddev`.
        """
        self._check_array(noise)
        limit = min(math.ceil(NOISE_TAIL * self.integer_noise_stddev), _MAX_CENTRED)
        return _rounded(noise, 1.0, self.grid, limit)

    def to_residues(self, steps: Integers) -> NDArray[np.uint32]:
        """Integer steps modulo 2**32: int64[d] -> uint32[d]."""
        if steps.dtype != np.int64 or steps.shape != (self.dimension,):
            raise EncodingError(f"steps are int64[{self.dimension}], got {_kind(steps)}")
        return steps.astype(np.uint32)

    def decode(self, residues: NDArray[np.uint32]) -> NDArray[np.float64]:
        """The centred value of each residue, in [-2**31, 2**31), times the grid: float64[d]."""
        if residues.dtype != np.uint32 or residues.shape != (self.dimension,):
            raise EncodingError(f"residues are uint32[{self.dimension}], got {_kind(residues)}")
        return np.multiply(residues.astype(np.int32), self.grid, dtype=np.float64)

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
        # No chunk overflows int64: the float check bounds |z|**2 by little more than 2**62.
        squared = sum(
            int(np.dot(chunk, chunk))
            for chunk in (steps[i : i + _CHUNK] for i in range(0, len(steps), _CHUNK))
        )
        if squared > self._norm_limit_squared:
            raise EncodingError(
                f"rounded, the update's squared norm is {squared} steps, above "
                f"{self._norm_limit_squared}: clip to clip_bound {self.clip_bound:.9g}"
            )


def _check_numbers(dimension: int, clipping_norm: float, noise_multiplier: float) -> None:
    if dimension < 1:
        raise EncodingError(f"dimension {dimension} must be at least 1")
    if not clipping_norm > 0:
        raise EncodingError(f"clipping_norm {clipping_norm} must be positive")
    if not 0 <= noise_multiplier < math.inf:
        raise EncodingError(f"noise_multiplier {noise_multiplier} must be finite and at least 0")
    if math.isinf(clipping_norm) and noise_multiplier > 0:
        raise EncodingError(
            f"noise_multiplier {noise_multiplier} without clipping: set a finite clipping_norm"
        )


def _integer_noise_stddev(num_contributors: int, steps_per_s: float) -> float:
    for stddev in INTEGER_NOISE_STDDEVS:
        signal = num_contributors * (steps_per_s * stddev + 0.5)
        if signal + NOISE_TAIL * stddev * math.sqrt(num_contributors) < 2**31:
            return stddev
    raise EncodingError(
        f"{num_contributors} contributors with C / noise = {steps_per_s:.3g} each do not fit 32 "
        "bits: raise the noise_multiplier or sum fewer clients"
    )


def _norm(values: Floats) -> float:
    chunks = (values[i : i + _CHUNK].astype(np.float64) for i in range(0, len(values), _CHUNK))
    return math.sqrt(math.fsum(float(np.dot(chunk, chunk)) for chunk in chunks))


def _rounded(values: Floats, scale: float, grid: float, limit: int) -> Integers:
    """round(values * scale / grid) as int64; a magnitude above `limit` steps is refused."""
    steps = np.empty(len(values), dtype=np.int64)
    for start in range(0, len(values), _CHUNK):
        exact = values[start : start + _CHUNK].astype(np.float64) * scale / grid
        rounded = np.rint(exact)
        worst = int(np.argmax(np.abs(rounded)))
        if abs(rounded[worst]) > limit:
            raise EncodingError(
                f"coordinate {start + worst} is {values[start + worst]:.9g}, outside "
                f"+-{limit * grid:.9g}: it would wrap the sum"
            )
        steps[start : start + _CHUNK] = rounded
    return steps


def _kind(values: NDArray[Any]) -> str:
    return f"{values.dtype}{list(values.shape)}"
